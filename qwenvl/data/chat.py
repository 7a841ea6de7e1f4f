"""Records to chat messages with typed parts, as chat templates take them."""

from __future__ import annotations

from typing import Any

from qwenvl.data.records.schemas import MEDIA_TAG
from qwenvl.types import Message, Record

TURN_START = "<|im_start|>"  # begins each turn in the chat templates of the Qwen-VL family


def chat_messages(record: Record) -> list[dict[str, Any]]:
    """The record's prompt with each text split at its media tags, in order; white space is kept as written.

    Example:
        A user turn "<video>\\nWhich steps?" becomes ``{"role": "user", "content": [{"type": "video"},
        {"type": "text", "text": "\\nWhich steps?"}]}``.
    """
    return [{"role": message.role, "content": _parts(message)} for message in record.messages]


def opens_think(prompt: str) -> bool:
    """Say whether a rendered prompt ends inside a think block.

    The chat templates of thinking checkpoints end the prompt with ``<think>``, and the completion goes on inside that
    block. Only the last turn counts: a question may mention the tag.

    Example:
        >>> opens_think("<|im_start|>user\\nWhich?<|im_end|>\\n<|im_start|>assistant\\n<think>\\n")
        True
    """
    last_turn = prompt.rpartition(TURN_START)[2]
    return last_turn.rfind("<think>") > last_turn.rfind("</think>")


def _parts(message: Message) -> list[dict[str, Any]]:
    # Splitting at a pattern with one group gives text, tag, text, tag, ..., text.
    pieces = MEDIA_TAG.split(message.text)
    parts = [{"type": piece} if i % 2 else {"type": "text", "text": piece} for i, piece in enumerate(pieces)]
    return [part for part in parts if part.get("text") != ""]
