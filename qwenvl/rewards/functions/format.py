"""Rewards for the form of a completion."""

from __future__ import annotations

from typing import Any, Literal

from qwenvl.rewards.functions.text import TAGS, first_block

ResponseFormat = Literal["think_answer", "answer_only"]


class FormatReward:
    """Parts for a think block, an answer block, and their order.

    ``think_answer``: 0.3 for a ``<think>...</think>`` pair, 0.3 for an ``<answer>...</answer>`` pair, 0.4 if the first
    think block ends before the first answer block begins. ``answer_only``: 1 for exactly one answer block and no think
    tag, else 0. What stands outside of the blocks does not matter.
    """

    def __init__(self, response_format: ResponseFormat = "think_answer") -> None:
        self._score = {"think_answer": _think_then_answer, "answer_only": _answer_alone}[response_format]

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [self._score(text) for text in completions]


class StrictFormatReward:
    """1 if the whole text is one think block and one answer block and nothing else, else 0.

    ``think_answer``: outer white space aside, exactly one think block that is not blank, white space, one answer block
    that is not blank, and none of the four tags besides. ``answer_only``: the same without the think block.
    """

    def __init__(self, response_format: ResponseFormat = "think_answer") -> None:
        self._expected = TAGS if response_format == "think_answer" else TAGS[2:]

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [float(self._matches(text.strip())) for text in completions]

    def _matches(self, text: str) -> bool:
        if any(text.count(tag) != (tag in self._expected) for tag in TAGS):
            return False
        rest = text
        for opening, closing in zip(self._expected[::2], self._expected[1::2], strict=True):
            inner, found, after = rest.partition(closing)
            if not found or not inner.startswith(opening) or not inner[len(opening) :].strip():
                return False
            rest = after.lstrip()
        return not rest


def _think_then_answer(text: str) -> float:
    think, answer = first_block(text, "think"), first_block(text, "answer")
    if think and answer:
        return 1.0 if think.end <= answer.start else 0.6
    return 0.3 if think or answer else 0.0


def _answer_alone(text: str) -> float:
    counts = [text.count(tag) for tag in TAGS]
    return float(counts == [0, 0, 1, 1] and first_block(text, "answer") is not None)
