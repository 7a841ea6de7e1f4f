"""Places of requests at the server, and the memory that their bodies take. Where there is none, one gives way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from qwenvl.use.chat_request import ApiError, Patience
from qwenvl.use.options import ServeOptions
from qwenvl.use.turns import gives_a_place

MOST_BODIES = 2 * 2**30  # bytes of the bodies that are being received or parsed
LONG_ARRIVAL_SECONDS = 2.0  # a request that is received or fetched for longer gives way where others find no room


@dataclass(eq=False)
class Arrival:
    """A request that waits: for its client to send the body, for a machine that has its media, or for slow media.

    Attributes:
        patience: of the request.
        began: when it began to wait.
        held: bytes so far, of the body or of what is fetched for it.
        complete: whether the body is there, and is being parsed.
    """

    patience: Patience
    began: float
    held: int = 0
    complete: bool = False


class Places:
    """The requests that are received, read, wait or are sampled: at most ``--max_waiting`` that somebody waits for.

    Args:
        sampled: gives the requests in the batch that is sampled. They keep their places.
    """

    def __init__(self, limits: ServeOptions, sampled: Callable[[], Collection[Patience]]) -> None:
        self._limits = limits
        self._sampled = sampled
        self._requests: list[Patience] = []  # in the order in which they came
        self._arrivals: list[Arrival] = []

    @property
    def count(self) -> int:
        """How many requests there are. One that has ended counts until its place is free."""
        return len(self._requests)

    @property
    def clients(self) -> set[str]:
        """The clients that have requests."""
        return {each.client for each in self._requests}

    @contextmanager
    def place(self, client: str) -> Iterator[Patience]:
        """A place for a request of a client, and the request's time, which begins now.

        Raises:
            ApiError: all places are taken, and nobody gives way.
        """
        taken = sum(not each.gone for each in self._requests)
        if taken >= self._limits.max_waiting:
            has_place = self._end_slowest_arrival() or self._end_newest_of_largest_client(client)
            if not has_place:
                raise ApiError(429, f"{taken} requests wait already (--max_waiting); try again later")
        patience = Patience(self._limits.max_seconds, client)
        self._requests.append(patience)
        try:
            yield patience
        finally:
            patience.end(ApiError(499, "the client is gone"))
            self._requests.remove(patience)

    @contextmanager
    def arriving(self, patience: Patience) -> Iterator[Arrival]:
        """Notes that a request waits for others, and may have to give way."""
        arrival = Arrival(patience, monotonic())
        self._arrivals.append(arrival)
        try:
            yield arrival
        finally:
            self._arrivals.remove(arrival)

    def add_bytes(self, arrival: Arrival, more: int) -> None:
        """Count the bytes of a body, or of a medium that is fetched for one, against those of all requests.

        Raises:
            ApiError: there is no room for them.
        """
        arrival.held += more
        held = sum(each.held for each in [*self._arrivals] if not each.patience.gone)  # media come in other threads
        if held > MOST_BODIES and not self._end_slowest_arrival():
            raise ApiError(429, "other requests take the memory of this one; try again later")
        arrival.patience.check()  # it may be the one that gives way

    def end_all(self, reason: str) -> None:
        """Nobody waits any more for any request."""
        for patience in self._requests:
            patience.end(ApiError(503, reason))

    def _end_slowest_arrival(self) -> bool:
        """End the request that has waited for others for the longest time, and say whether one has waited for long.

        Else clients that send as slowly as is allowed would keep everybody out: their requests cost them nothing.
        """
        waiting = [each for each in [*self._arrivals] if not each.complete and not each.patience.gone]
        oldest = min(waiting, key=lambda each: each.began, default=None)
        if oldest is None or monotonic() - oldest.began < LONG_ARRIVAL_SECONDS:
            return False
        reason = "this request takes long to come or to read, and others wait; try again later"
        oldest.patience.end(ApiError(429, reason))
        return True

    def _end_newest_of_largest_client(self, client: str) -> bool:
        """End the newest request of another client than this one, if that has most of the places, and say whether."""
        there = [each for each in self._requests if not each.gone]
        other = gives_a_place(client, Counter(each.client for each in there))
        sampled = self._sampled()
        waiting = [each for each in there if each.client == other and each not in sampled]
        if not waiting:
            return False
        waiting[-1].end(ApiError(429, "other clients wait, and this one has most of the requests; try again later"))
        return True
