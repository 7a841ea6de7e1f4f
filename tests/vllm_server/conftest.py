"""Servers with real vLLM, for the tests marked so."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qwenvl.rollout.servers import Server
from qwenvl.vllm_server.wire import Health

ROOT = Path(__file__).resolve().parents[2]
# Little memory, and weights as the trainer of the tests has them.
SMALL = ("--cache_gb", "0.0625", "--max_model_len", "2048", "--max_num_seqs", "16", "--dtype", "float32")


class ServerProcess:
    """``scripts/serve_vllm.sh``'s server with real vLLM, ready when this returns.

    Attributes:
        client: sends requests to it.
    """

    def __init__(self, python: Path, model: Path, folder: Path, *flags: str):
        self.model, self.log = model, folder / "server.log"
        ready = folder / "ready"
        ready.unlink(missing_ok=True)
        own = ["--port", "0", "--with_parent", str(os.getpid())]
        command = [python, "-m", "qwenvl.vllm_server", model, *SMALL, *own, *flags]
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


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The python of the server's environment, which ``scripts/test.sh --vllm`` makes before the tests."""
    python = Path(os.environ["QWENVL_VLLM_ENV"]) / "bin" / "python"
    assert python.exists(), f"{python} is missing: run bash scripts/test.sh --vllm, which makes the environment"
    return python


@pytest.fixture(scope="module")
def start_server(vllm_python, tmp_path_factory) -> Callable[..., ServerProcess]:
    """``start_server(folder of a checkpoint, flags...)``. All that it started are killed after the module."""
    started = []

    def start(model: Path, *flags: str) -> ServerProcess:
        started.append(ServerProcess(vllm_python, model, tmp_path_factory.mktemp("server"), *flags))
        return started[-1]

    yield start
    for each in started:
        each.kill()
