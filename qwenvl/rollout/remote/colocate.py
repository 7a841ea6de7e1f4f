"""From the options to an engine of servers, and a server that a process of the run starts itself, on its own GPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from qwenvl.files import cache_root
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import SamplingOptions
from qwenvl.rollout.remote.engine import VllmEngine
from qwenvl.rollout.remote.link import Links
from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError
from qwenvl.rollout.remote.servers import Servers
from qwenvl.vllm_server.wire.health import Health

ENVIRONMENT = "QWENVL_VLLM_ENV"
START_SECONDS = 900.0  # a large model from a cold disk
_OF_THE_RUN = ("TORCHELASTIC_", "ACCELERATE_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_")
_OF_PYTHON = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")


def remote_engine(
    options: SamplingOptions,
    local: LocalEngine,
    *,
    model: str,
    process: int,
    device: torch.device,
    dtype: torch.dtype,
    max_tokens: int | None,
) -> VllmEngine:
    """The servers that the options name, or one of this process's own.

    Args:
        local: the engine that samples from the policy itself.
        model: the checkpoint that a server of one's own is started with.
        process: the number of this process. Its first prompt is dealt to the server of this number.
        device: of the policy. A server of one's own shares it.
        dtype: that it computes in.
        max_tokens: of a prompt and its completion. None: not known.

    Raises:
        FileNotFoundError: there is no environment of vLLM to start one in.
        ValueError: there is no checkpoint to start one with.
    """
    deadline, patience = options.vllm_deadline, options.vllm_patience
    if options.rollout_engine == "vllm_server":
        servers = Servers([Server(each) for each in options.vllm_server or []], patience=patience, first=process)
        links = Links(device, deadline) if options.vllm_weights == "direct" else None
        return VllmEngine(local, servers, deadline=deadline, links=links)
    if not model:
        raise ValueError(
            "--rollout_engine vllm_colocate starts vLLM with the policy's checkpoint, and this model is of none: save "
            "it first, and give the folder as --model_name_or_path"
        )
    arguments = [model, "--dtype", str(dtype).removeprefix("torch.")]
    if device.type == "cuda":
        arguments += ["--gpu_memory_utilization", str(options.vllm_gpu_memory)]
    if max_tokens is not None:
        arguments += ["--max_model_len", str(max_tokens)]
    own = ColocatedServer(arguments, device)
    return VllmEngine(local, Servers([own], patience=patience), deadline=deadline, own=True)


class ColocatedServer(Server):
    """A server in a child process. It is started when it is first needed, and again after it has died.

    Args:
        arguments: of the server, the model first.
        device: the GPU that it shares with this process. It then sleeps when it is told to. On a CPU it never does.
        command: that the arguments are added to.
    """

    def __init__(self, arguments: Sequence[str], device: torch.device, command: Sequence[str] | None = None):
        super().__init__("127.0.0.1:1")
        self.sleeps = device.type == "cuda"
        self._device = device
        self._process: subprocess.Popen | None = None
        self._command = [*(server_command() if command is None else command), *arguments, "--port", "0"]
        self._command += ["--with_parent", *(["--sleeps"] if self.sleeps else [])]
        self._folder = tempfile.TemporaryDirectory(prefix="qwenvl-vllm-")

    def health(self) -> Health:
        """See ``Server.health``. The process is started where none runs."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return super().health()

    def wake(self, seconds: float) -> None:
        """See ``Server.wake``. Memory that this process holds and does not use is there for the server first."""
        if self.sleeps:
            torch.cuda.empty_cache()
        super().wake(seconds)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            _end(self._process)

    def _start(self) -> None:
        ready, log = (Path(self._folder.name) / name for name in ("ready", "log"))
        ready.unlink(missing_ok=True)
        if self.sleeps:
            torch.cuda.empty_cache()
        with open(log, "ab") as written:
            process = subprocess.Popen(
                [*self._command, "--ready_file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=_environment(self._device),
                start_new_session=True,  # signals to the run are not for it: it follows this process
            )
        self._process = process
        weakref.finalize(self, _end, process)  # at the end of this process too
        until = time.monotonic() + START_SECONDS
        while not ready.is_file():
            if process.poll() is not None:
                raise ServerRefusedError(
                    f"the vLLM server of this process ended with status {process.returncode} while it started. "
                    f"Its last lines:\n{_last_lines(log)}"
                )
            if time.monotonic() > until:
                self.end()
                raise ServerLostError(f"the vLLM server was not ready in {START_SECONDS:g} s:\n{_last_lines(log)}")
            time.sleep(0.1)
        self.address = ready.read_text(encoding="utf-8").strip().removeprefix("http://")


def server_command() -> list[str]:
    """How a server is started from vLLM's own environment.

    Raises:
        FileNotFoundError: there is no such environment yet.
    """
    folder = Path(os.environ.get(ENVIRONMENT) or cache_root() / "vllm")
    python = folder / "bin" / "python"
    if not python.is_file():
        raise FileNotFoundError(
            f"{python}: no such file; vLLM has an environment of its own, which this makes: "
            f"bash scripts/serve_vllm.sh --build (or name one in ${ENVIRONMENT})"
        )
    return [str(python), "-m", "qwenvl.vllm_server"]


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _environment(device: torch.device) -> dict[str, str]:
    """The variables of this process without what concerns the run, with its own GPU as the only one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*_OF_THE_RUN, *_OF_PYTHON))}
    kept["PYTHONPATH"] = str(Path(__file__).parents[3])
    if device.type == "cuda":
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        number = device.index if device.index is not None else torch.cuda.current_device()
        kept["CUDA_VISIBLE_DEVICES"] = seen.split(",")[number] if seen else str(number)
    return kept


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(lines[-20:])
