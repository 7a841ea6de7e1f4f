"""One server that samples: requests with deadlines, and what an answer or its absence means."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

from qwenvl.rollout.engine import EngineLostError
from qwenvl.rollout.options import host_and_port
from qwenvl.vllm_server.wire.body import Refusal, secret
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.link import LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest

HEALTH_SECONDS = 10.0
MARGIN_SECONDS = 10.0  # that an answer may be late: the server keeps the deadline itself
_PASSES = {
    "engine",
    "deadline",
    "busy",
    "asleep",
    "starting",
    "version",
    "link",
}  # another try, or another server, may have an answer


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
        sleeps: it gives back the memory of its GPU while it does not sample.
    """

    address: str
    boot: str | None = field(default=None, compare=False)
    version: int | None = field(default=None, compare=False)
    sleeps: bool = False

    @property
    def shares_memory(self) -> bool:
        """Whether it runs on this host, so that weights can be handed over as a file."""
        return host_and_port(self.address)[0] in ("127.0.0.1", "localhost", "::1")

    def health(self) -> Health:
        """What it is and how it fares.

        Raises:
            ServerLostError: it is not there, or about to end.
            ServerRefusedError: what answers is no server of ours, or one of another version.
        """
        try:
            health = Health.unpack(self._ask("GET", "/health", b"", HEALTH_SECONDS))
        except ValueError as error:
            raise ServerRefusedError(f"{self.address}: {error}") from None
        if health.raised is not None:
            raise ServerLostError(f"{self.address}: it is about to end: {health.raised}")
        return health

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """Completions.

        Raises:
            ServerLostError, ServerRefusedError: it has none.
        """
        return self._read(SampleAnswer.unpack, self._ask("POST", "/sample", request.pack(), request.deadline_s))

    def put(self, request: WeightsRequest, seconds: float) -> WeightsAnswer:
        """Hands over weights, or a part of them."""
        return self._read(WeightsAnswer.unpack, self._ask("POST", "/weights", request.pack(), seconds))

    def join(self, request: LinkRequest, seconds: float) -> None:
        """Has it take part in a link for weights."""
        self._ask("POST", "/link", request.pack(), seconds)

    def sleep(self, seconds: float) -> None:
        """Has it give back the memory of its GPU."""
        self._ask("POST", "/sleep", b"", seconds)

    def wake(self, seconds: float) -> None:
        """Has it take memory again."""
        self._ask("POST", "/wake", b"", seconds)

    def _read(self, unpack, body: bytes):
        try:
            return unpack(body)
        except (Refusal, ValueError, TypeError) as error:
            raise ServerRefusedError(f"{self.address}: {error}") from None

    def _ask(self, method: str, path: str, body: bytes, seconds: float) -> bytes:
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
        kind = ServerLostError if refusal.kind in _PASSES else ServerRefusedError
        raise kind(f"{self.address}: {path}: {refusal}")
