"""An engine without a model, behind the real server: it says what it was asked, and can be slow or fail."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch
from safetensors.torch import load_file

from qwenvl.vllm_server.family import Shape
from qwenvl.vllm_server.server import Server
from qwenvl.vllm_server.settings import parse
from qwenvl.vllm_server.web import Web
from qwenvl.vllm_server.wire.body import secret
from qwenvl.vllm_server.wire.link import LinkGroup, LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsRequest


def linked(request: LinkRequest) -> LinkGroup:
    """The end of a link at its only worker."""
    assert request.kind == "gloo"
    return LinkGroup("gloo", request.store, 1, request.size, request.seconds)


def received(group: LinkGroup, request: WeightsRequest) -> dict[str, torch.Tensor]:
    """The weights of float32 that come along it."""
    shapes = {name: torch.Size(shape) for name, shape in request.shapes.items()}
    flat = torch.empty(sum(shape.numel() for shape in shapes.values()))
    group.broadcast(flat.view(torch.uint8))
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape).clone() for (name, shape), part in zip(shapes.items(), parts, strict=True)}


class FakeEngine:
    """Each completion is its prompt's first token, at a log-prob of minus the number of weights that were given.

    Attributes:
        gate: cleared, sampling waits for it.
        error: raised by the next sampling.
        parameters: of the model.
    """

    shape = Shape("qwen2_vl", sizes={"vocab_size": 100}, merge_size=2, feature_width=3, max_model_len=64, tied=True)
    dtype = "float32"
    workers, nccl = 1, 0

    def __init__(self, parameters: set[str] | None = None):
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: BaseException | None = None
        self.parameters = parameters or set()
        self.weights: dict[str, torch.Tensor] = {}
        self.asleep = False

    def check(self, request: SampleRequest) -> None: ...

    def sample(self, request: SampleRequest, salt: str) -> SampleAnswer:
        self.entered.set()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        rows = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        ids = tuple(prompt.ids[:1] for prompt in rows)
        logprobs = tuple(torch.full((1,), -float(len(self.weights))) for _ in rows)
        return SampleAnswer(
            request.version, "", ids, logprobs, ("length",) * len(rows), prompt_tokens=3, cached_tokens=4
        )

    def load(self, path: str) -> set[str]:
        given = load_file(path)
        self.weights |= given
        return set(given)

    def join(self, request: LinkRequest) -> None:
        self.link = linked(request)

    def receive(self, request: WeightsRequest) -> set[str]:
        given = received(self.link, request)
        self.weights |= given
        return set(given)

    def language_parameters(self) -> set[str]:
        return self.parameters

    def sleep(self) -> None:
        self.asleep = True

    def wake(self) -> None:
        self.asleep = False


@contextmanager
def serving(engine: FakeEngine, *flags: str):
    """The real server around ``engine``, and its web. ``server.ended`` gets the reason in the place of an end."""
    server = Server(parse(["tiny", "--port", "0", *flags]))
    server.exit = lambda: None
    server.load(lambda: engine)
    with Web(("127.0.0.1", 0), server, secret()) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server, web.url
        finally:
            engine.gate.set()
            web.shutdown()
