"""A curve in one line of text: ▁▂▄▆█."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
MOST = 64  # points that a series keeps


class Series:
    """The values of a metric since the run began, as at most 64 means of neighbours: adding one is cheap.

    Example:
        >>> series = Series(most=2)
        >>> for value in (1.0, 3.0, 5.0):
        ...     series.add(value)
        >>> series.points, series.last
        ([2.0, 5.0], 5.0)
    """

    def __init__(self, most: int = MOST):
        """``most``: points that are kept, an even number."""
        self.last: float | None = None
        self._most, self._size = most, 1  # values of a point
        self._points: list[float] = []
        self._open: list[float] = []  # values of the next point

    def add(self, value: float) -> None:
        """One more value. What is not finite is the last value and no point."""
        self.last = value
        if not math.isfinite(value):
            return
        self._open.append(value)
        if len(self._open) < self._size:
            return
        if len(self._points) == self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [fmean(pair) for pair in pairs]
            self._size *= 2
            return  # the open values are half of a point now
        self._points.append(fmean(self._open))
        self._open = []

    @property
    def points(self) -> list[float]:
        """The means, in order. The last one may be of fewer values."""
        return [*self._points, *([fmean(self._open)] if self._open else [])]


def sparkline(
    points: Sequence[float], width: int, low: float | None = None, high: float | None = None, marks: str = BLOCKS
) -> str:
    """A curve of at most ``width`` characters, the means of neighbours where there are more points.

    Args:
        low, high: of the scale. None for the least and the largest of what is drawn. Equal values are drawn low.
        marks: from low to high.

    Example:
        >>> sparkline([0.0, 0.2, 0.9, 1.0], width=2)
        '▁█'
    """
    if not points or width < 1:
        return ""
    count = min(width, len(points))
    edges = [len(points) * n // count for n in range(count + 1)]
    means = [fmean(points[start:end]) for start, end in pairwise(edges)]
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    if high - low < 1e-9 * max(1.0, abs(high)):
        return marks[0] * count
    places = [(min(max(mean, low), high) - low) / (high - low) for mean in means]
    return "".join(marks[min(len(marks) - 1, int(place * len(marks)))] for place in places)
