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
    """Hints about a record that the reward functions of a run score by its ``(k)`` numbers."""
    route = record.fields.get("reward")
    readers = [each for each in functions if each.name in _READ_NUMBERS and is_routed(route, each.name)]
    if not readers:
        return []
    listed = list_of([{"role": message.role, "content": message.text} for message in record.messages])
    by_name = listed is not None and all(
        each.name == "accuracy" and each.arguments.get("by_name", True) for each in readers
    )
    messages = {
        "form not asked for": _unasked_form(record, " and ".join(each.name for each in readers), by_name),
        "solution not in the list": _unlisted_solution(record, listed) if listed is not None else None,
    }
    return [Hint(kind, message) for kind, message in messages.items() if message]


def _unasked_form(record: Record, readers: str, by_name: bool) -> str | None:
    """Why a prompt does not ask for the ``(k)`` numbers that are compared, in one sentence, or None.

    Args:
        by_name: the names of the prompt's list are read as well.
    """
    if not action_numbers(solution_of(record.solution)):
        return None
    prompts = [message.text for message in record.messages if message.role != "assistant"]
    shown = [inner for text in prompts for inner in _answers_in(text) if inner.strip(" .\u2026\n")]
    if not shown or any(_NUMBERED.search(inner) for inner in shown):
        return None
    found = f"the prompt shows the answer as <answer>{shown[-1].strip()[:60]}</answer>, and {readers} reads (k) numbers"
    if by_name:
        found += ", or else the names of the prompt's list, to the letter"
    return f"{found}: {'better ask for <answer>(1) ...' if by_name else 'ask for <answer>(1) ... (2) ...'}</answer>"


def _unlisted_solution(record: Record, listed: dict[str, int]) -> str | None:
    """Why a solution does not fit the prompt's list of actions, ``(1) take the lid``, in one sentence, or None."""
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


def _answers_in(text: str) -> Iterator[str]:
    """The content of every answer block of a text."""
    while block := first_block(text, "answer"):
        yield block.inner
        text = text[block.end :]
