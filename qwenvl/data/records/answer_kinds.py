"""The kind of an answer, which is the record's field ``problem_type``: as its row says, or answer and question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.choices import Choices
from qwenvl.data.records.chosen import names_option
from qwenvl.data.records.spans import times_in
from qwenvl.rewards.functions.grounding import spans_in
from qwenvl.rewards.kinds import CHOICE, NUMBER, SPAN, WORDS, YES_NO, kind_called

# Columns that may say the kind of an answer, in the order in which they are asked.
_KIND_KEYS = ("problem_type", "question_type", "task_type", "task", "type", "answer_type")
_NUMBER = re.compile(
    r"(?:[-+\u2010-\u2015\u2212]\s?)?(?:[0-9]+(?:[.,][0-9]+)*|\.[0-9]+)\.?(?:e[-+]?[0-9]{1,2})?%?", re.IGNORECASE
)
# Questions for times, and not "which step is shown when the lid is open" or "the score at half time".
_ASKS_WHEN = re.compile(
    r"^\W*when\b|\bwhen (?:do|does|did|is|are|was|were|can|will|has|have)\b"
    r"|\b(?:what|which) (?:times?|moments?|intervals?|segments?)\b",
    re.IGNORECASE,
)
_BEGINS_WITH_WHEN = re.compile(r"^\W*when\b", re.IGNORECASE)
_WHOLE_SECONDS = re.compile(r"([0-9]{1,3})\s{0,4}(?:[-\u2010-\u2015~]|to|until)\s{0,4}([0-9]{1,3})")
_ASKS_FOR_SECONDS = re.compile(
    r"\b(?:in|what|which|start|end) seconds?\b|\btime ?(?:stamps?|spans?|intervals?)\b|\bfrom when\b", re.IGNORECASE
)
# Then two numbers are an amount, "how many seconds ... 3-5".
_ASKS_HOW_MUCH = re.compile(r"\bhow (?:many|much|long|often)\b", re.IGNORECASE)
# Only then is TRUE of a table a yes: a display may show "TRUE".
_ASKS_WHETHER = re.compile(
    r"^\W*(?:true or false|is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.IGNORECASE
)
_MARKS_SECONDS = re.compile(r"[:.\[]|\d\s*s", re.IGNORECASE)
# The answers yes and no by what tables and Python write for them.
_YES_AND_NO = {"yes": "yes", "no": "no", "true": "yes", "false": "no"}
# Times and nothing else: "3.5 to 8", "[[3, 8], [9, 12]]", "from 1 min 20 s to 2 min and from 3 min to 4 min".
_TIMES_ALONE = re.compile(
    r"(?:[\d\s.,:;()\[\]<>~\uff5e\u2010-\u2015\u2192\u2212-]"
    r"|\b(?:from|to|until|till|and|between|s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b"
    r"|(?<=\d)(?:s|secs?|m|mins?|h)(?![a-z]))+",
    re.IGNORECASE,
)


def kind_named(row: Mapping[str, Any]) -> str | None:
    """The first kind of answer that a column of a row names, even if its answer is of another. None: none does."""
    return next((kind for _, kind in _kinds_named(row)), None)


def _kinds_named(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The columns of a row that name a kind of answer, each with the kind."""
    for key in _KIND_KEYS:
        kind = kind_called(str(row.get(key) or ""))
        if kind is not None:
            yield key, kind.name


def _kind_of_answer(answer: Any, question: str) -> str:
    """The kind of an answer to a question without options."""
    if isinstance(answer, bool):
        return YES_NO
    if isinstance(answer, list) and times_in(answer) and _asks_for_times(question, says_seconds=True):
        return SPAN
    text = str(answer).strip()
    if _NUMBER.fullmatch(text):
        return NUMBER
    if text.casefold().strip(".") in ("yes", "no"):
        return YES_NO
    if yes_or_no(text) is not None and _ASKS_WHETHER.search(question):
        return YES_NO
    if _asks_for_times(question, says_seconds=True):
        check_decimal_points(text)
    # Two times are a span where the question asks for times: "3-5" may be a score or a range as well.
    has_marks = _MARKS_SECONDS.search(text) is not None
    says_seconds = has_marks or answers_when(text, question)
    is_span = isinstance(answer, str) and has_times_alone(text)
    return SPAN if is_span and _asks_for_times(question, says_seconds=says_seconds) else WORDS


def answers_when(text: str, question: str) -> bool:
    """Whether a text is start and end in whole seconds, "12-15", that answer a question beginning with "When".

    Years, "1990-1995", and scores, "2-1", are none.
    """
    found = _WHOLE_SECONDS.fullmatch(text.strip())
    asks_when = _BEGINS_WITH_WHEN.search(question) is not None
    return asks_when and found is not None and int(found[1]) < int(found[2])


def yes_or_no(answer: Any) -> str | None:
    """The answer yes or no that a text or a truth value says. None: it says neither."""
    return _YES_AND_NO.get(str(answer).strip().casefold())


def has_times_alone(text: str) -> bool:
    """Whether a text is spans of time, or two numbers that may be one."""
    return _TIMES_ALONE.fullmatch(text) is not None and bool(spans_in(text))


def check_decimal_points(text: str) -> None:
    """Raise ValueError for spans of time with decimal commas, which would be words."""
    with_points = times_with_points(text)
    if with_points is not None:
        raise ValueError(f"the answer {text!r} has decimal commas, and would be words: write {with_points}")


def times_with_points(text: str) -> str | None:
    """Spans of time with points in the place of decimal commas. None: they have none, or the text is something else.

    Example:
        >>> times_with_points("3,5-8,0"), times_with_points("3-8"), times_with_points("1,2")
        ('3.5-8.0', None, None)
    """
    with_points = re.sub(r"(?<=[0-9]),(?=[0-9])", ".", text)
    return with_points if with_points != text and has_times_alone(with_points) else None


def _asks_for_times(question: str, *, says_seconds: bool) -> bool:
    """Whether a question asks for two times.

    Args:
        says_seconds: the answer has seconds, and cannot be a score or years.
    """
    if _ASKS_HOW_MUCH.search(question):
        return False
    if says_seconds and _ASKS_WHEN.search(question):
        return True
    return _ASKS_FOR_SECONDS.search(question) is not None


def kind_in_row(row: Mapping[str, Any], answer: Any, question: str, options: Choices | None) -> tuple[str, str]:
    """The kind of an answer, and the column that names it, empty where none does."""
    if not isinstance(row.get("problem_type"), str | None):
        raise ValueError(f"problem_type: expected text, got {kind_of(row['problem_type'])}")
    said, key = _kind_said(row, answer)
    # Whatever a column calls the question: the letter alone would be trained on, without its options.
    if said != CHOICE and options is not None and names_option(answer, options):
        return CHOICE, ""
    if said and (key == "problem_type" or options is None):
        return said, key
    if options is not None:
        return CHOICE, ""
    return row.get("problem_type") or _kind_of_answer(answer, question), ""


def _kind_said(row: Mapping[str, Any], answer: Any) -> tuple[str | None, str]:
    """The kind of answer that a column of a row names, where the answer is of that kind, and the column's key."""
    for key, kind in _kinds_named(row):
        if (kind == SPAN and not times_in(answer)) or (kind == CHOICE and key != "problem_type"):
            continue
        if kind == NUMBER and not _NUMBER.fullmatch(str(answer).strip()):
            continue
        return kind, key
    return None, ""
