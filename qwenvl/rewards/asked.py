"""Does a prompt ask for the form of answer that the rewards read?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from qwenvl.hint import Hint
from qwenvl.rewards.columns import is_routed
from qwenvl.rewards.functions.action_list import list_of
from qwenvl.rewards.functions.actions import action_numbers
from qwenvl.rewards.functions.text import first_block, solution_of
from qwenvl.types import Record

_READ_NUMBERS = ("accuracy", "action_order")
_NUMBERED = re.compile(r"\(\s*(?:[0-9]+|[a-z]|number|index|step)\s*\)|\bnumber", re.IGNORECASE)


def form_hints(record: Record, names: Sequence[str], by_name: bool = True) -> list[Hint]:
    """What ``unasked_form`` says of a record, as a list of one, or of none."""
    said = unasked_form(record, names, by_name)
    return [Hint("form not asked for", said)] if said else []


def unasked_form(record: Record, names: Sequence[str], by_name: bool = True) -> str | None:
    """What is wrong with how a prompt asks for answers whose ``(k)`` numbers are compared, in one sentence, or None.

    Args:
        names: of the reward functions of the run.
        by_name: ``--accuracy_by_name``.

    Example:
        >>> from qwenvl.types import Message
        >>> asked = Message("user", "Which?\\n(1) a\\n(2) b\\nAnswer as <answer>actions</answer>")
        >>> unasked_form(Record("0", (asked,), "(1)", (), (), (), {}, "d[0]"), ["accuracy"], by_name=False)
        'the prompt shows the answer as <answer>actions</answer>, and accuracy reads (k) numbers: ask for \
<answer>(1) ... (2) ...</answer>'
    """
    readers = [name for name in _READ_NUMBERS if name in names and is_routed(record.fields.get("reward"), name)]
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
    prompt = [{"role": message.role, "content": message.text} for message in record.messages]
    if readers == ["accuracy"] and by_name and list_of(prompt) is not None:
        return f"{said}, or else the names of the prompt's list, to the letter: better ask for <answer>(1) ...</answer>"
    return f"{said}: ask for <answer>(1) ... (2) ...</answer>"


def _answers_in(text: str) -> Iterator[str]:
    """The content of every answer block of a text."""
    while block := first_block(text, "answer"):
        yield block.inner
        text = text[block.end :]
