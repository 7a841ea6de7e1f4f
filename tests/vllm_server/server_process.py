"""The real server, as a process in the environment that scripts/serve_vllm.sh makes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from qwenvl.vllm_server.wire.health import Health
from tests.vllm_server.asking import Client

ROOT = Path(__file__).resolve().parents[2]
# Little memory, and weights as the trainer of the tests has them.
SMALL = ("--cache_gb", "0.0625", "--max_model_len", "2048", "--max_num_seqs", "16", "--dtype", "float32")


class ServerProcess:
    """``scripts/serve_vllm.sh``'s server around ``model``, ready when this returns.

    Attributes:
        url: where it listens.
        client: asks it.
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
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.said()[-4000:]}")
            time.sleep(0.1)
        self.url = ready.read_text()
        self.client = Client(self.url)

    def health(self) -> Health:
        return self.client.health()

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text()

    def kill(self) -> None:
        """As a machine without memory would. It may have ended before."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
