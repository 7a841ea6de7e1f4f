"""Rewards for the form of a completion."""

from __future__ import annotations

from typing import Any

from qwenvl.rewards.functions.text import TAGS, first_block
from qwenvl.rewards.options import FunctionSettings, ResponseFormat


class FormatReward:
    """Parts for a think block, an answer block, and their order.

    ``think_answer``: 0.3 for a ``<think>...</think>`` pair, 0.3 for an ``<answer>...</answer>`` pair, 0.4 if the first
    think block ends before the first answer block begins. ``answer_only``: 1 for exactly one answer block and no think
    tag, else 0. What stands outside of the blocks does not matter. Where the prompt ends inside a think block, as that
    of a thinking checkpoint does, the completion is judged from the prompt's ``<think>`` on, and ``answer_only`` is an
    error.
    """

    def __init__(self, response_format: ResponseFormat = FunctionSettings.response_format) -> None:
        self._format = response_format

    def __call__(self, completions: list[str], opened_think: list[bool] | None = None, **columns: Any) -> list[float]:
        score = {"think_answer": _think_then_answer, "answer_only": _answer_alone}[self._format]
        return [score(text) for text in _from_their_think_tag(completions, opened_think, self._format)]


class StrictFormatReward:
    """1 if the whole text is one think block and one answer block and nothing else, else 0.

    ``think_answer``: outer white space aside, exactly one think block that is not blank, white space, one answer block
    that is not blank, and none of the four tags besides. ``answer_only``: the same without the think block. A think
    block that the prompt opens is treated as ``format`` treats it.
    """

    def __init__(self, response_format: ResponseFormat = FunctionSettings.response_format) -> None:
        self._format = response_format
        self._expected = TAGS if response_format == "think_answer" else TAGS[2:]

    def __call__(self, completions: list[str], opened_think: list[bool] | None = None, **columns: Any) -> list[float]:
        texts = _from_their_think_tag(completions, opened_think, self._format)
        return [float(self._matches(text.strip())) for text in texts]

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


def _from_their_think_tag(
    completions: list[str], opened_think: list[bool] | None, response_format: ResponseFormat
) -> list[str]:
    """The completions, each with the ``<think>`` that its prompt ends in.

    Raises:
        ValueError: a prompt opens a think block and the format asks for no thinking: every completion would score 0.
    """
    opened = opened_think or [False] * len(completions)
    if response_format == "answer_only" and any(opened):
        raise ValueError(
            "response_format answer_only asks for no thinking, but the prompt ends inside a think block: "
            "use --response_format think_answer, or --chat_template_kwargs '{\"enable_thinking\": false}' where the "
            "template reads it"
        )
    return [TAGS[0] + text if inside else text for text, inside in zip(completions, opened, strict=True)]


def _think_then_answer(text: str) -> float:
    think, answer = first_block(text, "think"), first_block(text, "answer")
    if think and answer:
        return 1.0 if think.end <= answer.start else 0.6
    return 0.3 if think or answer else 0.0


def _answer_alone(text: str) -> float:
    counts = [text.count(tag) for tag in TAGS]
    return float(counts == [0, 0, 1, 1] and first_block(text, "answer") is not None)
