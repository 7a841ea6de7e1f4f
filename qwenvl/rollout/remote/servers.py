"""Several servers: prompts are dealt to them, and what a lost one did not answer is asked of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from qwenvl.rollout.engine import EngineLostError, WeightsLostError
from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError, ServerRestartedError
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.sampling import SampleAnswer

logger = logging.getLogger(__name__)

TRIES = 4  # times that prompts may be lost before the engine is
WAKE_SECONDS = 120.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0


# What gives a server weights, over those of a version that it has. None: it has the weights of nobody's choice. Threads
# call it side by side.
Hands = Callable[[Server, Health, int | None], None]


class Servers:
    """The servers of a run.

    Args:
        servers: at least one.
        patience: seconds in which one of them has to come back, where none is there.
        first: the place of the server that the first prompt is dealt to.
    """

    def __init__(self, servers: Sequence[Server], *, patience: float, first: int = 0):
        self.servers = list(servers)
        self._patience, self._first = patience, first

    def ready(self, version: int, give: Hands | None) -> list[Server]:
        """Those that have this version of the weights, once there is one. All are asked side by side, lost ones too.

        Args:
            give: gives the weights to those that have others. None: nobody can.

        Raises:
            EngineLostError: none came in time.
            WeightsLostError: without ``give``, at once: those that are there were started again.
            ServerRefusedError: one can't be used, whatever is tried.
        """
        until, pause = time.monotonic() + self._patience, FIRST_PAUSE_SECONDS
        while True:
            with ThreadPoolExecutor(len(self.servers)) as pool:
                lost = [*pool.map(lambda server: _brought(server, version, give), self.servers)]
            if able := [server for server, error in zip(self.servers, lost, strict=True) if error is None]:
                return able
            reasons = [*map(str, lost)]
            if any(isinstance(each, ServerRestartedError) for each in lost):
                raise WeightsLostError("; ".join(reasons))
            if time.monotonic() + pause > until:
                raise EngineLostError(
                    f"no server samples any more, and none came back in {self._patience:g} s (--vllm_patience): "
                    + "; ".join(reasons)
                )
            logger.warning(f"no server samples: {'; '.join(reasons)}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def sleep(self) -> None:
        """Has those sleep that share a GPU with the run. One that is lost has given its memory back already."""
        for server in self.servers:
            if server.sleeps:
                with suppress(ServerLostError):
                    server.sleep(WAKE_SECONDS)

    def sample(
        self, prompts: int, ask: Callable[[Server, Sequence[int]], SampleAnswer], version: int, give: Hands | None
    ) -> list[tuple[Sequence[int], SampleAnswer]]:
        """The answers of the servers, each with the numbers of the prompts that it is for.

        Which server is asked about a prompt is decided by its number and by which servers are there.

        Args:
            prompts: how many there are.
            ask: has a server answer the prompts with these numbers.

        Raises:
            EngineLostError: prompts were lost too often, or there is no server.
            ServerRefusedError: a server understood and refuses.
        """
        answers: list[tuple[Sequence[int], SampleAnswer]] = []
        left, tries = list(range(prompts)), 0
        while left:
            able = self.ready(version, give)
            first = self._first % len(able)
            shares = [(each, left[(n - first) % len(able) :: len(able)]) for n, each in enumerate(able)]
            shares = [(server, share) for server, share in shares if share]
            with ThreadPoolExecutor(len(shares)) as pool:
                outcomes = [*pool.map(lambda pair: _outcome(ask, *pair), shares)]
            lost = [outcome for outcome in outcomes if isinstance(outcome, ServerLostError)]
            for (_, share), outcome in zip(shares, outcomes, strict=True):
                if isinstance(outcome, SampleAnswer):
                    answers.append((share, outcome))
                    left = [number for number in left if number not in set(share)]
            if lost:
                tries += 1
                words = "; ".join(map(str, lost))
                if tries == TRIES:
                    raise EngineLostError(f"{len(left)} prompts were asked {TRIES} times and not answered: {words}")
                logger.warning(f"{len(left)} prompts were not answered and are asked again: {words}")
        return answers


def _outcome(
    ask: Callable[[Server, Sequence[int]], SampleAnswer], server: Server, share: Sequence[int]
) -> SampleAnswer | ServerLostError:
    try:
        return ask(server, share)
    except ServerLostError as error:
        return error


def _brought(server: Server, version: int, give: Hands | None) -> ServerLostError | None:
    """Has a server have this version of the weights. Return why it is lost, or None.

    Raises:
        ServerRefusedError: it does not take them, or somebody else gives it weights.
    """
    try:
        _bring(server, version, give)
    except ServerLostError as error:
        return error
    return None


def _bring(server: Server, version: int, give: Hands | None) -> None:
    health = server.health()
    if health.asleep:
        server.wake(WAKE_SECONDS)
    known = server.boot == health.boot
    if health.version != version:
        if known and health.version not in (server.version, None):
            raise ServerRefusedError(
                f"{server.address}: somebody else has given it weights since: a server works for one run at a time"
            )
        if give is None:
            raise ServerRestartedError(
                f"{server.address}: it was started again, and has not the weights of this request"
            )
        give(server, health, server.version if known and health.version is not None else None)
    server.boot, server.version = health.boot, version
