"""Rewards for spans of time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qwenvl.rewards.functions.text import pairs, solution_of
from qwenvl.rewards.options import FunctionSettings

Span = tuple[float, float]

_TIME = re.compile(r"(?<![0-9.:])(?:([0-9]{1,3}):)?(?:([0-9]{1,3}):)?([0-9]{1,7}(?:\.[0-9]{1,9})?)(?![0-9:]|\.[0-9])")


class TemporalIoUReward:
    """Intersection over union of the seconds that answer and solution name.

    Times are read in pairs, start and end, as seconds ("12.5 to 20") or as mm:ss or hh:mm:ss ("0:12 - 0:20"). Several
    pairs are united. An odd number of times, or none, scores 0. A span that ends before it starts is empty.
    With ``temporal_iou_boundary`` the value is multiplied by (1 - start error / duration)(1 - end error / duration),
    of the first start and the last end, with the record's field ``duration`` in seconds (Time-R1, arXiv:2503.13377).
    """

    def __init__(self, temporal_iou_boundary: bool = FunctionSettings.temporal_iou_boundary) -> None:
        self._boundary = temporal_iou_boundary

    def __call__(
        self, completions: list[str], solution: list[str], duration: list[float | None] | None = None, **columns: Any
    ) -> list[float]:
        durations = duration or [None] * len(completions)
        return [
            self._score(spans_in(answer or ""), spans_in(truth), seconds)
            for (answer, truth), seconds in zip(pairs(completions, solution), durations, strict=True)
        ]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """Why a record cannot be scored by its spans: the solution names none, or ``duration`` is missing."""
        if not any(end > start for start, end in spans_in(solution_of(solution))):
            return f'the solution must name a span like "3.5 to 8" or "0:12 - 0:20", got {solution[:80]!r}'
        duration = fields.get("duration")
        if self._boundary and not (type(duration) in (int, float) and duration > 0):
            return f"temporal_iou_boundary needs the field 'duration', the clip's length in seconds, got {duration!r}"
        return None

    def _score(self, named: list[Span], true: list[Span], duration: float | None) -> float:
        named, true = united(named), united(true)
        if not named or not true:
            return 0.0
        common = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in named for b in true)
        value = common / (_length(named) + _length(true) - common)
        if self._boundary:
            if not duration:
                raise ValueError("temporal_iou_boundary needs the field 'duration' in every record")
            for ours, theirs in ((named[0][0], true[0][0]), (named[-1][1], true[-1][1])):
                value *= max(0.0, 1 - abs(ours - theirs) / duration)
        return value


def spans_in(text: str) -> list[Span]:
    """The times of a text in pairs, in seconds, or no pair where their number is odd.

    Example:
        >>> spans_in("from 1:02 to 70.5 s")
        [(62.0, 70.5)]
    """
    times = [
        float(seconds) + 60 * int(second or first or 0) + (3600 * int(first) if second else 0)
        for first, second, seconds in _TIME.findall(text)
    ]
    return [] if len(times) % 2 else list(zip(times[::2], times[1::2], strict=True))


def united(spans: list[Span]) -> list[Span]:
    """The same seconds as spans in order that do not touch, without empty ones."""
    result: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def _length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)
