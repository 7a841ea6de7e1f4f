"""The sampling server around the local engine, without vLLM. What it is to do wrong it does: ``FakeServer.faults``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from types import MethodType

import torch
from safetensors.torch import load_file
from transformers.modeling_outputs import BaseModelOutputWithPooling

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of
from qwenvl.rollout import servers as servers_module
from qwenvl.rollout.local import LocalEngine
from qwenvl.vllm_server.server import Handler, SamplingServer, Web
from qwenvl.vllm_server.wire import AGAIN, Refusal, SampleAnswer, SampleRequest, WeightsRequest, architecture, secret

NO_ANSWER = 0  # in the place of an HTTP status
_ONE_DRAWS = threading.Lock()  # random numbers are those of the process, and threads would take each other's


def _features_as_given(self, hidden_states, grid_thw, **kwargs):
    """In the place of the vision tower. Each row stands as often as patches are merged, since grids count patches."""
    rows = hidden_states[:: self.spatial_merge_unit]
    main, *deepstack = rows.split(self.out_width, dim=-1)
    output = {"last_hidden_state": main, "pooler_output": main}
    if deepstack:
        output["deepstack_features"] = deepstack
    return vision_output_type(self)(**output)


def vision_output_type(visual) -> type:
    """The type that the vision tower of the installed transformers returns. Deepstack has a type of its own."""
    module = import_module(type(visual).__module__)
    return getattr(module, "BaseModelOutputWithDeepstackFeatures", BaseModelOutputWithPooling)


class ModelEngine:
    """An engine of the server that samples with the local engine, one prompt at a time."""

    dtype = "float32"

    def __init__(self, fake: FakeServer, model, tokenizer):
        self.fake, self.model, self.local = fake, model, LocalEngine(tokenizer, model)
        visual = model.model.visual
        visual.out_width = model.config.get_text_config().hidden_size
        visual.spatial_merge_unit = visual.spatial_merge_size**2
        visual.forward = MethodType(_features_as_given, visual)
        self.architecture, self.max_model_len = architecture(model.config), 4096
        self.missing: set[str] = set()

    def load(self, path: str, *, first: bool, last: bool) -> list[str]:
        if self.fake.faults and self.fake.faults[0] == "die weights":
            self.fake.fail(self.fake.faults.pop(0))
        own = {name: p for name, p in self.model.named_parameters() if part_of(name) == "llm"}
        tensors = load_file(path)
        self.missing = (set(own) if first else self.missing) - set(tensors)
        self.fake.given[-1][1].update(tensors)
        with torch.no_grad():
            for name, value in tensors.items():
                own[name].copy_(value)
        return sorted(self.missing) if last else []

    def sample(self, request: SampleRequest, salt: str) -> SampleAnswer:
        fault = self.fake.faults.pop(0) if self.fake.faults else None
        if isinstance(fault, str):
            self.fake.fail(fault)
        self.local.vision_ids, self.local.end_ids = request.banned_ids, request.end_ids
        with _ONE_DRAWS:
            drawn = []
            for prompt in request.prompts:
                params = replace(request.params, max_new_tokens=request.room_of(prompt))
                drawn.append(self.local.draw(self.model, self.inputs(prompt), request.group_size, params, prompt.seed))
        rows = [
            (ids[mask].tolist(), logprobs[mask].tolist(), reason)
            for each in drawn
            for ids, mask, logprobs, reason in zip(
                each.completion_ids, each.completion_mask, each.logprobs, each.finish_reasons, strict=True
            )
        ]
        self.fake.asked.append(request)
        answer = SampleAnswer(request.version, "", *map(list, zip(*rows, strict=True)))
        return fault(answer) if fault is not None else answer

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


class _Handler(Handler):
    def send_response(self, status, message=None):
        if status == NO_ANSWER:
            raise ConnectionAbortedError
        super().send_response(status, message)


class FakeServer(SamplingServer):
    """The server itself around a ``ModelEngine``, in threads of this process until it dies.

    Attributes:
        faults: what is done to the next requests for completions, one each: ``drop`` (the connection ends without an
            answer), ``die`` (nobody listens any more), ``engine`` (it raises), ``busy`` (a refusal), or a function
            from an answer to another one. ``die weights`` is for weights.
        asked: requests for completions that were answered.
        given: requests with weights, with the names of those that were loaded.
    """

    def __init__(self, model, tokenizer, port: int = 0):
        super().__init__("a tiny model")
        self.model, self.faults = model, []
        self.asked: list[SampleRequest] = []
        self.given: list[tuple[WeightsRequest, set[str]]] = []
        self.load(lambda: ModelEngine(self, model, tokenizer))
        self.web = Web(("127.0.0.1", port), self, secret())
        self.web.RequestHandlerClass, self.web.handle_error = _Handler, lambda *of_request: None
        threading.Thread(target=self.web.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self) -> int:
        return self.web.server_port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def take_weights(self, request: WeightsRequest):
        self.given.append((request, set()))
        return super().take_weights(request)

    def fail(self, fault: str) -> None:
        if fault == "busy":
            raise Refusal("brought about by the test", AGAIN)
        if fault == "engine":
            raise RuntimeError("brought about by the test")
        if fault.startswith("die"):
            self.web.socket.close()
            threading.Thread(target=self.die, daemon=True).start()
        raise Refusal("", NO_ANSWER)

    def exit(self) -> None:
        """No process ends."""

    def die(self) -> None:
        """Nobody listens there any more."""
        self.web.shutdown()
        self.web.server_close()


def serving(tiny_pair, monkeypatch) -> Iterator[Callable[..., FakeServer]]:
    """A running server, as the fixture ``fake`` yields it."""
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
