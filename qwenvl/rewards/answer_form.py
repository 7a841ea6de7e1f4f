"""Hints about prompts that ask for another form of answer than the rewards read, and about unlisted solutions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from qwenvl.hint import Hint
from qwenvl.rewards.columns import is_routed
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.functions.actions import action_numbers, action_phrases, list_of
from qwenvl.rewards.functions.text import first_block, normalized, solution_of
from qwenvl.types import Record

_READ_NUMBERS = ("accuracy", "action_order")
_NUMBER_AND_NAME = re.compile(r"\(\s*([0-9]{1,9})\s*\)([^(]*)")
_NUMBERED = re.compile(r"\(\s*(?:[0-9]+|[a-z]|number|index|step)\s*\)|\bnumber", re.IGNORECASE)


def form_hints(record: Record, functions: Sequence[RewardFunction]) -> list[Hint]:
    """The hints of ``unasked_form`` and ``unlisted_solution`` about a record, for the reward functions of a run."""
    names = [function.name for function in functions]
    by_name = all(function.arguments.get("by_name", True) for function in functions if function.name == "accuracy")
    messages = {
        "form not asked for": unasked_form(record, names, by_name),
        "solution not in the list": unlisted_solution(record, names),
    }
    return [Hint(kind, message) for kind, message in messages.items() if message]


def unasked_form(record: Record, names: Sequence[str], by_name: bool = True) -> str | None:
    """What is wrong with how a prompt asks for answers whose ``(k)`` numbers are compared, in one sentence, or None.

    Args:
        names: of the reward functions of the run.
        by_name: the argument of ``accuracy``.
    """
    readers = _readers(record, names)
    if not readers or not action_numbers(solution_of(record.solution)):
        return None
    asked = [message.text for message in record.messages if message.role != "assistant"]
    shown = [inner for text in asked for inner in _answers_in(text) if inner.strip(" .\u2026\n")]
    if not shown or any(_NUMBERED.search(inner) for inner in shown):
        return None
    said = (
        f"the prompt shows the answer as <answer>{shown[-1].strip()[:60]}</answer>, and {' and '.join(readers)} "
        "reads (k) numbers"
    )
    if readers == ["accuracy"] and by_name and _listed(record) is not None:
        return f"{said}, or else the names of the prompt's list, to the letter: better ask for <answer>(1) ...</answer>"
    return f"{said}: ask for <answer>(1) ... (2) ...</answer>"


def unlisted_solution(record: Record, names: Sequence[str]) -> str | None:
    """What is wrong with a solution beside the prompt's list of actions, ``(1) take the lid``, in a sentence, or None.

    Args:
        names: of the reward functions of the run.
    """
    listed = _listed(record)
    if listed is None or not _readers(record, names):
        return None
    truth = solution_of(record.solution)
    if not action_numbers(truth):
        known = all(phrase in listed for phrase in action_phrases(truth))
        named = "names actions of the list in the prompt" if known else "names no action of the list in the prompt"
        return f"the solution {named} and has no (k) number, so an answer with numbers gets 0: write (1) ... (2) ..."
    if stray := sorted(set(action_numbers(truth)) - set(listed.values())):
        return f"the solution has ({stray[0]}), no number of the list in the prompt: no answer from the list scores 1"
    for number, name in _NUMBER_AND_NAME.findall(truth):
        if (other := listed.get(normalized(name), int(number))) != int(number):
            return f"the solution gives ({number}) the name of ({other}) in the prompt's list: the number counts"
    return None


def _readers(record: Record, names: Sequence[str]) -> list[str]:
    """The functions that score a record by its ``(k)`` numbers."""
    return [name for name in _READ_NUMBERS if name in names and is_routed(record.fields.get("reward"), name)]


def _listed(record: Record) -> dict[str, int] | None:
    return list_of([{"role": message.role, "content": message.text} for message in record.messages])


def _answers_in(text: str) -> Iterator[str]:
    """The content of every answer block of a text."""
    while block := first_block(text, "answer"):
        yield block.inner
        text = text[block.end :]
