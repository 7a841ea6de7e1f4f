"""The majority vote: which answers of a prompt say the same, and what the answer that most of them give is worth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from qwenvl.rewards.functions.actions import action_numbers, action_phrases
from qwenvl.rewards.functions.matching import affirms, letters
from qwenvl.rewards.functions.text import normalized


def actions(answer: str) -> Hashable:
    """The set of actions, as the accuracy reward reads them."""
    return frozenset(action_numbers(answer) or action_phrases(answer))


READ_AS: dict[str, Callable[[str], Hashable]] = {
    "accuracy": actions,
    "action_order": lambda answer: tuple(action_numbers(answer)),
    "multiple_choice": lambda answer: frozenset(letters(answer)),
    "yes_no": affirms,
}
"""What two answers have in common that say the same, by the reward that judges them. Else their normalized text."""


def majority(answers: Sequence[str], values: Sequence[float], reward: str) -> float:
    """The mean value of the answers that most completions of a prompt give.

    Completions without an answer ("") do not vote. Where several answers have as many votes, it is the mean over them.
    Where nobody votes, it is the mean of all values.

    Args:
        answers, values: of each completion.
        reward: which judges them, and says by ``READ_AS`` which of them are the same.

    Example:
        >>> majority(["(1) take the lid", "(1)", "(2)"], [1.0, 1.0, 0.0], "accuracy")
        1.0
    """
    read = READ_AS.get(reward, normalized)
    votes: dict[Hashable, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer:
            votes.setdefault(read(answer), []).append(value)
    if not votes:
        return sum(values) / len(values)
    most = max(map(len, votes.values()))
    winners = [sum(own) / len(own) for own in votes.values() if len(own) == most]
    return sum(winners) / len(winners)
