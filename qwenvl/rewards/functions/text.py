"""Finding tagged blocks in what a model wrote, in linear time.

No regular expressions with dots that match newlines: on unclosed or repeated tags they take quadratic time, and a
policy writes such text early in training.
"""

from __future__ import annotations

import unicodedata
from typing import Literal, NamedTuple

Tag = Literal["think", "answer"]
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

ANSWER_LIMIT = 10_000  # characters; no answer is that long, and reading one of a megabyte takes time


class Block(NamedTuple):
    """A tagged block: ``text[start:end]`` with its tags, ``inner`` without."""

    start: int
    end: int
    inner: str


def first_block(text: str, tag: Tag) -> Block | None:
    """The first ``<tag>...</tag>``: from the first opening tag to the next closing one; None where there is no pair.

    Example:
        >>> first_block("so <answer>(1)</answer>", "answer")
        Block(start=3, end=23, inner='(1)')
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.find(opening)
    if start < 0:
        return None
    close = text.find(closing, start + len(opening))
    if close < 0:
        return None
    return Block(start, close + len(closing), text[start + len(opening) : close])


def answer_of(completion: str) -> str | None:
    """What stands in the first answer block, outer white space stripped; None without one.

    None also for more than 10,000 characters: that is no answer, and whatever reads it stays quick.
    """
    block = first_block(completion, "answer")
    return None if block is None or len(block.inner) > ANSWER_LIMIT else block.inner.strip()


def solution_of(solution: str) -> str:
    """What a record's solution says: its first answer block, or the whole text where it has none."""
    block = first_block(solution, "answer")
    return solution.strip() if block is None else block.inner.strip()


def normalized(text: str) -> str:
    """Compatibility characters unified (NFKC), case folded, runs of white space one space, outer dots and quotes gone.

    Example:
        >>> normalized(" The  Fan. ")
        'the fan'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .\"'")
