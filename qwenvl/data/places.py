"""Places in a run of frames, evenly in time or evenly in change. These are pure functions of numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random


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
