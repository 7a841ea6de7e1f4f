"""Timelines: several named spans of time as a text, read tolerantly and written in one form.

The written form has one span a line, start and end in seconds, the number of the step and its name:

    0.0-3.5 (2) insert the fan
    3.5-7.25 (3) fasten the screw

Rewards, records, evaluation and pages read timelines here, and so agree on what a text says. Everything takes linear
time, whatever a model writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwenvl.characters import CJK
from qwenvl.times import seconds_of_clock

LONGEST_TIME = 1e7
"""Seconds that a time must stay below, a hundred days. Larger numbers are no times."""

_SECONDS = r"(?:(?:([0-9]{1,3}):)?([0-9]{1,3}):)?([0-9]{1,7}(?:\.[0-9]{1,30})?)"
_OF_SECONDS = r"\s{0,4}(?:(?:s|secs?|seconds?)\b|秒)"
_UNIT = rf"(?:{_OF_SECONDS})?"
_TIME = re.compile(_SECONDS + _UNIT, re.IGNORECASE)
# Times may stand in angle or square brackets, as Qwen3-VL shows them in its prompts: <3.5 seconds>.
_BRACKETED_TIME = rf"[<\[]?\s{{0,4}}{_SECONDS}{_UNIT}\s{{0,4}}[>\]]?"
# Times in other units are none, rather than seconds. A lone m or h ends the entry or precedes a bracket: M8 is a screw.
_OTHER_UNIT = (
    r"\s{0,4}(?:%|(?:percent|per\scent|pct|ms|msecs?|milliseconds?|mins?|minutes?|hrs?|hours?|frames?)\b|[mh]\s{0,4}(?:\Z|[(:])"
    r"|[(\[]\s?(?:ms|milliseconds?|min|minutes?|frames?|percent|%)\s?[)\]]|分|毫秒|小时|小時|時間|帧|幀)"
)
_DASH = r"(?:-{1,2}>?|=>|[\u2010-\u2015]{1,2}|[\u2192\u2212~\u301c]|\.{2,3})"
_BETWEEN_TIMES = rf"(?:{_DASH}|to\b|until\b|till\b|到|至)"
# Chinese and Japanese have no spaces between words and numbers. Whole numbers between them, "2-3次", are no times.
_WORD_CHARACTER = rf"[^\W{CJK}]"
_RANGE = re.compile(
    # Not in a word, behind a sign, or the second half of a number such as 1.5, 1,5 or 1:5.
    rf"(?<!{_WORD_CHARACTER})(?<![.+-])(?<![0-9][:,])(?<!第)(?:from\s{{1,4}}|at\s{{1,4}}|从)?"
    rf"(?:{_BRACKETED_TIME}\s{{0,4}}{_BETWEEN_TIMES}\s{{0,4}}{_BRACKETED_TIME}"
    rf"|\[\s{{0,4}}{_SECONDS}{_UNIT}\s{{0,4}},\s{{0,4}}{_SECONDS}{_UNIT}\s{{0,4}}\])"
    # Not the first half of a longer number, and not followed by a third time: 2-3-7 has two readings.
    rf"(?!{_WORD_CHARACTER}|[:.,][0-9]|['\u2032]\s{{0,4}}[0-9]|\s{{0,4}}{_BETWEEN_TIMES}\s{{0,4}}[0-9]|{_OTHER_UNIT})",
    re.IGNORECASE,
)
_CJK = re.compile(f"[{CJK}]")
_MARKS_SECONDS = re.compile(r"[.:\[<\u79d2]|[0-9]\s?s", re.IGNORECASE)
# How a name begins that would be taken for the unit of the time before it: "1.0-2.0 second screw".
_LIKE_A_UNIT = re.compile(rf"{_OF_SECONDS}|{_OTHER_UNIT}", re.IGNORECASE)
_RANGE_IN_OTHER_UNITS = re.compile(
    rf"[0-9](?:{_UNIT}|{_OTHER_UNIT})\s{{0,4}}{_BETWEEN_TIMES}\s{{0,4}}[<\[]?[0-9][0-9:.]{{0,12}}{_OTHER_UNIT}",
    re.IGNORECASE,
)
# In front of a range: the unit of its times, "frames 0-35" or "insert the fan: minutes 1-2".
_OTHER_UNIT_IN_FRONT = re.compile(
    r"(?<![\w-])(?:frames?|minutes?|mins?|milliseconds?|ms|percent)(?:\s(?:numbers?|no\.?))?[\s:#=]{0,4}[\[<(]?\s{0,4}\Z",
    re.IGNORECASE,
)
# In front of a range: the minutes of "3 min 52 s - 335 s".
_MINUTES_BEFORE = re.compile(rf"[0-9](?:{_OTHER_UNIT}|\s{{0,4}}[mh])[\s,]{{0,4}}(?:and\s{{1,4}})?\Z", re.IGNORECASE)
_THIRD_TIME = re.compile(rf"[0-9]\s{{0,4}}{_BETWEEN_TIMES}\s{{0,4}}\Z", re.IGNORECASE)
# What stands between commas, those within [0, 3.5] aside.
_AT_COMMAS = re.compile(r"(?:\[[^\[\]]{0,60}\]|[^,\u3001])+")
_NUMBER = re.compile(r"\(\s{0,4}(?:step\s{0,4}|#)?([0-9]{1,9})\s{0,4}\)", re.IGNORECASE)
# "2", "step 2", "#2", "2: insert the fan" and "2 insert the fan", but not "2.5 mm screw".
_BARE_NUMBER = re.compile(
    r"(?:(?:step|步[骤驟]|第)\s{0,4})?#?\s{0,4}([0-9]{1,9})(?![0-9])步?"
    r"(?:\s{0,4}[.):,-](?![0-9])(.*)|\s(.*))?",
    re.IGNORECASE,
)
# "Step 1:0-5" is no time of the clock.
_STEP_AND_COLON = re.compile(r"((?:\bstep\s?|步[骤驟]|第)[0-9]{1,3}步?):(?=[0-9])", re.IGNORECASE)
# Behind a bare number: "step 2" and "#2" say that the number before is that of a line, and "2." may say so.
_STEP_BEHIND = re.compile(r"(?:step\s{0,4}|#\s{0,4})([0-9]{1,9})(?![0-9])\W{0,4}(.*)", re.IGNORECASE)
_NUMBER_BEHIND = re.compile(
    r"(?:(?:and\b|[&,+/|])\s{0,4}){1,3}(?:step\s{0,4}|#)?[0-9]|[0-9]{1,9}\s{0,4}(?:[.):,|]|\Z)", re.IGNORECASE
)
_FLAT_OBJECT = re.compile(r"\{[^{}]*\}")
_WORD_OR_NUMBER = re.compile(r"[^\W_]")
_EMPTY_BRACKETS = re.compile(r"\(\s{0,4}\)|\[\s{0,4}\]|<\s{0,4}>|\u3010\s{0,4}\u3011")
_AROUND_NAMES = " \t.,:|*\"'`=>-\u2010\u2011\u2012\u2013\u2014\u2022\u2192"
_AROUND_NAMES += "\u3002\u2018\u2019\u201c\u201d\u201e\u3001"  # Chinese dots, and quotes as text programs make them
# Of JSON objects, as models name them.
_START_KEYS = ("start", "start_time", "begin")
_END_KEYS = ("end", "end_time")
_SPAN_KEYS = ("timestamp", "timestamps", "segment", "span", "interval")  # [0.0, 3.5]
_STEP_KEYS = ("step", "step_number", "name", "label", "action", "event", "description", "caption")
_ROW = re.compile(r"[ \t]*\|(.*)\|[ \t]*")  # of a table
_START_HEADINGS = ("start", "begin", "开始")
_END_HEADINGS = ("end", "stop", "结束")
_OTHER_UNITS = frozenset(
    (
        *("%", "percent", "pct", "ms", "msec", "msecs", "milliseconds"),
        *("min", "mins", "minute", "minutes", "m", "h", "hour", "hours", "hr", "hrs", "frame", "frames"),
    )
)
_OTHER_HEADINGS = ("#", "no", "nr", "row", "index", "duration", "length", "序号", "时长")


@dataclass(frozen=True)
class TimedStep:
    """One span of a timeline.

    Attributes:
        start, end: in seconds, 0 <= start < end.
        number: of the step in the procedure's list. None where neither the text nor the list says it.
        name: of the step, in lower case. Empty where the text has the number alone.
    """

    start: float
    end: float
    number: int | None = None
    name: str = ""

    @property
    def step(self) -> int | str:
        """The number of the step, or its name where there is no number."""
        return self.name if self.number is None else self.number

    @property
    def seconds(self) -> float:
        """The length of the span."""
        return self.end - self.start


def timeline_in(text: str, listed: Mapping[str, int] | None = None) -> list[TimedStep]:
    """The spans of a text, ordered by start. What cannot be read as a span is none.

    An entry is a line, or what is between semicolons, with one range of times and a number or a name. An entry with
    several ranges is divided at its commas. A text with JSON objects is read by these alone. A table may have start and
    end in two columns that are headed so.

    Args:
        text: an answer, or what a solution says.
        listed: numbers of the steps by name. A name of the list has its number.

    Example:
        >>> [(span.start, span.end, span.step) for span in timeline_in("(2) from 0:03 to 0:07.5; 8-9 s take the lid")]
        [(3.0, 7.5, 2), (8.0, 9.0, 'take the lid')]
    """
    return _spans_of(_readings(text, numbers_by_name(listed or {})))


def spans_alone(text: str, listed: Mapping[str, int]) -> list[TimedStep]:
    """The spans of a text that has nothing but spans, as ``timeline_in``, else none.

    Example:
        >>> [span.step for span in spans_alone("0-3 (1); 3-7 (2)", {})], spans_alone("(1); 3-7 (2)", {})
        ([1, 2], [])
    """
    found = _readings(text, numbers_by_name(listed))
    has_others = any(span is None and _WORD_OR_NUMBER.search(entry) for entry, span in found)
    # What stands beside JSON objects is in no entry.
    beside_objects = _FLAT_OBJECT.search(text) and _WORD_OR_NUMBER.search(_FLAT_OBJECT.sub(" ", text))
    return [] if has_others or beside_objects else _spans_of(found)


def entry_in_other_units(text: str) -> str | None:
    """The first entry of a text whose times are minutes, frames or the like, so that it is no span, or None.

    Example:
        >>> entry_in_other_units("0-3 (1); 1-2 min (2)"), entry_in_other_units("0-3 (1) 5 min break")
        ('1-2 min (2)', None)
    """
    for entry in _entries(_plain_text(text)):
        found = _RANGE.search(entry)
        in_front = found is not None and _ends_with_another_unit(entry[: found.start()])
        if (in_front or _RANGE_IN_OTHER_UNITS.search(entry)) and _from_entry(entry, {}) is None:
            return entry.strip()
    return None


def entry_without_span(text: str) -> str | None:
    """The first entry of a text that has a digit and is no span, or None. Entries without a digit may be headings.

    Example:
        >>> entry_without_span("0-3 (1); 3-soon (2)"), entry_without_span("Steps: 0-3 (1)")
        ('3-soon (2)', None)
    """
    text = _plain_text(text)
    objects = _FLAT_OBJECT.findall(text)
    for entry in objects or _entries(text):
        span = _from_object(entry, {}) if objects else _from_entry(entry, {})
        if span is None and re.search("[0-9]", entry):
            return entry.strip()
    # What is left beside objects may be one with another in it, which is not read.
    rest = _FLAT_OBJECT.sub(" ", text) if objects else ""
    beside = re.search(r"\{[^{}]{0,200}[0-9][^{}]{0,200}", rest)
    return None if beside is None else beside[0].strip()


def written_timeline(spans: Iterable[TimedStep]) -> str:
    """Spans in the one written form, a line for each, ordered by start.

    Example:
        >>> written_timeline([TimedStep(3.5, 7, 3), TimedStep(0, 3.5, 2, "insert the fan")])
        '0.0-3.5 (2) insert the fan\\n3.5-7.0 (3)'
    """
    lines = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        number = "" if span.number is None else f"({span.number})"
        lines.append(" ".join(filter(None, [f"{time_text(span.start)}-{time_text(span.end)}", number, span.name])))
    return "\n".join(lines)


def time_text(seconds: float) -> str:
    """Seconds with one to three decimals: ``3.0``, ``7.25``."""
    whole, _, decimals = f"{seconds:.3f}".partition(".")
    return f"{whole}.{decimals.rstrip('0') or '0'}"


def merged(spans: Iterable[TimedStep]) -> list[TimedStep]:
    """The same spans, those of one step that touch or overlap joined to one, ordered by start.

    Spans of the same times are in the order of their steps, whatever order the text has. The measures of action
    segmentation see a timeline so: where two neighbouring frames have the same label, they belong to the same segment.

    Example:
        >>> merged([TimedStep(0, 2, 1), TimedStep(2, 3, 1), TimedStep(5, 6, 1)])
        [TimedStep(start=0, end=3, number=1, name=''), TimedStep(start=5, end=6, number=1, name='')]
    """
    result: list[TimedStep] = []
    newest: dict[int | str, int] = {}  # the place in ``result`` of the last span of each step
    for span in sorted(spans, key=lambda span: (span.start, span.end, str(span.step))):
        place = newest.get(span.step)
        if place is not None and span.start <= result[place].end:
            result[place] = replace(result[place], end=max(result[place].end, span.end))
        else:
            newest[span.step] = len(result)
            result.append(span)
    return result


def seconds_of(value: Any) -> float | None:
    """A time in seconds: a number, or a text such as ``7.5``, ``7.5 s``, ``0:07.5`` and ``00:00:07.5``.

    None for everything else: not finite, negative, too large, or with 60 minutes or seconds behind a colon.

    Example:
        >>> seconds_of("1:02.5"), seconds_of(-1), seconds_of("soon")
        (62.5, None, None)
        >>> seconds_of("0:01:500") is None  # frames or milliseconds, not 500 seconds
        True
    """
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        value = None if match is None else seconds_of_clock(match[1], match[2], match[3])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < LONGEST_TIME else None


def named_step(text: str, listed: Mapping[str, int]) -> tuple[int | None, str]:
    """The number and the name of a step in a text such as ``(2) insert the fan``, ``2``, ``step 2`` or a name alone.

    None and an empty name where the text has neither, or several numbers in brackets.

    Args:
        listed: numbers of the steps by name, as ``plain_name`` writes it.

    Example:
        >>> named_step("(2) Insert the fan", {}), named_step("step 3: screw", {})
        ((2, 'insert the fan'), (3, 'screw'))
    """
    name = plain_name(text)
    if name in listed:  # a name may begin with a number of its own
        return listed[name], name
    numbers = {int(number) for number in _NUMBER.findall(text)}
    if len(numbers) > 1:
        return None, ""
    if numbers:
        return numbers.pop(), plain_name(_NUMBER.sub(" ", text))
    bare = _BARE_NUMBER.fullmatch(name)
    if bare is None:
        return None, name
    behind = plain_name(bare[2] or bare[3] or "")
    step = _STEP_BEHIND.fullmatch(behind)
    if step is not None:
        return int(step[1]), plain_name(step[2])
    # "2, 3" and "1. 2. insert" are two numbers, of which one is a step.
    return (None, "") if _NUMBER_BEHIND.match(behind) else (int(bare[1]), behind)


def _readings(text: str, listed: Mapping[str, int]) -> list[tuple[str, TimedStep | None]]:
    """The entries of a text, each with its span, or None where it is none."""
    text = _plain_text(text)
    objects = _FLAT_OBJECT.findall(text)
    if objects:
        return [(each, _from_object(each, listed)) for each in objects]
    return [(each, _from_entry(each, listed)) for each in _entries(_with_numbers(text, listed))]


def _plain_text(text: str) -> str:
    """A text as its entries are read: without Markdown, and with tables as lines of a range and a step."""
    text = text.replace("**", "")  # "**Step 1** (0.0 - 3.5)"
    text = _STEP_AND_COLON.sub(r"\1: ", text)
    return text if _FLAT_OBJECT.search(text) else _with_ranges_in_tables(text)


def _with_ranges_in_tables(text: str) -> str:
    """A text in which rows of tables with columns for start and end are ``start - end`` and the step."""
    if "|" not in text:
        return text
    lines = []
    columns: list[str] | None = None  # of the table that the last line belongs to. Empty: it has no such columns
    for line in text.split("\n"):
        row = _ROW.fullmatch(line)
        cells = [cell.strip() for cell in row[1].split("|")] if row else []
        if not cells:
            columns = None
        elif columns is None:  # its headings
            headings = [_kind_of_column(cell) for cell in cells]
            columns = headings if {"start", "end"} <= set(headings) else []
            line = "" if columns else line
        elif len(columns) == len(cells):
            by_column = dict(zip(columns, cells, strict=True))
            steps = [cell for column, cell in zip(columns, cells, strict=True) if column == "step"]
            line = " ".join([f"{by_column['start']} - {by_column['end']}", *steps])
        lines.append(line)
    return "\n".join(lines)


def _kind_of_column(heading: str) -> str:
    """What a column of a table holds: ``start``, ``end``, ``step``, or ``other``, which says nothing about a step."""
    words = re.findall(r"[^\W\d_]+|[#%]", heading.casefold())
    first = words[0] if words else ""
    if not _OTHER_UNITS.isdisjoint(words):  # "start (min)", "start_frame": no seconds
        return "other"
    if first.startswith(_START_HEADINGS):
        return "start"
    if first.startswith(_END_HEADINGS):
        return "end"
    return "other" if first in _OTHER_HEADINGS else "step"


def _spans_of(readings: Iterable[tuple[str, TimedStep | None]]) -> list[TimedStep]:
    """The spans that were read, by start and then by end, and otherwise in the order of the text."""
    spans = [span for _, span in readings if span is not None]
    return sorted(spans, key=lambda span: (span.start, span.end))


def _entries(text: str) -> Iterator[str]:
    for entry in re.split(r"[;\n]", text):
        several = len(_ranges_in(entry)) > 1
        yield from _AT_COMMAS.findall(entry) if several else [entry]


def _with_numbers(text: str, listed: Mapping[str, int]) -> str:
    """A text in which listed names that are like units have their number in front where they follow a time."""
    names = sorted(filter(_LIKE_A_UNIT.match, listed), key=len, reverse=True)
    if not names:
        return text
    # Names of single spaces and small letters, which the text may write otherwise. The longest comes first.
    any_name = "|".join(re.escape(name).replace(r"\ ", r"\s{1,4}") for name in names)
    behind_a_time = re.compile(
        rf"(?<=[0-9>\]])({_UNIT})\s{{0,4}}({any_name})(?=\s{{0,4}}(?:[;,.\n(]|\Z))", re.IGNORECASE
    )

    def with_number(found: re.Match[str]) -> str:
        number = listed[plain_name(found[2])]
        return f"{found[1]} ({number}) {found[2]}"

    return behind_a_time.sub(with_number, text)


def _ranges_in(entry: str) -> list[re.Match[str]]:
    """The ranges of times of an entry. Beside a Chinese character whole numbers are amounts: turn 2-3 times."""
    found = []
    for times in _RANGE.finditer(entry):
        start = times.end() - len(times[0].lstrip())
        end = times.start() + len(times[0].rstrip())
        around = entry[max(0, start - 1) : start] + entry[end : end + 1]
        may_be_an_amount = _CJK.search(around) is not None and not _MARKS_SECONDS.search(times[0])
        if not may_be_an_amount:
            found.append(times)
    return found


def _from_entry(entry: str, listed: Mapping[str, int]) -> TimedStep | None:
    """The span of an entry that has exactly one range of times."""
    ranges = _ranges_in(entry)
    if len(ranges) != 1:
        return None
    found = ranges[0]
    before = entry[: found.start()]
    if _THIRD_TIME.search(before[-10:]):
        return None
    # Three groups for each of the two times, in either of the two forms of a range.
    times = found.groups()[:6] if found[3] is not None else found.groups()[6:]
    # Of "(0.0-3.5) insert the fan" the brackets are left.
    without_range = _EMPTY_BRACKETS.sub(" ", before + " " + entry[found.end() :])
    number, name = named_step(without_range, listed)
    # A listed name may end so: "mount the frame", "heat for 5 min".
    if name not in listed and (_ends_with_another_unit(before) or _MINUTES_BEFORE.search(before[-30:])):
        return None
    if name in listed and not _NUMBER.search(without_range):
        number = listed[name]  # "1." may be the number of a line, "(1)" is that of a step
    return _span(seconds_of_clock(*times[:3]), seconds_of_clock(*times[3:]), number, name)


def _ends_with_another_unit(before: str) -> bool:
    """Whether the text before a range ends with the unit of its times, and they are not seconds: "frames 0-35"."""
    return _OTHER_UNIT_IN_FRONT.search(before[-60:]) is not None


def _from_object(text: str, listed: Mapping[str, int]) -> TimedStep | None:
    """The span of a JSON object with times and a step, ``{"start": 0.0, "end": 3.5, "step": 2}``."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    start, end = _times_of_object(row)
    number, name = _step_of_object(row, listed)
    return _span(start, end, number, name)


def _times_of_object(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Start and end in seconds, each None where the object has none or it is no time."""
    start = _first_of(row, _START_KEYS)
    end = _first_of(row, _END_KEYS)
    pair = _first_of(row, _SPAN_KEYS)
    if start is None and end is None and isinstance(pair, list) and len(pair) == 2:
        start, end = pair
    return seconds_of(start), seconds_of(end)


def _step_of_object(row: Mapping[str, Any], listed: Mapping[str, int]) -> tuple[int | None, str]:
    """The number and the name of a step, each of the first key that has one: a description may begin with another."""
    numbers = []
    names = []
    for key in _STEP_KEYS:
        text = _step_text(row.get(key))
        plain = plain_name(text)
        number, name = (None, plain) if plain in listed else named_step(text, {})
        if number is not None:
            numbers.append(number)
        if name:
            names.append(name)
    name = names[0] if names else ""
    return (numbers[0] if numbers else listed.get(name)), name


def _first_of(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The value of the first of several keys that an object has. None: it has none of them."""
    return next((row[key] for key in keys if key in row), None)


def _step_text(value: Any) -> str:
    """The text of a step that a JSON value gives. Empty where it is neither a text nor a whole number."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9
    return f"({value})" if is_number else ""


def _span(start: float | None, end: float | None, number: int | None, name: str) -> TimedStep | None:
    """A span, or None where its times are no span or it names no step."""
    if start is None or end is None or not start < end < LONGEST_TIME or (number is None and not name):
        return None
    return TimedStep(start, end, number, name)


def plain_name(name: str) -> str:
    """A name as it is compared: lower case, single spaces, no signs around it but the minus of a number.

    Example:
        >>> plain_name(" Insert the  fan."), plain_name("-5 V"), plain_name("- 5 V")
        ('insert the fan', '-5 v', '5 v')
    """
    words = " ".join(name.casefold().split())
    plain = words.strip(_AROUND_NAMES)
    has_minus = plain[:1].isdecimal() and re.search(rf"(?:\A|\s)-{re.escape(plain)}", words)
    return f"-{plain}" if has_minus else plain


def numbers_by_name(listed: Mapping[str, int]) -> dict[str, int]:
    """Numbers of steps by plain names, without those that several steps would have, "grade A" and "grade A-"."""
    numbers: dict[str, int] = {}
    of_several: set[str] = set()
    for name, number in listed.items():
        plain = plain_name(name)
        if numbers.setdefault(plain, number) != number:
            of_several.add(plain)
    return {name: number for name, number in numbers.items() if name not in of_several}
