"""Reads the field ``timeline`` of a record: named spans of its clip, which make the solution.

    "timeline": [{"step": 2, "start": 0.0, "end": 3.5}, {"step": "fasten the screw", "start": 3.5, "end": 7.25}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.option import did_you_mean
from qwenvl.rewards.functions.actions import names_in
from qwenvl.rewards.functions.text import solution_of, unified
from qwenvl.timeline import (
    TimedStep,
    named_step,
    numbers_by_name,
    plain_name,
    seconds_of,
    time_text,
    timeline_in,
    written_timeline,
)

# A label that begins with the number of its step, and not with one that may count things: "(2) screws", "2: screws".
_NUMBERED = re.compile(r"\s*(?:\(\s*\d+\s*\)|(?:step\s*|#\s*)\d|\d+\s*[.):,-])", re.IGNORECASE)
_FORM = '{"step": 2, "start": 0.0, "end": 3.5}'


def with_timeline(row: Mapping[str, Any], solution: str, prompt: str, where: str) -> str:
    """The solution of a row, written from its ``timeline`` where the row has no other solution.

    Another solution with spans must have the same ones. A solution without spans answers another question, and the
    field is left to the rewards.

    Args:
        prompt: the last user turn, whose list of steps has their numbers and names.
        where: the place of the row.

    Raises:
        RecordError: the field is not of its form, a span is none, its step is not in the list, or the solution has
            other spans.
    """
    if row.get("timeline") is None:
        return solution
    listed = names_in(prompt)
    said = timeline_in(solution_of(solution), numbers_of(listed))
    if solution and not said:
        return solution
    spans = read_timeline(row["timeline"], listed, f"{where}.timeline", row.get("duration"))
    if not solution:
        text = written_timeline(spans)
        if _in_writing(timeline_in(text)) != _in_writing(spans):
            raise RecordError(
                f"{where}.timeline: a name holds a semicolon or a range of times, or begins with a unit of time, so "
                f"that no reward could read the solution {kind_of(text)}; rename the step"
            )
        return f"<answer>{text}</answer>"
    if _in_writing(spans) != _in_writing(said):
        raise RecordError(
            f"{where}: the solution and `timeline` name other spans; keep one of the two: {kind_of(solution)} and "
            f"{kind_of(written_timeline(spans))}",
            "solution",
        )
    return solution


def read_timeline(value: Any, listed: Mapping[int, str], where: str, duration: Any = None) -> list[TimedStep]:
    """The spans of a field ``timeline``, with the numbers and names of the prompt's list if there is one.

    Args:
        duration: the record's field of this name, seconds that no span may exceed. Ignored where it is no number.

    Raises:
        RecordError: naming the first span that is wrong.
    """
    if not isinstance(value, list) or not value:
        raise RecordError(f"{where}: expected a list of spans {_FORM}, got {kind_of(value)}")
    longest = seconds_of(duration)
    spans = []
    for number, row in enumerate(value):
        place = f"{where}[{number}]"
        if not isinstance(row, dict) or not {"step", "start", "end"} <= row.keys():
            raise RecordError(f"{place}: expected {_FORM}, got {kind_of(row)}")
        try:
            start, end = span_between(row["start"], row["end"], longest)
            step, name = step_named(row["step"], listed)
        except ValueError as error:
            raise RecordError(f"{place}: {error}") from None
        spans.append(TimedStep(start, end, step, name))
    return spans


def span_between(start: Any, end: Any, duration: float | None = None) -> tuple[float, float]:
    """The start and end of a span in seconds.

    Raises:
        ValueError: one is no time, the span is empty or reversed, or it ends after the clip.
    """
    times = {"start": seconds_of(start), "end": seconds_of(end)}
    given = {"start": start, "end": end}
    for key, seconds in times.items():
        if seconds is None:
            raise ValueError(f"{key}: expected seconds, such as 7.5 or 0:07.5, got {kind_of(given[key])}")
    first = times["start"]
    last = times["end"]
    assert first is not None and last is not None
    if first >= last or time_text(first) == time_text(last):
        what = "ends before it starts" if first > last else "is empty"
        raise ValueError(f"the span from {time_text(first)} to {time_text(last)} s {what}")
    if duration is not None and last > duration + OVERHANG:
        raise ValueError(
            f"the span from {time_text(first)} to {time_text(last)} s ends after the clip, which has "
            f"{time_text(duration)} s"
        )
    return first, last


OVERHANG = 0.1
"""Seconds by which a span may exceed its clip: people round, and a clip's last frame has a length too."""


def step_named(value: Any, listed: Mapping[int, str]) -> tuple[int | None, str]:
    """The number and name of a step that a label names by one of them or both. Without a list: as the label has them.

    Raises:
        ValueError: the list has no such step, or its number and name are those of two.
    """
    text = f"({value})" if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"step: expected a number or a name, got {kind_of(value)}")
    text = unified(text)  # as rewards read answers: a name in full-width signs must not mean more to them
    numbers = numbers_of(listed)
    number, name = named_step(text, numbers)
    if number is None and not name:
        raise ValueError(f"step: expected one number or a name, got {kind_of(value)}")
    if not listed:
        if number is not None and name and not _NUMBERED.match(text):
            raise ValueError(
                f"step: {kind_of(value)} has a number that rewards would take for the step's; where it is, write "
                f"({number}) in front of the name, else spell the number out"
            )
        as_written = " ".join(text.split())
        return number, as_written if number is None else name
    own_name = None if number is None else listed.get(number)
    if own_name is None or name not in ("", plain_name(own_name)):
        raise ValueError(
            f"{kind_of(value)} is no step: expected a number of the list, {min(listed)} to {max(listed)}, one of its "
            f"names, or both that agree{did_you_mean(name, numbers)}"
        )
    return number, own_name


def numbers_of(listed: Mapping[int, str]) -> dict[str, int]:
    """The numbers of the steps by name, as names are compared."""
    return numbers_by_name({name: number for number, name in listed.items()})


def _in_writing(spans: list[TimedStep]) -> list[tuple[str, str, int | str]]:
    """The spans as their written form has them, in order."""
    written = []
    for span in spans:
        step = plain_name(span.name) if span.number is None else span.number
        written.append((time_text(span.start), time_text(span.end), step))
    return sorted(written, key=str)
