"""Servers for tests: the real server around an engine without a model, and real vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file

from qwenvl.rollout.servers import Server
from qwenvl.vllm_server.server import SamplingServer, Web
from qwenvl.vllm_server.wire import Health, SampleAnswer, SampleRequest, secret

ROOT = Path(__file__).resolve().parents[2]
# Little memory, and weights as the trainer of the tests has them.
SMALL = ("--cache_gb", "0.0625", "--max_model_len", "2048", "--max_num_seqs", "16", "--dtype", "float32")


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


class ServerProcess:
    """``scripts/serve_vllm.sh``'s server with real vLLM, ready when this returns.

    Attributes:
        client: sends requests to it.
    """

    def __init__(self, python: Path, model: Path, folder: Path, *flags: str):
        self.model, self.log = model, folder / "server.log"
        ready = folder / "ready"
        ready.unlink(missing_ok=True)
        command = [python, "-m", "qwenvl.vllm_server", model, "--port", "0", *SMALL, "--with_parent", *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ENV")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command), "--ready_file", str(ready)],
                env=environment | {"PYTHONPATH": str(ROOT)},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        while not ready.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.output()[-4000:]}")
            time.sleep(0.1)
        self.client = Server(urlsplit(ready.read_text()).netloc, 300.0)

    def health(self) -> Health:
        return self.client.health()

    def output(self) -> str:
        """Its output so far."""
        return self.log.read_text()

    def kill(self) -> None:
        """As a machine without memory would. It may have ended before."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
