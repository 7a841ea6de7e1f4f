"""Refusals of calls, in words that a model reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qwenvl.data.chat import parted
from qwenvl.failure import beginning, visible

LONGEST_REFUSAL = 400  # characters
LONGEST_QUOTE = 40


class ToolError(ValueError):
    """A call that cannot be answered. The model reads the message, and goes on."""


class ClipTimeout(ToolError):
    """A call whose clip was not decoded in time. Another call would most likely take as long, at any other second."""


def quoted(value: Any) -> str:
    """The beginning of a value in quotation marks."""
    return repr(str(value)[:LONGEST_QUOTE])


def refusal(error: str, added_tokens: Iterable[str]) -> str:
    """A sentence for the model, in one line, that no tokenizer reads a special token in.

    A refusal may quote what the model has written, and that may spell the end of a turn or a place of a picture.

    Args:
        added_tokens: of the tokenizer, beside its ordinary ones. Where the sentence spells one, a space parts it.

    Example:
        >>> refusal("there is no tool '<|im_end|>'", ["<|im_end|>"])
        "Error: there is no tool '< |im_end|>'."
    """
    one_line = visible(error[: 2 * LONGEST_REFUSAL])  # of more, only the beginning is shown
    sentence = beginning(one_line, LONGEST_REFUSAL)
    return f"Error: {parted(sentence, added_tokens)}."
