"""The majority vote: which answers of a prompt say the same, and what the answer that most of them give is worth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from qwenvl.rewards.functions.action_list import list_of, named_actions
from qwenvl.rewards.functions.actions import action_numbers, action_phrases
from qwenvl.rewards.functions.matching import affirms, letters
from qwenvl.rewards.functions.text import normalized

Prompt = Sequence[Mapping[str, str]]


def actions(answer: str, prompt: Prompt = ()) -> Hashable:
    """The set of actions, as the accuracy reward reads them: by number, by the names of the prompt's list, as phrases.

    Example:
        >>> listed = [{"role": "user", "text": "Which?\\n(1) insert the fan\\n(2) fasten the screw"}]
        >>> actions("Fasten the screw.", listed) == actions("(2)", listed)
        True
    """
    if numbers := action_numbers(answer):
        return frozenset(numbers)
    listed = list_of([{"role": turn["role"], "content": turn["text"]} for turn in prompt])
    named = None if listed is None else named_actions(answer, listed)
    if named is None or not named.numbers:
        return frozenset(action_phrases(answer))
    return (named.numbers, named.unknown) if named.unknown else named.numbers


READ_AS: dict[str, Callable[[str, Prompt], Hashable]] = {
    "accuracy": actions,
    "action_order": lambda answer, prompt: tuple(action_numbers(answer)),
    "multiple_choice": lambda answer, prompt: frozenset(letters(answer)),
    "yes_no": lambda answer, prompt: affirms(answer),
}
"""What two answers have in common that say the same, by the reward that judges them. Else their normalized text."""


def majority(answers: Sequence[str], values: Sequence[float], reward: str, prompt: Prompt = ()) -> float:
    """The mean value of the answers that most completions of a prompt give.

    Completions without an answer ("") do not vote. Where several answers have as many votes, it is the mean over them.
    Where nobody votes, it is the mean of all values.

    Args:
        answers, values: of each completion.
        reward: which judges them, and says by ``READ_AS`` which of them are the same.
        prompt: that they answer, messages with ``role`` and ``text``.

    Example:
        >>> majority(["(1) take the lid", "(1)", "(2)"], [1.0, 1.0, 0.0], "accuracy")
        1.0
    """
    read = READ_AS.get(reward, lambda answer, prompt: normalized(answer))
    votes: dict[Hashable, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer:
            votes.setdefault(read(answer, prompt), []).append(value)
    if not votes:
        return sum(values) / len(values)
    most = max(map(len, votes.values()))
    winners = [sum(own) / len(own) for own in votes.values() if len(own) == most]
    return sum(winners) / len(winners)
