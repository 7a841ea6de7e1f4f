"""The servers of a run: requests with deadlines, prompts dealt to several servers, and a server in a child process."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import torch

from qwenvl.files import cache_root
from qwenvl.rollout.engine import EngineLostError, WeightsLostError
from qwenvl.rollout.options import host_and_port
from qwenvl.vllm_server.wire import Health, Refusal, SampleAnswer, SampleRequest, WeightsRequest, pack, secret

logger = logging.getLogger(__name__)

HEALTH_SECONDS = 10.0
MARGIN_SECONDS = 10.0  # that an answer may be late: the server keeps the deadline itself
WAKE_SECONDS = 120.0
TRIES = 4  # times that prompts may be lost before the engine is
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
RETRIED = {"engine", "deadline", "busy", "asleep", "starting", "version"}
"""Refusals after which another try, or another server, may have an answer."""


class ServerLostError(Exception):
    """A server gave no answer: it is not there, it died, it raised, or it took too long."""


class ServerRestartedError(ServerLostError):
    """A server lacks the weights of a request, since it was started again."""


class ServerRefusedError(EngineLostError):
    """A server understood a request and refuses it, or its answer is wrong. No other try would change that."""


@dataclass
class Server:
    """A server by its address.

    Attributes:
        address: ``host:port``.
        boot: the process that was given weights last. None: no process was.
        version: of the weights that it was given.
        sleeps: it releases the memory of its GPU while it does not sample.
    """

    address: str
    boot: str | None = field(default=None, compare=False)
    version: int | None = field(default=None, compare=False)
    sleeps: bool = False

    @property
    def shares_memory(self) -> bool:
        """Whether it runs on this machine, so that it can read weights from a file in memory."""
        return host_and_port(self.address)[0] in ("127.0.0.1", "localhost", "::1")

    def health(self) -> Health:
        """
        Raises:
            ServerLostError: it is not there, or about to end.
            ServerRefusedError: the program that answers is no server of ours, or one of another version.
        """
        try:
            health = Health.unpack(self._request("GET", "/health", b"", HEALTH_SECONDS))
        except ValueError as error:
            raise ServerRefusedError(f"{self.address}: {error}") from None
        if health.raised is not None:
            raise ServerLostError(f"{self.address}: it is about to end: {health.raised}")
        return health

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """
        Raises:
            ServerLostError, ServerRefusedError: it has no completions.
        """
        body = self._request("POST", "/sample", pack(request), request.deadline_s)
        try:
            return SampleAnswer.unpack(body)
        except Refusal as error:
            raise ServerRefusedError(f"{self.address}: {error}") from None

    def put(self, request: WeightsRequest) -> Health:
        """Hands over weights, or a part of them."""
        return Health.unpack(self._request("POST", "/weights", pack(request), request.deadline_s))

    def sleep(self) -> None:
        """Has it release the memory of its GPU."""
        self._request("POST", "/sleep", b"", WAKE_SECONDS)

    def wake(self) -> None:
        """Has it take memory again."""
        self._request("POST", "/wake", b"", WAKE_SECONDS)

    def bring(self, version: int, give: GivesWeights | None) -> None:
        """Has the server wake, with this version of the weights.

        Raises:
            ServerLostError: it is not there, or, without ``give``, lacks the weights.
            ServerRefusedError: it does not take them, or somebody else gives it weights.
        """
        health = self.health()
        if health.asleep:
            self.wake()
        known = self.boot == health.boot
        if health.version != version:
            if known and health.version not in (self.version, None):
                raise ServerRefusedError(
                    f"{self.address}: somebody else has given it weights since: a server works for one run at a time"
                )
            if give is None:
                raise ServerRestartedError(
                    f"{self.address}: it was started again, and has not the weights of this request"
                )
            give(self, health, self.version if known and health.version is not None else None)
        self.boot, self.version = health.boot, version

    def _request(self, method: str, path: str, body: bytes, seconds: float) -> bytes:
        host, port = host_and_port(self.address)
        started = time.monotonic()
        connection = HTTPConnection(host, port, timeout=seconds + MARGIN_SECONDS)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {secret()}"})
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError:
            raise ServerLostError(
                f"{self.address}: no answer to {path} in {time.monotonic() - started:.0f} s (--vllm_deadline)"
            ) from None
        except (OSError, HTTPException) as error:
            raise ServerLostError(f"{self.address}: {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if answer.status == 200:
            return content
        refusal = Refusal.of_answer(answer.status, content)
        kind = ServerLostError if refusal.kind in RETRIED else ServerRefusedError
        raise kind(f"{self.address}: {path}: {refusal}")


# Gives a server weights, over those of a version that it has. None: all weights. Threads call it in parallel.
GivesWeights = Callable[[Server, Health, int | None], None]


class Servers:
    """The servers of a run.

    Args:
        servers: at least one.
        patience: seconds in which one of them has to come back, where none is there.
        first: the index of the server that the first prompt is dealt to.
    """

    def __init__(self, servers: Sequence[Server], *, patience: float, first: int = 0):
        self.servers = list(servers)
        self._patience, self._first = patience, first

    def ready(self, version: int, give: GivesWeights | None) -> list[Server]:
        """The servers that have this version of the weights, once there is one. Lost servers are tried again.

        Args:
            give: gives the weights to servers that have others. None: nobody can.

        Raises:
            EngineLostError: none came in time.
            WeightsLostError: without ``give``, at once: those that are there were started again.
            ServerRefusedError: one can't be used, whatever is tried.
        """
        until, pause = time.monotonic() + self._patience, FIRST_PAUSE_SECONDS
        while True:
            outcomes = _in_parallel(lambda server: server.bring(version, give), self.servers)
            lost = [each for each in outcomes if isinstance(each, ServerLostError)]
            if len(lost) < len(outcomes):
                pairs = zip(self.servers, outcomes, strict=True)
                return [server for server, outcome in pairs if not isinstance(outcome, ServerLostError)]
            reasons = "; ".join(map(str, lost))
            if any(isinstance(each, ServerRestartedError) for each in lost):
                raise WeightsLostError(reasons)
            if time.monotonic() + pause > until:
                raise EngineLostError(
                    f"no server samples any more, and none came back in {self._patience:g} s (--vllm_patience): "
                    + reasons
                )
            logger.warning(f"no server samples: {reasons}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def sleep(self) -> None:
        """Has servers sleep that share a GPU with the run. A lost one has released its memory already."""
        for server in self.servers:
            if server.sleeps:
                with suppress(ServerLostError):
                    server.sleep()

    def sample(
        self, request: SampleRequest, give: GivesWeights | None, check: Callable[..., None]
    ) -> list[tuple[Sequence[int], SampleAnswer]]:
        """The answers of the servers, each with the numbers of its prompts in ``request``.

        Which server samples a prompt depends on its number and on the servers that are there.

        Args:
            check: called with server, request and answer. It raises where the answer is wrong.

        Raises:
            EngineLostError: prompts were lost too often, or there is no server.
            ServerRefusedError: a server understood and refuses.
        """

        def answered(work: tuple[Server, Sequence[int]]) -> SampleAnswer:
            server, share = work
            own = replace(request, prompts=tuple(request.prompts[number] for number in share))
            answer = server.sample(own)
            check(server, own, answer)
            return answer

        answers: list[tuple[Sequence[int], SampleAnswer]] = []
        left, tries = list(range(len(request.prompts))), 0
        while left:
            able = self.ready(request.version, give)
            first = self._first % len(able)
            shares = [(each, left[(n - first) % len(able) :: len(able)]) for n, each in enumerate(able)]
            shares = [(server, share) for server, share in shares if share]
            outcomes = _in_parallel(answered, shares)
            for (_, share), outcome in zip(shares, outcomes, strict=True):
                if not isinstance(outcome, ServerLostError):
                    answers.append((share, outcome))
                    left = [number for number in left if number not in set(share)]
            if left:
                tries += 1
                reasons = "; ".join(str(each) for each in outcomes if isinstance(each, ServerLostError))
                if tries == TRIES:
                    raise EngineLostError(f"{len(left)} prompts were sent {TRIES} times and not answered: {reasons}")
                logger.warning(f"{len(left)} prompts were not answered and are sent again: {reasons}")
        return answers


def _in_parallel(work: Callable, items: Sequence) -> list:
    """The results of ``work``, or its ``ServerLostError``, for each item. Another error is raised."""

    def outcome(item):
        try:
            return work(item)
        except ServerLostError as error:
            return error

    with ThreadPoolExecutor(len(items)) as pool:
        return [*pool.map(outcome, items)]


ENVIRONMENT = "QWENVL_VLLM_ENV"
START_SECONDS = 900.0  # a large model from a cold disk
_OF_THE_RUN = ("TORCHELASTIC_", "ACCELERATE_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_")
_OF_PYTHON = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")


class ColocatedServer(Server):
    """A server in a child process. It is started when it is first needed, and again after it has died.

    Args:
        arguments: of the server, the model first.
        device: the GPU that it shares with this process, for which it sleeps. On a CPU it never does.
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

    def wake(self) -> None:
        """See ``Server.wake``. This process first frees memory that it caches."""
        if self.sleeps:
            torch.cuda.empty_cache()
        super().wake()

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
                start_new_session=True,  # signals to the run are not for it: it ends with this process
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
                _end(process)
                raise ServerLostError(f"the vLLM server was not ready in {START_SECONDS:g} s:\n{_last_lines(log)}")
            time.sleep(0.1)
        self.address = ready.read_text(encoding="utf-8").strip().removeprefix("http://")


def server_command() -> list[str]:
    """The command of a server in vLLM's own environment.

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
    """The variables of this process without those of the run, with its own GPU as the only one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith((*_OF_THE_RUN, *_OF_PYTHON))}
    own["PYTHONPATH"] = str(Path(__file__).parents[2])
    if device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        number = device.index if device.index is not None else torch.cuda.current_device()
        own["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
    return own


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(lines[-20:])
