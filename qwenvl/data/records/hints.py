"""What a record has that training will not use, although its author may think so. None of it is an error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from string import ascii_uppercase
from typing import Any

from qwenvl.data.records.clip_meta import META_KEYS, unknown_meta_keys
from qwenvl.hint import Hint
from qwenvl.types import Record

_OPTIONS = ("options", "choices", "candidates")


def record_hints(record: Record) -> Iterator[Hint]:
    """What of a record is left unused: keys of ``meta`` that say nothing here, and options that no prompt shows."""
    if unknown := _unknown_keys(record):
        yield Hint(
            "unknown key in meta",
            f"meta has {', '.join(unknown)}, which change no frames and are left to the rewards; known are "
            f"{', '.join(META_KEYS)}",
        )
    if hidden := _hidden_options(record.fields, "\n".join(message.text for message in record.messages)):
        advice = "write them into the user turn"
        if isinstance(record.fields.get("prompt"), str):
            advice = "--columns prompt=question,solution=answer --format question-answer writes them there"
        yield Hint("options not in the prompt", f"{hidden} are not in the prompt, so the model can't choose; {advice}")


def _unknown_keys(record: Record) -> list[str]:
    if not record.videos:
        return []
    meta = record.fields.get("meta")
    metas = meta if isinstance(meta, list) else [meta]
    return sorted({str(key)[:80] for one in metas if isinstance(one, dict) for key in unknown_meta_keys(one)})


def _hidden_options(row: dict[str, Any], prompt: str) -> str:
    """The columns of options that the prompt does not hold all of. Empty where there are none."""
    letters = list(takewhile(lambda letter: _is_text(row.get(letter)), ascii_uppercase))
    if len(letters) > 1 and not all(row[letter].strip() in prompt for letter in letters):
        return f"the options in the columns {', '.join(letters)}"
    for name in _OPTIONS:
        given = row.get(name)
        texts = list(given.values()) if isinstance(given, dict) else given
        if isinstance(texts, list) and len(texts) > 1 and all(map(_is_text, texts)):
            return "" if all(text.strip() in prompt for text in texts) else f"the options in the column {name}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
