"""The seconds of a clip that a record names (``meta.spans``) as frames, and how many of them each span gets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from qwenvl.data.errors import FramePlanError

SLACK_SECONDS = 1.0
"""How far a span may end after its clip: annotations are rounded."""

Spans = Sequence[tuple[float, float]]
"""Starts and ends in seconds, rising, that do not overlap."""


def frames_of_spans(spans: Spans, times: Sequence[float], duration: float) -> list[tuple[int, int]]:
    """Return the first frame of each span, and the one after its last.

    A frame belongs to a span if it is shown at its start, at its end or between them. One that is shown where a span
    ends and the next begins belongs to the earlier one.

    Args:
        times: when each frame is shown, in seconds.
        duration: of the clip, in seconds.

    Raises:
        FramePlanError: a span ends after the clip, or no frame is shown in it.

    Example:
        >>> frames_of_spans([(0.5, 1.0), (3.0, 3.5)], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5], 4.0)
        [(1, 3), (6, 8)]
    """
    stretches: list[tuple[int, int]] = []
    done = 0
    for number, (start, end) in enumerate(spans):
        if start > times[-1] or end > duration + SLACK_SECONDS:
            raise FramePlanError(
                f"meta.spans[{number}] is {start:g} to {end:g} s, but the clip ends at {duration:.3f} s: correct the "
                "span or the clip"
            )
        first, stop = max(done, bisect_left(times, start)), bisect_right(times, end)
        if first >= stop:
            raise FramePlanError(f"meta.spans[{number}]: no frame is shown from {start:g} to {end:g} s: make it longer")
        stretches.append((first, stop))
        done = stop
    return stretches


def pairs_of_each(stretches: Sequence[tuple[int, int]], pairs: int) -> list[int]:
    """Return how many pairs of frames each stretch gives, ``pairs`` in all where there are so many.

    Each gives one. Each further one comes from the stretch with the most frames for each pair that it gives so far,
    the first of several, but none gives more pairs than it has frames for.

    Example:
        >>> pairs_of_each([(0, 30), (40, 50)], 4)  # 30 and 10 frames: 30 / 1, then 30 / 2, then 10 / 1 = 30 / 3
        [3, 1]
    """
    lengths = [stop - first for first, stop in stretches]
    given = [1] * len(lengths)
    for _ in range(pairs - len(lengths)):
        room = [number for number, length in enumerate(lengths) if 2 * given[number] < length]
        if not room:
            break
        given[max(room, key=lambda number: lengths[number] / given[number])] += 1
    return given
