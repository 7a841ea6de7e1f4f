"""Hints about a solution by numbers of the prompt's list of steps, ``(1) take the lid``: do list and solution agree?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from qwenvl.rewards.functions.actions import action_numbers, named_actions, names_in, steps_of_list
from qwenvl.rewards.functions.text import first_block, normalized, solution_of
from qwenvl.timeline import timeline_in
from qwenvl.types import Hint, Record

_NUMBER = re.compile(r"\(\s*([0-9]{1,9})\s*\)")
_ENDS_A_NAME = re.compile(r"[,;\n(]")
_SHOWS_A_NUMBER = re.compile(r"\(\s*(?:[0-9]+|[a-z]|number|index|step)\s*\)|number", re.IGNORECASE)


def solution_hints(record: Record) -> Iterator[Hint]:
    """Hints about a record whose prompt lists steps, and whose solution has their numbers or names.

    Example:
        >>> from qwenvl.types import Message
        >>> asked = Message("user", "Which?\\n(1) take the lid\\n(2) insert the fan")
        >>> [hint.message for hint in solution_hints(Record("0", (asked,), "(3)", (), (), (), {}, "d[0]"))]
        ["the solution has a number that is not in the prompt's list: no answer from the list is right"]
    """
    listed = names_in(record.messages[-1].text)
    solution = solution_of(record.solution)
    numbers = action_numbers(solution)
    if not listed:
        return
    if not numbers:
        if _names_steps_and_more(solution, {normalized(name): number for number, name in listed.items()}):
            yield Hint(
                "solution not in the list",
                "the solution names a step of the prompt's list, and more that is none: an answer by numbers, "
                "(2) insert the fan, is wrong; write it so, or the names of the list alone",
            )
        return
    if not set(numbers) <= listed.keys():
        yield Hint(
            "solution not in the list",
            "the solution has a number that is not in the prompt's list: no answer from the list is right",
        )
    elif _has_another_name(solution, listed):
        yield Hint(
            "solution not in the list",
            "the solution gives a number another name than the prompt's list has for it: rewards compare the numbers",
        )
    shown = [block for block in _answers_in(record) if block.strip(" .\u2026\n")]
    if shown and not any(map(_SHOWS_A_NUMBER.search, shown)):
        yield Hint(
            "form not asked for",
            f"the prompt shows the answer as <answer>{shown[-1].strip()[:60]}</answer>, and the solution has "
            "numbers of steps: names count to the letter at best; better ask for <answer>(1) ... (2) ...</answer>",
        )


def _names_steps_and_more(solution: str, listed: Mapping[str, int]) -> bool:
    """Whether a solution without numbers names a step of the list beside other text, and is no timeline."""
    named, _ = named_actions(solution, listed)
    return bool(named) and not steps_of_list(solution, listed) and not timeline_in(solution)


def _has_another_name(solution: str, listed: Mapping[int, str]) -> bool:
    """Whether text behind a number is not how the list calls it. A name may hold commas, and may be cut short."""
    for found in _NUMBER.finditer(solution):
        behind = normalized(solution[found.end() :])
        part = normalized(_ENDS_A_NAME.split(solution[found.end() :].lstrip(), maxsplit=1)[0])
        own = normalized(listed[int(found[1])])
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
