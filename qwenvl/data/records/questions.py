"""The row of a question with its answer and perhaps options, as most formats of other programs have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.answer_kinds import (
    answers_when,
    check_decimal_points,
    has_times_alone,
    kind_in_row,
    kind_named,
    times_with_points,
    yes_or_no,
)
from qwenvl.data.records.choices import OPTION_KEYS, Choices, options_of, whole_number
from qwenvl.data.records.chosen import bare, chosen, has_text, is_letter
from qwenvl.data.records.keys import Medium, is_empty, media_key
from qwenvl.data.records.option_columns import option_columns, options_in
from qwenvl.data.records.spans import spans_text, times_in
from qwenvl.rewards.functions.text import first_block, solution_of, tag_problem, thinking_of
from qwenvl.rewards.kinds import CHOICE, SPAN, WORDS, YES_NO
from qwenvl.types import Hint

Values = dict[str, Any]

# The keys of an answer: as it is, and as the number of an option that counts from 0 or from 1.
_ANSWER_KEYS = {"answer": None, "answer_index": 0, "answer_number": 1}
_ASKS_FOR_AN_ORDER = re.compile(r"\b(?:order|sequence)\b", re.IGNORECASE)
# A number with a unit: -5 °C, 12 mm, 3 km/h.
_WITH_UNIT = re.compile(
    r"[-+\u2010-\u2015\u2212]?\s?[0-9]{1,9}(?:[.,][0-9]{1,9})?\s?\u00b0?[^\W\d_]{1,6}(?:/[a-z]{1,3})?"
)


@dataclass
class Made:
    """One of our rows, made of a row of another format.

    Attributes:
        row: the row in our prompt form.
        read: the keys that it was made of. All other keys become fields of the record.
        hints: changes that are worth a look.
        asked: the answer that the prompt requests, in words. None: by the kind of the answer.
    """

    row: Values
    read: set[str]
    hints: list[Hint] = field(default_factory=list)
    asked: str | None = None


def question_row(
    row: Values,
    first_number: int | None = None,
    *,
    question: str = "question",
    answer: str = "answer",
    kind: str | None = None,
    media: Values | None = None,
    read: Sequence[str] = (),
    **more: Any,
) -> Made:
    """One of our rows: the question with its options, and the answer as its solution.

    Options are in one of ``OPTION_KEYS``, in columns, or in the text of the question itself.

    Args:
        question, answer: their keys in the row.
        kind: of the answer. None: by the options, by a column such as ``problem_type``, or by the answer.
        media: ``videos`` and ``images`` of our row. None: by the keys of ``media_columns``.
        read: further keys of the row that its record is made of.
        more: further fields of the record.
    """
    prompt = text_at(row, question).strip()
    if answer == "answer" and row.get(answer) is None:
        answer = next((key for key in _ANSWER_KEYS if row.get(key) is not None), answer)
        first_number = _ANSWER_KEYS[answer]
    given, thinking = _without_tags(row.get(answer))

    options: Choices | None
    option_keys: tuple[str, ...] = ()
    of_row = given_options(row) if kind is None else None
    if of_row is None:
        options = _options_in(prompt, given, first_number)
    else:
        options, option_keys = of_row
        if isinstance(given, str) and given in option_keys and len(option_keys) > 1:
            given = _letter_of_column(given, options, option_keys, answer)

    said_by = ""  # the column that says the kind
    if kind is None:
        kind, said_by = kind_in_row(row, given, prompt, options)
    choices = options if kind == CHOICE else None
    if choices is not None and of_row is not None:
        prompt = _with_options(prompt, choices)

    made = Made(row={}, read={question, answer, *option_keys, *read})
    if choices is not None:
        solution = chosen(given, choices, answer, first_number)
        if "," in solution:
            made.asked = "the letters of all right options, with commas between them,"
            made.hints += _hints_about_an_order(prompt)
    else:
        solution = _written(given, answer, kind, row.get("duration"), made)
    # They are in columns that the record leaves out. Those in the question's own text are shown with it.
    if of_row is not None and choices is None:
        message = f"has options, which are not shown: the answer is read as {kind}, and is none of their letters"
        made.hints.append(Hint("options that are not shown", message))
    if options is None and not said_by:
        made.hints += _hints_about_the_kind(row, kind)
        made.hints += _hints_about_seconds(given, prompt, kind)

    if media is None:
        media, media_keys = media_columns(row)
        made.read |= media_keys
    fields = _kept_fields(row, kind, said_by, made, has_choices=choices is not None)
    of_question = {"prompt": prompt, "solution": f"<answer>{solution}</answer>", "problem_type": kind}
    made.row = media | of_question | fields | thinking | more
    return made


def text_at(row: Values, key: str) -> str:
    """The text under a key. ValueError: it is blank or no text."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: expected text, got {kind_of(value)}")
    return value


def media_columns(row: Values) -> tuple[Values, set[str]]:
    """The media columns of a row that are not empty, as ``videos`` and ``images``, and their keys."""
    columns: Values = {}
    read: set[str] = set()
    kinds: tuple[Medium, ...] = ("video", "image")
    for kind in kinds:
        key = media_key(row, kind)
        if key is None:
            continue
        medium = row[key]
        if isinstance(medium, int) and not isinstance(medium, bool):  # the id of a clip, in a table with types
            medium = str(medium)
        columns[f"{kind}s"] = medium if isinstance(medium, list) else [medium]
        read.update((kind, f"{kind}s"))
    return columns, read


def given_options(row: Values) -> tuple[Choices, tuple[str, ...]] | None:
    """The options of a row, and the keys that hold them: one of ``OPTION_KEYS``, or columns. None without options."""
    for key in OPTION_KEYS:
        given = row.get(key)
        # A table gives open questions the letters too, each without a text.
        is_without_texts = isinstance(given, dict) and all(map(is_empty, given.values()))
        if not is_empty(given) and not is_without_texts:
            return options_of(given, key), (key,)
    return option_columns(row)


def _options_in(question: str, answer: Any, first_number: int | None) -> Choices | None:
    """The options that a question's own text holds, where its answer is one of them.

    Args:
        first_number: see ``chosen``.

    Raises:
        ValueError: the answer is a number, which may be that of an option or a count.
    """
    options = options_in(question)
    if options is None:
        return None
    number = whole_number(answer)
    # Lines of options leave no other answer than one of them. "Part A. or part B." within a sentence may be none.
    on_lines = all(re.search(rf"(?mi)^\W*(?:option\W+)?{letter}\W", question) for letter in options.texts)
    if number is not None and first_number is None and not has_text(options, str(number)):
        # Two letters within a sentence may be parts, "between A. and B.". Three are options.
        if on_lines or (len(options.texts) > 2 and number <= len(options.texts)):
            raise ValueError(
                f"answer: {number} may be the number of an option in the question, or a count; write a letter, or "
                "--columns answer=answer_index or answer=answer_number"
            )
        return None
    with suppress(ValueError):
        chosen(answer, options, first_number=first_number)
        return options
    return options if on_lines and (number is not None or is_letter(answer)) else None


def _letter_of_column(column: str, options: Choices, columns: Sequence[str], answer: str) -> str:
    """The letter of the option that an answer names by its column, ``option_3``.

    Raises:
        ValueError: the row has nothing in the column.
    """
    place = columns.index(column)
    letters = list(options.texts)
    if place >= len(letters):  # empty columns at the end are left out
        raise ValueError(f"{answer}: names the column {column!r}, which is empty in this row")
    return letters[place]


def _with_options(prompt: str, options: Choices) -> str:
    """A prompt that holds all options with their letters."""
    shown = [
        re.search(rf"\b{letter}[).\]:]\s*{re.escape(text)}", prompt, re.IGNORECASE)
        for letter, text in options.texts.items()
    ]
    if all(shown):
        return prompt
    return "\n".join([prompt, *(f"{letter}. {text}" for letter, text in options.texts.items())])


def _without_tags(answer: Any) -> tuple[Any, Values]:
    """An answer, which may be alone in a list, without tags and thinking, and the field ``thinking`` if it has any.

    Raises:
        ValueError: it has half an answer block, or several.
    """
    if isinstance(answer, list | tuple) and len(answer) == 1:
        answer = answer[0]
    problem = tag_problem(answer, "answer") if isinstance(answer, str) else None
    if problem is not None:
        raise ValueError(f"answer: {problem}")
    if not isinstance(answer, str) or not (first_block(answer, "answer") or "</think>" in answer):
        return answer, {}
    thought = thinking_of(answer, opened=False)
    return solution_of(answer), {} if thought is None else {"thinking": thought[0].strip()}


def _kept_fields(row: Values, kind: str, said_by: str, made: Made, *, has_choices: bool) -> Values:
    """The columns that are read, and that rewards may want as well: fields of the record.

    Args:
        said_by: the column that says the kind of the answer, or an empty text.
        made: gets their keys.
        has_choices: the answer chooses options, which says its kind.
    """
    keys = [said_by] if said_by else []
    if kind == SPAN:
        keys.append("duration")
    kept = [key for key in keys if row.get(key) is not None]
    made.read.update(kept)
    fields = {key: row[key] for key in kept if key != "problem_type"}
    own_kind = row.get("problem_type")
    if own_kind:
        made.read.add("problem_type")
    if own_kind and (has_choices or said_by) and said_by != "problem_type":
        fields["source_problem_type"] = own_kind  # "causal": of the question, and not of the answer
    return fields


def _written(given: Any, key: str, kind: str, duration: Any, made: Made) -> str:
    """The solution of a question without options.

    Args:
        given: the answer of the row, at ``key``.
        duration: of the clip, if the row says it.
        made: gets hints, and what the prompt asks for.

    Raises:
        ValueError: the answer is no text, number or span.
    """
    times = times_in(given) if kind == SPAN else []
    if times:
        solution, hints = spans_text(times, duration)
        made.hints += hints
        if len(times) > 1:
            made.asked = "start and end in seconds of every time that it happens, with the word to between them,"
        return solution
    if kind == SPAN and isinstance(given, str):
        check_decimal_points(given)
    # A truth value says so for any kind of answer. "TRUE" as a text may be what is shown.
    said = yes_or_no(given) if isinstance(given, bool) or kind == YES_NO else None
    solution = said or bare(given, key)
    made.hints += _hints_about(solution, kind)
    return solution


def _hints_about(solution: str, kind: str) -> Iterator[Hint]:
    """Hints about an answer that is scored as words and seems to be something else."""
    if kind == WORDS and re.fullmatch(r"\(?[A-H][).]?", solution):
        yield Hint(
            "a letter without options",
            "the answer is a letter, and the row has no options: it is scored as words; write the options into "
            "`options` or into the question",
        )
    if kind == WORDS and _WITH_UNIT.fullmatch(solution):
        yield Hint(
            "a number with a unit as words",
            'the answer is a number with a unit, and is scored as words, without its sign; "numerical" in '
            "`problem_type` compares the number",
        )
    if kind == WORDS and (has_times_alone(solution) or times_with_points(solution) is not None):
        yield Hint(
            "a span as words",
            'the answer looks like start and end in seconds, and is scored as words; "temporal grounding" in '
            "`problem_type` makes it a span",
        )


def _hints_about_seconds(given: Any, prompt: str, kind: str) -> Iterator[Hint]:
    """A hint about whole numbers that are read as seconds because of the question alone, and may be hours or days."""
    if kind == SPAN and isinstance(given, str) and answers_when(given, prompt):
        yield Hint(
            "whole numbers as seconds",
            'two whole numbers answer a question with "When", and are read as start and end in seconds; "free-form" in '
            "`problem_type` makes them words",
        )


def _hints_about_an_order(prompt: str) -> Iterator[Hint]:
    """A hint about several letters as the answer to a question for an order."""
    if _ASKS_FOR_AN_ORDER.search(prompt):
        message = "letters are compared as a set, whatever their order; write the orders as options"
        yield Hint("an order of letters", message)


def _hints_about_the_kind(row: Values, kind: str) -> Iterator[Hint]:
    """A hint about an answer that is of another kind than a column of its row says."""
    named = kind_named(row)
    if named not in (None, kind):
        message = f"a column says that the answer is {named}, and it is read as {kind}: is it written as it should be?"
        yield Hint("another kind of answer than its column says", message)
