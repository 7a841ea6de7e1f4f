"""Hints about a solution: does it agree with the prompt's list of steps, ``(1) take the lid``? Is a number plain?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from qwenvl.data.errors import kind_of
from qwenvl.rewards.functions.actions import (
    action_numbers,
    action_phrases,
    bare_numbers,
    has_ambiguous_list,
    list_in,
    named_actions,
    names_in,
    steps_of_list,
)
from qwenvl.rewards.functions.answers import affirms
from qwenvl.rewards.functions.choices import letters
from qwenvl.rewards.functions.grounding import boxes_in, spans_in
from qwenvl.rewards.functions.text import ANSWER_LIMIT, first_block, normalized, solution_of, unified
from qwenvl.rewards.kinds import LABELS, kind_called
from qwenvl.timeline import timeline_in
from qwenvl.types import Hint, Record

_NUMBER = re.compile(r"\(\s*([0-9]{1,9})\s*\)")
_ENDS_A_NAME = re.compile(r"[,;\n(]")
# 2,375 may be a number of thousands, or have a decimal comma.
_WITH_A_COMMA = re.compile(r"[-+]?[1-9][0-9]{0,2},[0-9]{3}")
# Spreadsheets and pandas write 2 so where other cells of its column are empty.
_WITH_A_ZERO = re.compile(r"[0-9]{1,9}\.0")
# Lines of a list in another notation than (1), and the names in them.
_OTHER_NUMBERS = re.compile(
    r"^[ \t]*(?:[-*\u2022][ \t]+)?\W{0,3}(?:step[ \t]+)?[0-9]{1,3}[.):\]]\W{0,3}[ \t]+(\S.*)",
    re.MULTILINE | re.IGNORECASE,
)
_ASKS_FOR_A_NUMBER = re.compile(r"\(\s*(?:[0-9]+|number|index|step)\s*\)", re.IGNORECASE)
_BULLET = re.compile(r"\n[ \t]*[-*\u2022][ \t]*")
# What may separate the items of an answer and says nothing. A dash may mean a range.
_CONNECTIVES = re.compile(
    r"[\s,;.:|&+/>\u2192\u21d2\u3001*\"'\[\]()]|\b(?:and|then|first|next|finally|steps?|actions?|answers?)\b"
)
_ASKS_FOR_TIMES = re.compile(r"\b(?:when|seconds?|times?)\b", re.IGNORECASE)
_NUMBER_ALONE = re.compile(r"[-+]?[0-9]{1,9}(?:\.[0-9]{1,9})?\s?%?")
_SHOWS_A_NUMBER = re.compile(r"\(\s*(?:[0-9]+|[a-z]|number|index|step)\s*\)|number", re.IGNORECASE)


def solution_hints(record: Record) -> Iterator[Hint]:
    """Hints about a solution: a number with a comma, one that is too long, or steps that the prompt does not list.

    Example:
        >>> from qwenvl.types import Message
        >>> asked = Message("user", "Which?\\n(1) take the lid\\n(2) insert the fan")
        >>> [hint.message for hint in solution_hints(Record("0", (asked,), "(3)", (), (), (), {}, "d[0]"))]
        ["the solution has a number that is not in the prompt's list: no answer from the list is right"]
    """
    solution = solution_of(record.solution)
    if _WITH_A_COMMA.fullmatch(solution):
        without = solution.replace(",", "")
        yield Hint(
            "comma in a number",
            f"rewards for numbers read the solution {solution} as {without}; write it so, or with a decimal point",
        )
    if _WITH_A_ZERO.fullmatch(solution):
        yield Hint(
            "2.0 as text",
            f"tables write {solution} for {solution.removesuffix('.0')} in a column with gaps; rewards that compare "
            "text take them for different",
        )
    if len(solution) > ANSWER_LIMIT:
        yield Hint(
            "long solution",
            f"answers of more than {ANSWER_LIMIT:,} characters count as missing, and the solution has more: even "
            "the solution itself would score 0",
        )
    asked = record.messages[-1].text
    if not names_in(asked):
        yield from _list_that_is_not_read(record, solution)
        return
    shown = [block for block in _answers_in(record) if block.strip(" .\u2026\n")]
    problem = _disagreement(
        solution,
        asked,
        asks_for_numbers=any(map(_ASKS_FOR_A_NUMBER.search, shown)),
        is_of_another_kind=_is_of_another_kind(record, solution),
    )
    if problem is not None:
        yield Hint("solution not in the list", problem)
    if action_numbers(solution) and shown and not any(map(_SHOWS_A_NUMBER.search, shown)):
        yield Hint(
            "form not asked for",
            f"the prompt shows the answer as <answer>{shown[-1].strip()[:60]}</answer>, and the solution has "
            "numbers of steps: names count to the letter at best; better ask for <answer>(1) ... (2) ...</answer>",
        )


def _list_that_is_not_read(record: Record, solution: str) -> Iterator[Hint]:
    """A hint about an ambiguous list of steps, or one in another turn or notation whose steps the solution names."""
    asked = record.messages[-1].text
    if has_ambiguous_list(asked):
        yield Hint(
            "list of steps not read",
            "a number or a name of the prompt's list occurs twice, a number has no name, or a line has a second number "
            "in brackets, such as (4), which counts as a step (write 4 x): answers by names score 0",
        )
        return
    has_numbers = bool(action_numbers(solution)) or len(bare_numbers(solution)) > 1
    phrases = set(action_phrases(solution))
    lists = [list_in(message.text) for message in record.messages[:-1]]
    lines = _OTHER_NUMBERS.findall(asked)
    # "Which? (1) take the lid (2) insert the fan": the question, and then each number with what stands behind it.
    behind_numbers = _NUMBER.split(unified(asked))[2::2]
    in_a_line = [normalized(piece.strip(" ,;\n")) for piece in behind_numbers]
    if any(each and (has_numbers or phrases & each.keys()) for each in lists):
        yield Hint(
            "list of steps not read",
            "rewards read the list of steps of the last user turn, and it stands in another one: answers by names or "
            "bare numbers score 0",
        )
    elif len(lines) > 1 and (has_numbers or phrases & set(map(normalized, lines))):
        yield Hint(
            "list of steps not read",
            "the lines of the prompt's list do not begin with (1), (2), ...: answers by names or bare numbers score 0",
        )
    elif len(in_a_line) > 1 and not action_numbers(solution) and (has_numbers or phrases & set(in_a_line)):
        yield Hint(
            "list of steps not read",
            "the steps of the prompt's list do not stand on a line each: answers by names or bare numbers score 0",
        )


def _is_of_another_kind(record: Record, solution: str) -> bool:
    """Whether a solution is no list of steps: a number, yes or no, the letter of an option, a span or a box."""
    kind = kind_called(str(record.fields.get("problem_type")))
    if kind is not None:
        return kind.name != LABELS
    says_yes_or_no = affirms(solution) is not None and not re.search("[0-9]", solution)  # and not "No. 2"
    if _NUMBER_ALONE.fullmatch(solution) or says_yes_or_no or letters(solution):
        return True
    asks_for_times = _ASKS_FOR_TIMES.search(record.messages[-1].text) is not None
    return (asks_for_times and bool(spans_in(solution))) or len(boxes_in(solution)) > 0


def _disagreement(solution: str, asked: str, *, asks_for_numbers: bool, is_of_another_kind: bool) -> str | None:
    """A sentence where a solution does not agree with the list of steps, else None.

    Args:
        asked: the user turn with the list.
        asks_for_numbers: the prompt shows an answer such as ``(number) step``.
        is_of_another_kind: the solution may be no list of steps, as a number is not.
    """
    listed = names_in(asked)
    by_name = list_in(asked)
    numbers = action_numbers(solution)
    if not set(numbers) <= listed.keys():
        return "the solution has a number that is not in the prompt's list: no answer from the list is right"
    spans = timeline_in(solution, by_name)
    unlisted = [span.name for span in spans if span.number is None]
    if unlisted:
        return (
            f"the solution names a step that is not in the prompt's list, {kind_of(unlisted[0])}: no answer from the "
            "list is right there"
        )
    if numbers and not spans and _has_bare_number(solution, by_name):
        return "the solution has numbers with and without brackets: those in brackets alone count"
    if numbers and _has_another_name(solution, listed):
        return "the solution gives a number another name than the prompt's list has for it: rewards compare the numbers"
    if numbers and not spans:
        # Without its numbers the solution is read by its names: "(2) insert the fan, fasten the screw" has two.
        named, _ = named_actions(_NUMBER.sub(";", solution), by_name)
        if not named <= set(numbers):
            return "the solution names a step of the prompt's list without its number: numbers alone count"
    if numbers and not spans and _has_more(solution, listed):
        return "the solution has more than numbers and names of the prompt's list, and the numbers alone count"
    if numbers or spans or steps_of_list(solution, by_name):
        return None
    named, _ = named_actions(solution, by_name)
    if named:
        return (
            "the solution names a step of the prompt's list, and more that is none: an answer by numbers, (2) insert "
            "the fan, is wrong; write it so, or the names of the list alone"
        )
    if asks_for_numbers:
        return "the prompt asks for numbers of its list, and the solution names no step of it: no such answer is right"
    if not is_of_another_kind:
        return "the prompt has a list of steps, and the solution names no step of it: no answer from the list is right"
    return None


def _has_more(solution: str, listed: Mapping[int, str]) -> bool:
    """Whether there are words before the first number or after a name: "all but (1)", "(1) take the lid: no"."""
    pieces = _NUMBER.split(_BULLET.sub("\n", f"\n{solution}"))
    if _without_connectives(pieces[0]):
        return True
    for number, behind in zip(pieces[1::2], pieces[2::2], strict=True):
        own = normalized(listed[int(number)])
        plain = normalized(behind).lstrip(" :.-")
        if plain.startswith(own) and _without_connectives(plain[len(own) :]):
            return True
    return False


def _without_connectives(text: str) -> str:
    """A text without signs and words that may stand between the items of a list."""
    return _CONNECTIVES.sub("", text.casefold())


def _has_bare_number(solution: str, by_name: Mapping[str, int]) -> bool:
    """Whether a solution has numbers beside those in brackets and those in names of the list."""
    rest = normalized(_NUMBER.sub(" ", solution))
    for name in sorted(by_name, key=len, reverse=True):
        rest = rest.replace(name, " ")
    return re.search("[0-9]", rest) is not None


def _has_another_name(solution: str, listed: Mapping[int, str]) -> bool:
    """Whether text behind a number is not how the list calls it. A name may hold commas, and may be cut short."""
    for found in _NUMBER.finditer(solution):
        behind = normalized(solution[found.end() :])
        part = normalized(_ENDS_A_NAME.split(solution[found.end() :], maxsplit=1)[0])
        own = normalized(listed[int(found[1])])
        if not _without_connectives(part):  # "(1), (2) and (3)": what stands behind a number is no name
            continue
        if not behind.startswith(own) and not own.startswith(part.strip(" :.-")):
            return True
    return False


def _answers_in(record: Record) -> Iterator[str]:
    """The content of the answer blocks that a prompt shows."""
    for message in record.messages:
        if message.role == "assistant":
            continue
        text = message.text
        block = first_block(text, "answer")
        while block is not None:
            yield block.inner
            text = text[block.end :]
            block = first_block(text, "answer")
