"""From the values of K functions to one total per completion; plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence

Values = list[float | None]


def weighted_sums(components: Sequence[Values], weights: Sequence[float]) -> Values:
    """For each of N rows the sum of weight * value over the functions that apply; None where none does.

    Example:
        >>> weighted_sums([[1.0, None, None], [0.5, 0.5, None]], [2.0, 1.0])
        [2.5, 0.5, None]
    """
    totals: Values = []
    for row in zip(*components, strict=True):
        own = [weight * value for weight, value in zip(weights, row, strict=True) if value is not None]
        totals.append(math.fsum(own) if own else None)
    return totals


def normalized(values: Values, group_size: int) -> Values:
    """Each value minus its group's mean, over the group's standard deviation (n-1) + 1e-4; None stays out of both.

    Example:
        >>> [round(value, 2) for value in normalized([1.0, 2.0, 3.0, 5.0, 5.0, 5.0], group_size=3)]
        [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    """
    result: Values = []
    for group in _groups(values, group_size):
        mean, known = _mean(group), [value for value in group if value is not None]
        variance = math.fsum((value - mean) ** 2 for value in known) / max(len(known) - 1, 1)
        spread = math.sqrt(variance) + 1e-4
        result += [None if value is None else (value - mean) / spread for value in group]
    return result


def _groups(values: Values, group_size: int) -> list[Values]:
    return [values[start : start + group_size] for start in range(0, len(values), group_size)]


def _mean(group: Values) -> float:
    known = [value for value in group if value is not None]
    return math.fsum(known) / len(known) if known else 0.0
