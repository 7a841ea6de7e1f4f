"""A server that speaks the messages of the real one over HTTP and samples with the local engine, one prompt at a time.

What it is told to do wrong it does wrong: see ``FakeServer.faults``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MethodType, SimpleNamespace

import torch
from safetensors.torch import load_file

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of
from qwenvl.rollout import servers as servers_module
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine
from qwenvl.vllm_server.wire import (
    PROTOCOL,
    Health,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    pack,
    secret,
    sizes_of,
)

_ONE_DRAWS = threading.Lock()  # random numbers are those of the process, and threads would take each other's


def _features_as_given(self, hidden_states, grid_thw, **kwargs):
    """In the place of the vision tower. Each row stands as often as patches are merged, since grids count patches."""
    rows = hidden_states[:: self.spatial_merge_unit]
    main, *deepstack = rows.split(self.out_width, dim=-1)
    return SimpleNamespace(last_hidden_state=main, pooler_output=main, deepstack_features=deepstack)


class FakeServer:
    """Serves in threads of this process until it dies.

    Attributes:
        faults: what is done to the next requests for completions, one each: ``drop`` (no answer), ``die`` (no answer
            now or ever), ``engine``, ``busy`` (refusals), ``slow`` (an answer after the deadline), or a function from
            an answer to another one. ``drop weights`` and ``die weights`` are for requests with weights.
        asked: requests for completions that were answered.
        given: requests with weights, with the names in each.
    """

    def __init__(self, model, tokenizer, port: int = 0):
        self.model, self.token = model, secret()
        visual = model.model.visual
        visual.out_width = model.config.get_text_config().hidden_size
        visual.spatial_merge_unit = visual.spatial_merge_size**2
        visual.forward = MethodType(_features_as_given, visual)
        self.engine = LocalEngine(tokenizer, model)
        self.faults: list = []
        self.asked: list[SampleRequest] = []
        self.given: list[tuple[WeightsRequest, set[str]]] = []
        self.version: int | None = 0
        self.parts: dict[str, torch.Tensor] = {}
        self.asleep, self.lock, self.boot = False, threading.Lock(), f"boot-{id(self)}"
        self.http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"fake": self}))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def port(self) -> int:
        return self.http.server_address[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def die(self) -> None:
        """Nobody listens there any more."""
        self.http.shutdown()
        self.http.server_close()

    def health(self) -> Health:
        config = self.model.config
        return Health(
            protocol=PROTOCOL,
            boot=self.boot,
            version=self.version,
            model="a tiny model",
            model_type=config.model_type,
            sizes=sizes_of(config),
            dtype="float32",
            tied="lm_head.weight" not in dict(self.model.named_parameters()),
            busy=False,
            asleep=self.asleep,
            raised=None,
        )

    def take(self, request: WeightsRequest) -> Health:
        if request.part == 0 and request.base is not None and request.base != self.version:
            raise Refusal("version", f"has {self.version}, not {request.base}")
        tensors = load_file(request.path) if request.path else dict(request.tensors)
        self.given.append((request, set(tensors)))
        self.parts |= tensors
        self.version = None
        if request.part == request.parts - 1:
            own = {n: p for n, p in self.model.named_parameters() if part_of(n) == "llm"}
            if request.base is None and set(own) != set(self.parts):
                raise Refusal("request", f"missing or unknown: {sorted(set(own) ^ set(self.parts))}")
            with torch.no_grad():
                for name, value in self.parts.items():
                    own[name].copy_(value)
            self.parts, self.version = {}, request.version
        return self.health()

    def sample(self, request: SampleRequest) -> SampleAnswer:
        if request.version != self.version:
            raise Refusal("version", f"has {self.version}, not {request.version}")
        self.engine.vision_ids, self.engine.end_ids = list(request.banned_ids), list(request.end_ids)
        params = SamplingParams(**vars(request.draw))
        drawn = [
            self.engine.draw(self.model, self.inputs(prompt), request.group_size, params, prompt.seed)
            for prompt in request.prompts
        ]
        rows = [
            (ids[mask], logprobs[mask], reason)
            for each in drawn
            for ids, mask, logprobs, reason in zip(
                each.completion_ids, each.completion_mask, each.logprobs, each.finish_reasons, strict=True
            )
        ]
        self.asked.append(request)
        return SampleAnswer(request.version, self.boot, *map(tuple, zip(*rows, strict=True)))

    def inputs(self, prompt) -> PromptInputs:
        """One prompt as the model takes it."""
        unit = self.model.model.visual.spatial_merge_unit
        inputs = replace(PromptInputs.of_text(prompt.ids[None]), position_ids=prompt.positions[:, None])
        for kind, values, grids, counts in (
            ("image", "pixel_values", "image_grid_thw", "images_per_prompt"),
            ("video", "pixel_values_videos", "video_grid_thw", "videos_per_prompt"),
        ):
            media = [each for each in prompt.media if each.kind == kind]
            if media:
                features = torch.cat([each.features for each in media]).repeat_interleave(unit, 0)
                grid = torch.tensor([each.grid for each in media])
                inputs = replace(inputs, **{values: features, grids: grid, counts: [len(media)]})
        return inputs


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *args) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, self.fake.health().pack())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fake = self.fake
        with fake.lock:
            try:
                if self.headers.get("Authorization") != f"Bearer {fake.token}":
                    raise Refusal("token", "the token is missing or another")
                self.answer(body)
            except Refusal as refusal:
                self.reply(refusal.status, refusal.body())

    def answer(self, body: bytes) -> None:
        fake = self.fake
        if self.path in ("/sleep", "/wake"):
            fake.asleep = self.path == "/sleep"
            return self.reply(200, fake.health().pack())
        if self.path == "/weights":
            if fake.faults and str(fake.faults[0]).endswith(" weights"):
                return self.vanish(fake.faults.pop(0))
            return self.reply(200, fake.take(WeightsRequest.unpack(body)).pack())
        if fake.asleep:
            raise Refusal("asleep", "wake it first")
        request = SampleRequest.unpack(body)
        fault = fake.faults.pop(0) if fake.faults else None
        if fault in ("drop", "die"):
            return self.vanish(fault)
        if fault in ("engine", "busy"):
            raise Refusal(fault, "brought about by the test")
        with _ONE_DRAWS:
            answer = fake.sample(request)
        if fault == "slow":
            time.sleep(request.deadline_s * 3)
        return self.reply(200, pack(fault(answer) if callable(fault) else answer))

    def vanish(self, how: str) -> None:
        """The connection ends without an answer."""
        if how.startswith("die"):
            self.fake.http.socket.close()
            threading.Thread(target=self.fake.die, daemon=True).start()
        self.close_connection = True

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serving(tiny_pair, monkeypatch) -> Iterator[Callable[..., FakeServer]]:
    """What the fixture ``fake`` yields."""
    monkeypatch.setattr(servers_module, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(servers_module, "MARGIN_SECONDS", 0.5)
    made: list[FakeServer] = []

    def make(family: str = "qwen2_5_vl", port: int = 0, **options) -> FakeServer:
        model, processor = tiny_pair(family, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        made.append(FakeServer(model, processor.tokenizer, port))
        return made[-1]

    yield make
    for each in made:
        each.die()
