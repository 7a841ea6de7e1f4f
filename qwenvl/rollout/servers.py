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
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import torch

from qwenvl.console import say
from qwenvl.files import cache_root
from qwenvl.rollout.engine import EngineLostError, WeightsLostError
from qwenvl.rollout.options import host_and_port
from qwenvl.vllm_server.wire import (
    AGAIN,
    Health,
    Message,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    pack,
    require,
    secret,
    unpack,
)

logger = logging.getLogger(__name__)

HEALTH_SECONDS = 10.0
MARGIN_SECONDS = 10.0  # that an answer may be late: the server keeps the deadline itself
SLEEP_SECONDS = 120.0
TRIES = 4  # times that prompts may be lost before the engine is
FIRST_PAUSE_SECONDS = 0.25  # between two looks for a server; each next one is twice as long
LONGEST_PAUSE_SECONDS = 10.0


class ServerLostError(Exception):
    """A server gave no answer: it is not there, it died, it raised, it took too long, or it lacks the weights."""


class ServerRefusedError(EngineLostError):
    """A server understood a request and refuses it, or is none of ours. No other try would change that."""


@dataclass(eq=False)
class Server:
    """A server by its address.

    Attributes:
        address: ``host:port``.
        deadline: seconds that it may take for completions, or for a part of the weights.
        version: of the weights that it had when it answered last.
        sleeps: it releases the memory of its GPU while it does not sample.
    """

    address: str
    deadline: float = 600.0
    version: int | None = None
    sleeps: bool = False

    @property
    def shares_memory(self) -> bool:
        """Whether it runs on this machine, so that it can read weights from a file in memory."""
        return host_and_port(self.address)[0] in ("127.0.0.1", "localhost", "::1")

    def health(self) -> Health:
        """The state of the server, as it reports it.

        Raises:
            ServerLostError: it is not there, or about to end.
            ServerRefusedError: the program that answers is no server of ours, or one of another version.
        """
        health = self._request("GET", "/health", Health, HEALTH_SECONDS)
        self.version = health.version
        return health

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """The server's completions of the prompts of a request.

        Raises:
            ServerLostError: see ``health``.
            ServerRefusedError: see ``health``, or the answer is none to the request.
        """
        answer = self._request("POST", "/sample", SampleAnswer, self.deadline, pack(request))
        if problem := answer.problem(request):
            raise ServerRefusedError(f"{self.address}: /sample: {problem}")
        return answer

    def put(self, request: WeightsRequest) -> int | None:
        """Hands over a part of the weights. Returns the version that the server then has."""
        self.version = self._request("POST", "/weights", Health, self.deadline, pack(request)).version
        return self.version

    def sleep(self) -> None:
        """Has it release the memory of its GPU. The next request wakes it."""
        self._request("POST", "/sleep", Health, SLEEP_SECONDS)

    def _request(self, method: str, path: str, kind: type[Message], seconds: float, body: bytes = b"") -> Message:
        host, port = host_and_port(self.address)
        try:
            token = secret()
        except Refusal as refusal:
            raise ServerRefusedError(str(refusal)) from None
        started = time.monotonic()
        connection = HTTPConnection(host, port, timeout=seconds + MARGIN_SECONDS)
        try:
            headers = {"Authorization": f"Bearer {token}", "Deadline": f"{seconds:.3f}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            after = f"{time.monotonic() - started:.0f} of at most {seconds:g} s"
            reason = f"{type(error).__name__}: {error}"
            raise ServerLostError(f"{self.address}: no answer to {path} after {after}: {reason}") from None
        finally:
            connection.close()
        reason = content[:1000].decode(errors="replace")
        if answer.status == AGAIN:
            raise ServerLostError(f"{self.address}: {path}: {reason}")
        try:
            require(answer.status == 200, f"HTTP {answer.status}: {reason}")
            return unpack(kind, content)
        except Refusal as refusal:
            raise ServerRefusedError(f"{self.address}: {path}: {refusal}") from None


# Gives weights to servers with this health. Returns the errors of those that were lost.
GivesWeights = Callable[[Sequence[tuple[Server, Health]]], list[ServerLostError]]


class Servers:
    """The servers of a run.

    Args:
        servers: at least one.
        patience: seconds in which one of them has to come back, where none is there.
        first: the index of the server that the first prompt is dealt to.
    """

    def __init__(self, servers: Sequence[Server], *, patience: float, first: int = 0):
        self.servers = list(servers)
        self._patience = patience
        self._first = first

    def ready(self, version: int, give: GivesWeights | None) -> list[Server]:
        """The servers that have this version of the weights, once there is one. Lost servers are tried again.

        Args:
            give: gives the weights to servers that have others. None: nobody can.

        Raises:
            EngineLostError: none came in time.
            WeightsLostError: without ``give``, at once: a server was started again.
            ServerRefusedError: one can't be used.
        """
        until = time.monotonic() + self._patience
        pause = FIRST_PAUSE_SECONDS
        while True:
            there: list[tuple[Server, Health]] = []
            lost: list[ServerLostError] = []
            outcomes = in_parallel(lambda server: server.health(), self.servers)
            for server, outcome in zip(self.servers, outcomes, strict=True):
                if isinstance(outcome, ServerLostError):
                    lost.append(outcome)
                else:
                    there.append((server, outcome))
            stale = [(server, health) for server, health in there if health.version != version]
            if stale:
                if give is None:
                    addresses = ", ".join(server.address for server, _ in stale)
                    raise WeightsLostError(f"{addresses}: started again, and without the weights of this request")
                lost += give(stale)
            able = [server for server, _ in there if server.version == version]
            if able:
                return able
            reasons = "; ".join(map(str, lost))
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

    def sample(self, request: SampleRequest, give: GivesWeights | None) -> list[tuple[Sequence[int], SampleAnswer]]:
        """The answers of the servers, each with the numbers of its prompts in ``request``.

        Which server samples a prompt depends on its number and on the servers that are there.

        Raises:
            EngineLostError: prompts were lost too often, or there is no server.
            ServerRefusedError: a server understood and refuses.
        """

        def answered(work: tuple[Server, Sequence[int]]) -> SampleAnswer:
            server, share = work
            prompts = [request.prompts[number] for number in share]
            return server.sample(replace(request, prompts=prompts))

        answers: list[tuple[Sequence[int], SampleAnswer]] = []
        left = list(range(len(request.prompts)))  # numbers of the prompts without an answer
        reasons = ""
        for _ in range(TRIES):
            if reasons:
                logger.warning(f"{len(left)} prompts were not answered and are sent again: {reasons}")
            able = self.ready(request.version, give)
            first = self._first % len(able)
            shares = []
            for n, server in enumerate(able):
                # Dealt in turn, beginning with the server ``first``.
                share = left[(n - first) % len(able) :: len(able)]
                if share:
                    shares.append((server, share))
            outcomes = in_parallel(answered, shares)
            lost = []
            for (_, share), outcome in zip(shares, outcomes, strict=True):
                if isinstance(outcome, ServerLostError):
                    lost.append(str(outcome))
                else:
                    answers.append((share, outcome))
                    left = [number for number in left if number not in share]
            if not left:
                return answers
            reasons = "; ".join(lost)
        raise EngineLostError(f"{len(left)} prompts were sent {TRIES} times and not answered: {reasons}")


def in_parallel(work: Callable, items: Sequence) -> list:
    """The results of ``work``, or its ``ServerLostError``, for each item. Another error is raised."""

    def outcome(item):
        try:
            return work(item)
        except ServerLostError as error:
            return error

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(outcome, items))


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

    def __init__(
        self,
        arguments: Sequence[str],
        device: torch.device,
        deadline: float = 600.0,
        command: Sequence[str] | None = None,
    ):
        # The server takes a free port (--port 0), and its address is known once it has started.
        super().__init__("127.0.0.1:1", deadline, sleeps=device.type == "cuda")
        self._device = device
        self._process: subprocess.Popen | None = None
        program = server_command() if command is None else command
        self._command = [*program, *arguments, "--port", "0", "--with_parent", str(os.getpid())]
        if self.sleeps:
            self._command.append("--sleeps")
        self._folder = tempfile.TemporaryDirectory(prefix="qwenvl-vllm-")
        # The server needs this package, and none of those that may be installed beside it.
        self._packages = Path(self._folder.name, "packages")
        self._packages.mkdir()
        (self._packages / "qwenvl").symlink_to(Path(__file__).parents[1], target_is_directory=True)

    def health(self) -> Health:
        """See ``Server.health``. The process is started where none runs, and the memory freed that this one caches."""
        if self.sleeps:
            torch.cuda.empty_cache()
        if self._process is None or self._process.poll() is not None:
            self._start()
        return super().health()

    def _start(self) -> None:
        ready = Path(self._folder.name, "ready")
        log = Path(self._folder.name, "log")
        ready.unlink(missing_ok=True)
        began = time.monotonic()
        say(f"starting vLLM, which takes up to some minutes; what it prints is in {log}")
        with open(log, "ab") as written:
            process = subprocess.Popen(
                [*self._command, "--ready_file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=_environment(self._device, self._packages),
                start_new_session=True,  # signals to the run are not for it: it ends with this process
            )
        self._process = process
        weakref.finalize(self, _end, process)  # at the end of this process too
        until = time.monotonic() + START_SECONDS
        while not ready.is_file():
            if process.poll() is not None or time.monotonic() > until:
                _end(process)
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise ServerRefusedError(
                    f"the vLLM server of this process did not start: status {process.returncode}, at most "
                    f"{START_SECONDS:g} s. Its last lines:\n" + "\n".join(lines[-20:])
                )
            time.sleep(0.1)
        self.address = ready.read_text(encoding="utf-8").strip().removeprefix("http://")
        say(f"vLLM has started after {time.monotonic() - began:.0f} s")


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


def _environment(device: torch.device, packages: Path) -> dict[str, str]:
    """The variables of this process without those of the run, with its own GPU as the only one.

    Args:
        packages: a folder that holds this package.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith((*_OF_THE_RUN, *_OF_PYTHON))}
    own["PYTHONPATH"] = str(packages)
    if device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        number = device.index if device.index is not None else torch.cuda.current_device()
        own["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
    return own
