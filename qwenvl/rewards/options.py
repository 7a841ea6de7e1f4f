"""The options of the rewards: which functions, with which weights, and how they are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option

ResponseFormat = Literal["think_answer", "answer_only"]
BoxUnits = Literal["same", "thousandths"]
OnError = Literal["error", "skip"]
LONGEST = 512
"""The default of --generation_max_length, in tokens."""


@dataclass
class ContrastArguments(Options):
    """The bonus for answers that need the order of the frames."""

    share: float = option(0.5, "Size of the second group, as a share of --grpo_sample_size, above 0.", above=0)
    margin: float = option(0.0, "What the ordered group's mean must exceed the other's by, 0 to 1.", least=0, most=1)
    bonus: float = option(0.3, "The bonus, added to the total, above 0.", above=0)


@dataclass
class RewardOptions(Options):
    """Rewards. The arguments of single functions are explained in docs/rewards.md."""

    format_reward_weight: float = option(0.3, "Weight of the format reward in the total, at least 0.", least=0)
    accuracy_reward_weight: float = option(0.7, "Weight of the accuracy reward in the total, at least 0.", least=0)
    reward_funcs: list[str] | None = option(
        None,
        "Reward functions by name (qwenvl rewards list), as package.module:name or file.py:name, or by the name of a "
        'plugin, each with arguments or without: "cosine(max_len=512)".',
        unset="format accuracy, with the two weights above",
    )
    reward_weights: list[float] | None = option(
        None,
        "Weights of --reward_funcs and then of --reward_model, in their order, as many as there are.",
        unset="1 each",
    )
    external_plugins: list[str] | None = option(
        None, 'Python files with reward functions marked @reward("name").', unset="none"
    )
    reward_model: list[str] | None = option(
        None, "Reward models, a folder or hub name each, appended after --reward_funcs.", unset="none"
    )
    on_reward_error: OnError = option(
        "error",
        "A reward function that fails. error: stop, naming function, record and completion. skip: leave the function "
        "out for the rows, count them, and stop when more than 5 % of its rows fail.",
    )
    response_format: ResponseFormat = option(
        "think_answer",
        "The form that format and strict_format expect. think_answer: a <think> pair, then an <answer> pair. "
        "answer_only: one <answer> pair and no thinking.",
    )

    def problems(self) -> Iterator[str]:
        if self.format_reward_weight == 0 and self.accuracy_reward_weight == 0:
            yield "--format_reward_weight and --accuracy_reward_weight are both 0: every reward would be 0"


@dataclass
class ContrastOptions(Options):
    """A bonus for answers that need the order of the frames."""

    temporal_contrast: bool | str = option(
        False,
        "Answer each video prompt a few more times with its frames in random order; where the ordered group is correct "
        "more often, its correct completions get a bonus. The name of the reward whose value 1 means that a completion "
        "is correct, with arguments or without, as accuracy(bonus=0.5). The flag alone: accuracy. Not with "
        "--async_rollouts.",
        rows={None: ContrastArguments},
    )
