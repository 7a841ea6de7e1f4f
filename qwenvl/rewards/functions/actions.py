"""Rewards for procedures: which actions a clip shows, and in what order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qwenvl.files import require
from qwenvl.rewards.functions.action_list import list_of, named_actions
from qwenvl.rewards.functions.text import normalized, pairs, solution_of
from qwenvl.rewards.options import FunctionSettings

_NUMBER = re.compile(r"\(\s*([0-9]{1,9})\s*\)")
_SEPARATOR = re.compile(r"[,;\n]")


def action_numbers(text: str) -> list[int]:
    """The ``(k)`` numbers of a text, in order, repetitions kept.

    Example:
        >>> action_numbers("(2) insert the fan (3) fasten the screw (2)")
        [2, 3, 2]
    """
    return [int(number) for number in _NUMBER.findall(text)]


def action_phrases(text: str) -> list[str]:
    """The phrases between commas, semicolons and new lines, normalized (see ``text.normalized``).

    Example:
        >>> action_phrases("Insert the  fan, fasten the screw.")
        ['insert the fan', 'fasten the screw']
    """
    phrases = (normalized(part) for part in _SEPARATOR.split(text))
    return [phrase for phrase in phrases if phrase]


class AccuracyReward:
    """Overlap (intersection over union) of the actions that the answer names with the solution's.

    It compares the set of ``(k)`` numbers in the first answer block with that of the solution. A solution without
    numbers is compared as a set of phrases: the text between commas, semicolons and new lines. The same set scores 1.
    Without an answer block, or with no action in it, the score is 0.

    An answer without any number is read by the names of the prompt's list, unless ``accuracy_by_name`` is off. The list
    is the lines of the last user turn that begin with ``(k)``. It must be unambiguous: no number and no name stands
    twice. A name counts where it stands to the letter, upper and lower case, spaces and final dots aside. Between names
    may stand signs, "and" and "then". Any other words, up to the next comma, semicolon, line or name, count as one
    wrong action. With the list ``(1) insert the fan``, ``(2) fasten the screw`` and the solution ``(1) (2)``:

    - ``Insert the fan, then fasten the screw.`` scores 1, as ``(1) (2)`` does
    - ``insert the fan`` scores 1/2, and ``insert the fan, take the lid`` 1/3: one of two, and one that is wrong
    - ``inserts a fan`` scores 0: it is no name of the list
    - ``(1) insert the fan, fasten the screw`` scores 1/2: it has a number, so numbers alone count
    """

    def __init__(self, accuracy_by_name: bool = FunctionSettings.accuracy_by_name) -> None:
        self._by_name = accuracy_by_name

    def __call__(
        self,
        completions: list[str],
        solution: list[str],
        prompts: list[list[dict[str, Any]]] | None = None,
        **columns: Any,
    ) -> list[float]:
        lists = [list_of(prompt) for prompt in prompts] if prompts and self._by_name else [None] * len(completions)
        answers = pairs(completions, solution)
        return [_overlap(answer, truth, listed) for (answer, truth), listed in zip(answers, lists, strict=True)]


accuracy = AccuracyReward()
"""The reward at its default settings."""


def action_order(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - edit distance / longer length between the sequences of ``(k)`` numbers of answer and solution.

    Insertions, deletions and substitutions cost 1 each (Levenshtein). Without an answer block, or with no number in
    it, 0.
    """
    return [_order(answer, truth) for answer, truth in pairs(completions, solution)]


def check_action_numbers(solution: str, fields: Mapping[str, Any]) -> str | None:
    """Why a record cannot be scored by the order of its actions: its solution has no numbers."""
    if action_numbers(solution_of(solution)):
        return None
    return f'the solution names no action: expected "(1) ... (2) ..." numbers, got {solution[:80]!r}'


def check_actions(solution: str, fields: Mapping[str, Any]) -> str | None:
    """Why a record cannot be scored by its actions: its solution names none."""
    truth = solution_of(solution)
    if action_numbers(truth) or action_phrases(truth):
        return None
    return f'the solution names no action: expected "(1) ..." numbers or phrases, got {solution[:80]!r}'


def _overlap(answer: str | None, truth: str, listed: dict[str, int] | None) -> float:
    parsed = action_numbers if action_numbers(truth) else action_phrases
    named, expected, unknown = set(parsed(answer or "")), set(parsed(truth)), 0
    if not named and answer and listed is not None and parsed is action_numbers:
        by_name = named_actions(answer, listed)
        named, unknown = set(by_name.numbers), by_name.unknown
    return len(named & expected) / (len(named | expected) + unknown) if named and expected else 0.0


def _order(answer: str | None, truth: str) -> float:
    levenshtein = require("rapidfuzz.distance", "rewards").Levenshtein
    named, expected = action_numbers(answer or ""), action_numbers(truth)
    return levenshtein.normalized_similarity(named, expected) if named and expected else 0.0
