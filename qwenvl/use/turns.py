"""Whose request is sampled next, and who gives up a place: a client with many requests keeps no others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from qwenvl.use.answers import Pending


class Turns:
    """The turns of clients, as fair queueing gives them: a client waits for its own earlier requests.

    Clients are told apart by their addresses, of which one may have many. So every second turn may be that of the
    oldest request: new addresses keep no old request waiting.
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

    def chosen(self, waiting: Sequence[Pending]) -> Pending:
        """The request of the earliest turn. After one that has skipped the oldest, the oldest.

        Args:
            waiting: at least one, the oldest first.
        """
        oldest = waiting[0]
        chosen = oldest if self._has_skipped else min(waiting, key=lambda each: each.turn)
        self._has_skipped = chosen is not oldest
        self._now = max(self._now, chosen.turn)
        return chosen


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
