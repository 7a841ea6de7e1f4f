"""Rewards for procedures: which actions a clip shows, and in what order."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from qwenvl.files import require
from qwenvl.rewards.functions.text import normalized, pairs, unreadable

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


def accuracy(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """Overlap (intersection over union) of the actions that the answer names with the solution's.

    It compares the set of ``(k)`` numbers in the first answer block with that of the solution. A solution without
    numbers is compared as a set of phrases: the text between commas, semicolons and new lines. The same set scores 1.
    Without an answer block, or with no action in it, the score is 0.
    """
    return [_overlap(answer, truth) for answer, truth in pairs(completions, solution)]


def action_order(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - edit distance / longer length between the sequences of ``(k)`` numbers of answer and solution.

    Insertions, deletions and substitutions cost 1 each (Levenshtein). Without an answer block, or with no number in
    it, 0.
    """
    return [_order(answer, truth) for answer, truth in pairs(completions, solution)]


check_action_numbers = partial(unreadable, action_numbers, 'names no action: expected "(1) ... (2) ..." numbers')
check_actions = partial(unreadable, action_phrases, 'names no action: expected "(1) ..." numbers or phrases')


def _overlap(answer: str | None, truth: str) -> float:
    parsed = action_numbers if action_numbers(truth) else action_phrases
    named, expected = set(parsed(answer or "")), set(parsed(truth))
    return len(named & expected) / len(named | expected) if named and expected else 0.0


def _order(answer: str | None, truth: str) -> float:
    levenshtein = require("rapidfuzz.distance", "rewards").Levenshtein
    named, expected = action_numbers(answer or ""), action_numbers(truth)
    return levenshtein.normalized_similarity(named, expected) if named and expected else 0.0
