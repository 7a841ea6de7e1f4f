"""A metric over steps: smoothed, thinned to what a screen can show, and told in words. Lists of numbers in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

MOST_POINTS = 600  # of a curve on the page: more than its pixels would not be seen


@dataclass(frozen=True)
class Trend:
    """How a metric moved from the first fifth of its values to the last fifth.

    Attributes:
        first, last: the means of the two fifths.
        change: their difference.
        ci95: half the width of the 95 % interval of ``change``, as if the values were independent.
        verdict: ``rises`` or ``falls`` where the interval leaves 0 out, else ``flat``. ``short`` below ten values.
    """

    first: float
    last: float
    change: float
    ci95: float
    verdict: Literal["rises", "falls", "flat", "short"]


def smoothed(values: Sequence[float], half_life: float) -> list[float]:
    """The exponential mean of the values so far, without the bias to the first one.

    A value ``half_life`` places back weighs half as much as the newest. The weights are divided by their sum, so that
    the mean of equal values is that value from the first place on. What is not finite is passed over.

    Example:
        >>> smoothed([1.0, 0.0, 1.0], half_life=1)
        [1.0, 0.3333333333333333, 0.7142857142857143]
    """
    keep = 0.5 ** (1 / half_life)
    total = weight = 0.0
    means = []
    for value in values:
        if math.isfinite(value):
            total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight if weight else math.nan)
    return means


def half_life_of(length: int) -> float:
    """The half-life that a curve of so many values is smoothed with: a thirtieth of it, at least 1.

    Example:
        >>> half_life_of(300), half_life_of(12)
        (10.0, 1.0)
    """
    return max(1.0, length / 30)


def thinned(
    steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[int], list[float], int]:
    """At most so many points: the means of neighbours, each at the last of their steps, and how many go into one.

    Example:
        >>> thinned([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3)
        ([2, 4, 5], [2.0, 6.0, 9.0], 2)
    """
    size = max(1, math.ceil(len(steps) / most))
    starts = range(0, len(steps), size)
    means = [fmean(values[start : start + size]) for start in starts]
    return [steps[min(start + size, len(steps)) - 1] for start in starts], means, size


def trend(values: Sequence[float]) -> Trend | None:
    """Compare the first fifth of the finite values with the last. None where there is no value.

    Example:
        >>> trend([0.0, 0.1] * 5 + [1.0, 1.1] * 5).verdict
        'rises'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    some = max(1, len(finite) // 5)
    first, last = finite[:some], finite[-some:]
    change = fmean(last) - fmean(first)
    if some < 2:
        return Trend(fmean(first), fmean(last), change, math.nan, "short")
    ci95 = 1.96 * math.sqrt(variance(first) / some + variance(last) / some)
    verdict: Literal["rises", "falls", "flat"] = "flat" if abs(change) <= ci95 else "rises" if change > 0 else "falls"
    return Trend(fmean(first), fmean(last), change, ci95, verdict)
