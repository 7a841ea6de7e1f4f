"""Places in a run of frames, evenly in time or evenly in change. These are pure functions of numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random
from typing import NamedTuple

LOOKS_PER_SECOND = 4
"""How often a clip is looked at to see where it changes."""
FEWEST_LOOKS = 64
"""How often at least, where the clip has so many frames."""


class Looks(NamedTuple):
    """How much a clip changes between some of its frames.

    Attributes:
        frames: their numbers, rising.
        change: for each, how much its picture differs from that of the one before, in any unit. 0 for the first.
    """

    frames: Sequence[int]
    change: Sequence[int]

    def within(self, first: int, stop: int) -> Looks:
        """The looks at the frames from ``first`` to before ``stop``, whose numbers are then counted from ``first``."""
        start, end = bisect_left(self.frames, first), bisect_left(self.frames, stop)
        change = [0, *self.change[start + 1 : end]] if start < end else []
        return Looks([frame - first for frame in self.frames[start:end]], change)


def places(frame_count: int, n: int, draw: Random | None = None, looks: Looks | None = None) -> list[int]:
    """Return at most ``n`` rising frame numbers of a run of ``frame_count`` frames.

    Without ``looks`` they lie evenly in time: ``uniform_indices``, or ``stratified_indices`` with ``draw``. With looks
    they lie evenly in what changes, as ``even_in_change`` says. With ``draw`` the run is cut into ``n`` stretches of
    equal change, and one random frame is taken from each. Where the run has no more than ``n`` looks they choose
    nothing, and frames lie evenly in time.
    """
    if looks is None or len(looks.frames) <= n:
        return uniform_indices(frame_count, n) if draw is None else stratified_indices(frame_count, n, draw)
    if draw is None:
        return [looks.frames[i] for i in even_in_change(looks.change, n)]
    weights, part = levelled(looks.change, n)
    sums = [0, *accumulate(weights)]
    inner = [looks.frames[bisect_right(sums, part * i) - 1] for i in range(1, n)]
    return [draw.randrange(start, end) for start, end in pairwise([0, *inner, frame_count])]


def uniform_indices(frame_count: int, n: int) -> list[int]:
    """Return at most ``n`` rising frame numbers, evenly spaced from the first frame to the last.

    For n = 1 it is the middle one.
    """
    n = min(n, frame_count)
    if n == 1:
        return [(frame_count - 1) // 2]
    last, gaps = frame_count - 1, n - 1
    return [(2 * i * last + gaps) // (2 * gaps) for i in range(n)]  # i * last / gaps, rounded half up


def stratified_indices(frame_count: int, n: int, draw: Random) -> list[int]:
    """Return at most ``n`` rising frame numbers, one at random from each of ``n`` equal stretches of the frames."""
    n = min(n, frame_count)
    stretches = pairwise(frame_count * i // n for i in range(n + 1))
    return [draw.randrange(start, end) for start, end in stretches]


def even_in_change(change: Sequence[int], n: int) -> list[int]:
    """Return ``n`` rising places, fewer than there are, with as much change between each two neighbours.

    Half of what counts as change is time, so that neighbours are at most about twice as far apart as evenly spaced
    ones. A single change counts as much as one gap between two places, however large it is, so that a cut takes one of
    them and not many. Where all changes are equal the places are those of ``uniform_indices``.

    Args:
        change: at each place how much has changed since the one before. That of the first is not read.

    Example:
        >>> even_in_change([0, 0, 0, 0, 0, 9, 0, 0, 0, 0], 4)  # a cut between places 4 and 5
        [0, 4, 5, 9]
    """
    weights, step = levelled(change[1:], max(1, n - 1))
    sums = [0, *accumulate(weights)]
    wanted = [step * i for i in range(n)] if n > 1 else [step // 2]
    chosen = []
    for value in wanted:
        after = bisect_left(sums, value)
        nearer_before = after > 0 and value - sums[after - 1] < sums[after] - value
        chosen.append(after - nearer_before)
    return chosen


def levelled(change: Sequence[int], parts: int) -> tuple[list[int], int]:
    """Return what each change weighs where all are cut into ``parts`` of equal weight, and the weight of a part.

    The weight of a change is its share of all changes plus 1 / their number, for time. What exceeds a part is lowered
    to a part. So a part is the weight r of all changes that are not lowered, divided by the number of parts that are
    left for them: with m of them lowered, r / (parts - m). All weights are multiplied by the same number so that they
    are whole.

    Args:
        change: at least ``parts`` of them.

    Example:
        >>> levelled([0, 8, 0], 2)  # shares 1/3, 1 + 1/3, 1/3: the second is lowered to the 2/3 of the others
        ([8, 16, 8], 16)
    """
    total = sum(change)
    weights = [len(change) * each + total for each in change] if total else [1] * len(change)
    left, lowered = sum(weights), 0
    for weight in sorted(weights, reverse=True):
        if weight * (parts - lowered) <= left:
            break
        left -= weight
        lowered += 1
    return [min(weight * (parts - lowered), left) for weight in weights], left
