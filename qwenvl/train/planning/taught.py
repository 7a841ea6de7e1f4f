"""How long the targets of a warm-up are: its completions, in a plan."""

from __future__ import annotations

from collections.abc import Iterable

from qwenvl.data.prompt_length import Ruler
from qwenvl.train.planning.case import Taught
from qwenvl.train.planning.lengths import CHARACTERS
from qwenvl.train.warmup.targets import Targets
from qwenvl.types import Record


def taught_of(records: Iterable[Record], targets: Targets, ruler: Ruler) -> Taught:
    """The targets of some records, by the tokenizer of a ruler, or by their characters where it has none.

    Raises:
        RecordError: a record has no target.
    """
    tokenizer = getattr(ruler.processor, "tokenizer", None)
    most = longest = 1
    for record in records:
        texts = targets.of(record, False)
        most = max(most, len(texts))
        for text in texts:
            length = len(text) // CHARACTERS if tokenizer is None else len(_ids(tokenizer, text))
            longest = max(longest, length + 1)  # the end token
    return Taught(most, longest)


def _ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
