"""The real server around an engine without a model."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file

from qwenvl.rollout.servers import Server
from qwenvl.vllm_server.server import SamplingServer, Web
from qwenvl.vllm_server.wire import SampleAnswer, SampleRequest, secret


class FakeEngine:
    """Each completion is its prompt's first token, at a log-prob of minus the number of weights that were given.

    Attributes:
        gate: cleared, sampling waits for it.
        error: raised by the next sampling.
        parameters: of the model.
    """

    architecture, max_model_len = {"vocab_size": 100}, 64
    dtype = "float32"

    def __init__(self, parameters: set[str] | None = None):
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: BaseException | None = None
        self.parameters = parameters or set()
        self.weights: dict[str, torch.Tensor] = {}
        self.asleep = False

    def sample(self, request: SampleRequest, salt: str) -> SampleAnswer:
        self.entered.set()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        rows = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        ids, logprobs = [prompt.ids[:1].tolist() for prompt in rows], [[-float(len(self.weights))] for _ in rows]
        return SampleAnswer(request.version, "", ids, logprobs, ["length"] * len(rows), cached_tokens=4)

    def load(self, path: str, *, first: bool, last: bool) -> list[str]:
        self.weights = ({} if first else self.weights) | load_file(path)
        return sorted(self.parameters - set(self.weights)) if last else []

    def sleep(self) -> None:
        self.asleep = True

    def wake(self) -> None:
        self.asleep = False


@contextmanager
def serving(engine: FakeEngine, *, sleeps: bool = False):
    """The real server around ``engine``, and a client of it. ``server.exit`` is replaced: no process ends."""
    server = SamplingServer("tiny", sleeps=sleeps)
    server.exit = lambda: None
    server.load(lambda: engine)
    with Web(("127.0.0.1", 0), server, secret()) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server, Server(urlsplit(web.url).netloc)
        finally:
            engine.gate.set()
            web.shutdown()
