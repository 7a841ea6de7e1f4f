"""Reads spans of time as rows give them, and writes them as the text of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.rewards.functions.grounding import spans_in
from qwenvl.timeline import seconds_of
from qwenvl.types import Hint


def times_in(given: Any) -> list[tuple[float, float]]:
    """The spans of an answer: a text, two numbers, or a list of pairs of numbers. Empty for all other answers."""
    if isinstance(given, str):
        return spans_in(given)
    if not isinstance(given, list | tuple) or not given:
        return []
    pairs = [given] if all(is_time(each) for each in given) else given
    spans: list[tuple[float, float]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(is_time, pair)):
            return []
        start, end = pair
        spans.append((float(start), float(end)))
    return spans


def is_time(value: Any) -> bool:
    """Whether a value is a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def check_times(times: Any) -> None:
    """Check that times are a pair of start and end in seconds, or a list of such pairs.

    Raises:
        ValueError: naming the value that is none.
    """
    if not isinstance(times, list) or not times or (not isinstance(times[0], list) and len(times) != 2):
        raise ValueError(f"timestamp: expected start and end, got {kind_of(times)}")
    for pair in times if isinstance(times[0], list) else [times]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"timestamp: expected start and end, got {kind_of(pair)}")
        for name, value in zip(("start", "end"), pair, strict=True):
            if not is_time(value):
                raise ValueError(f"{name}: expected seconds, got {kind_of(value)}")


def spans_text(times: Sequence[tuple[float, float]], duration: Any) -> tuple[str, list[Hint]]:
    """Spans as the text of a solution, in order of their times and within the clip, and hints about changes.

    ``temporal_iou`` unites several spans: the answer is right if it names all of them.

    Raises:
        ValueError: a span is empty, or begins after the clip ends.
    """
    length = seconds_of(duration) or None  # of 0 it is not known
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
        texts.append(f"{start:.12g} to {end:.12g}")  # of a film of hours six digits would lose hundredths
    return ", ".join(texts), hints


def time_in(value: Any) -> Any:
    """The seconds that a value says, as ``12``, ``12 s`` and ``0:12`` do. Any other value stays as it is."""
    seconds = seconds_of(value)
    return value if seconds is None else seconds


def is_cut_of_a_film(row: Mapping[str, Any]) -> bool:
    """Whether a row's bounds are those at which its clip was cut from a film, as in Time-R1."""
    start, end, duration = (time_in(row.get(key)) for key in ("video_start", "video_end", "duration"))
    if not (is_time(start) and is_time(end) and is_time(duration)):
        return False
    # The span lies behind the end of the clip and is as long as the clip. Files round seconds.
    return end > duration + 1 and abs(end - start - duration) < 1
