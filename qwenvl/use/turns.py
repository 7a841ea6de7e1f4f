"""Clients take turns: at the threads that read their requests, at the model, and at places where all are taken.

A client is told by its address, of which one may have many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

Some = TypeVar("Some")


class Waiting(Protocol):
    """What waits for its turn."""

    turn: int


Waits = TypeVar("Waits", bound=Waiting)


class Turns:
    """Turns as fair queueing gives them: a client waits for its own earlier requests, and not for all of another's.

    Every second turn may be that of the oldest request, so that many new addresses keep no old request waiting.
    """

    def __init__(self) -> None:
        self._now = 0  # the turn of the request that was chosen last
        self._newest: dict[str, int] = {}  # of each client's newest request
        self._has_skipped = False  # the oldest request, for one of an earlier turn

    def of_next(self, client: str, asking: Collection[str]) -> int:
        """The turn of a client's next request.

        Args:
            asking: the clients that have requests.
        """
        self._newest = {each: turn for each, turn in self._newest.items() if each in asking}
        self._newest[client] = max(self._now, self._newest.get(client, -1) + 1)
        return self._newest[client]

    def chosen(self, waiting: Sequence[Waits]) -> Waits:
        """The request of the earliest turn. After one that has skipped the oldest, the oldest.

        Args:
            waiting: at least one, the oldest first.
        """
        oldest = waiting[0]
        chosen = oldest if self._has_skipped else min(waiting, key=lambda each: each.turn)
        self._has_skipped = chosen is not oldest
        self._now = max(self._now, chosen.turn)
        return chosen


@dataclass(eq=False)
class _Work:
    """Work that waits for a thread.

    Attributes:
        may_begin: set when it has one.
    """

    client: str
    turn: int
    may_begin: asyncio.Event = field(default_factory=asyncio.Event)


class FairPool:
    """Threads at which clients take turns."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._turns = Turns()
        self._waiting: list[_Work] = []
        self._running: Counter[str] = Counter()  # by client

    async def run(self, client: str, work: Callable[..., Some], *arguments: Any) -> Some:
        """The result of work that one of the threads does. What a thread has begun it ends, also where nobody waits."""
        asking = {each.client for each in self._waiting} | self._running.keys()
        own = _Work(client, self._turns.of_next(client, asking))
        self._waiting.append(own)
        self._begin()
        try:
            await own.may_begin.wait()
        except asyncio.CancelledError:
            if own in self._waiting:
                self._waiting.remove(own)
            else:  # it was given a thread in the same moment
                self._end(client)
            raise
        loop = asyncio.get_running_loop()
        running = self._pool.submit(work, *arguments)
        # When the thread is free, and not when nobody waits for it any more: it cannot be interrupted.
        running.add_done_callback(lambda _: _call_in(loop, partial(self._end, client)))
        return await asyncio.wrap_future(running)

    def shutdown(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free and self._waiting:
            chosen = self._turns.chosen(self._waiting)
            self._waiting.remove(chosen)
            self._free -= 1
            self._running[chosen.client] += 1
            chosen.may_begin.set()

    def _end(self, client: str) -> None:
        self._free += 1
        self._running[client] -= 1
        self._running = +self._running  # without clients that have none left
        self._begin()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Has something called by a loop, from another thread. Nothing once the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def gives_a_place(to: str, places: Counter[str]) -> str | None:
    """The client that gives one of its places to another: one that has most of them, and two more. None: nobody does.

    Args:
        places: how many each client has.

    Example:
        >>> gives_a_place("b", Counter(a=3)), gives_a_place("b", Counter(a=2, b=1))
        ('a', None)
    """
    [(client, count)] = places.most_common(1)
    has_most = 2 * count > places.total()
    return client if has_most and count >= places[to] + 2 else None
