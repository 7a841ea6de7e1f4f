"""Spans of time as rows give them, and as the text of a solution."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qwenvl.rewards.functions.grounding import spans_in
from qwenvl.types import Hint


def times_in(given: Any) -> list[tuple[float, float]]:
    """Start and end of each span that an answer gives: as text, as two numbers, or as a list of pairs of numbers."""
    if isinstance(given, str):
        return spans_in(given)
    if not isinstance(given, list | tuple) or not given:
        return []
    pairs = [given] if all(is_time(each) for each in given) else given
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_time, pair)) for pair in pairs):
        return []
    return [(float(start), float(end)) for start, end in pairs]


def is_time(value: Any) -> bool:
    """Whether a value is a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def spans_text(times: Sequence[tuple[float, float]], duration: Any) -> tuple[str, list[Hint]]:
    """Spans as the text of a solution, in order of their times and within the clip, and hints about what was changed.

    ``temporal_iou`` unites several spans: the answer is right if it names all of them.

    Raises:
        ValueError: a span is empty, or begins after the clip ends.
    """
    length = seconds_of(duration)
    length = length if isinstance(length, int | float) and length > 0 else None
    texts = []
    hints = []
    for first, last in sorted(times):
        start = min(first, last)
        end = max(first, last)
        if start == end:
            raise ValueError(f"start and end: expected two times, got {start:g} twice")
        if first > last:
            hints.append(
                Hint("a span turned round", "start and end of a span are the wrong way round, and are turned round")
            )
        if length is not None and start >= length:
            raise ValueError(f"the span {start:g} to {end:g} begins after the end of the clip, `duration` {length:g}")
        if length is not None and end > length:
            hints.append(Hint("a span beyond the clip", "a span ends after the clip, and is cut at its `duration`"))
            end = length
        texts.append(f"{start:g} to {end:g}")
    return ", ".join(texts), hints


def seconds_of(value: Any) -> Any:
    """The number in a cell of CSV. Anything else as it is."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+(?:\.\d+)?", value.strip()) else value


def is_cut_of_a_film(row: Mapping[str, Any]) -> bool:
    """Whether a row's bounds are those at which its clip was cut from a film, as in Time-R1."""
    start, end, duration = (row.get(key) for key in ("video_start", "video_end", "duration"))
    if not (is_time(start) and is_time(end) and is_time(duration)):
        return False
    return end > duration + 1 and abs(end - start - duration) < 1
