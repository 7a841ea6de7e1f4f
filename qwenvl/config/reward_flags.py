"""The flags of the rewards: which functions, with which weights, and what single functions are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.config.checks import out_of_range, was_set
from qwenvl.option import flag
from qwenvl.rewards.settings import FunctionSettings


@dataclass
class RewardArguments(FunctionSettings):
    """How completions are scored. The settings of single functions come first; docs/rewards.md tells of each."""

    response_format: Literal["think_answer", "answer_only"] = flag(
        "think_answer",
        "What the format reward asks for. think_answer: a <think> pair, then an <answer> pair. answer_only: one "
        "<answer> pair and no thinking.",
    )
    format_reward_weight: float = flag(0.3, "Weight of the format reward in the total, at least 0.")
    accuracy_reward_weight: float = flag(0.7, "Weight of the accuracy reward in the total, at least 0.")
    reward_funcs: list[str] | None = flag(
        None,
        "Reward functions by name (qwenvl rewards list), as package.module:name or file.py:name, or by the name of a "
        "plugin.",
        unset="format accuracy, with the two weights above",
    )
    reward_weights: list[float] | None = flag(
        None,
        "Weights of --reward_funcs and then of --reward_model, in their order, as many as there are.",
        unset="1 each",
    )
    external_plugins: list[str] | None = flag(
        None, 'Python files with reward functions marked @reward("name").', unset="none"
    )
    reward_model: list[str] | None = flag(
        None, "Reward models, a folder or hub name each, appended after --reward_funcs.", unset="none"
    )
    reward_aggregation: Literal["sum", "normalize_then_sum"] = flag(
        "sum",
        "sum: weight x value, summed. normalize_then_sum: each function's values are first brought to mean 0 and "
        "spread 1 in each group.",
    )
    on_reward_error: Literal["error", "skip"] = flag(
        "error",
        "A reward function that fails. error: stop, naming function, record and completion. skip: leave the function "
        "out for the rows, count them, and stop when more than 5 % of its rows fail.",
    )
    temporal_contrast: bool = flag(
        False,
        "Answer each video prompt a few more times with its frames in random order; where the ordered group is correct "
        "more often, its correct completions get a bonus. --correctness_func says what is correct.",
    )
    temporal_contrast_share: float = flag(0.5, "Size of that second group, as a share of --grpo_sample_size, above 0.")
    temporal_contrast_margin: float = flag(
        0.0, "What the ordered group's mean of --correctness_func must exceed the other's by, 0 to 1."
    )
    temporal_contrast_bonus: float = flag(0.3, "The bonus, added to the total, above 0.")
    reward_timeout: float | None = flag(None, "Seconds that one call of a reward function may take.", unset="no limit")

    def problems(self) -> Iterator[str]:
        yield from out_of_range(self, "format_reward_weight", least=0)
        yield from out_of_range(self, "accuracy_reward_weight", least=0)
        yield from out_of_range(self, "reward_timeout", above=0)
        yield from out_of_range(self, "temporal_contrast_share", above=0)
        yield from out_of_range(self, "temporal_contrast_margin", least=0, most=1)
        yield from out_of_range(self, "temporal_contrast_bonus", above=0)
        for name in ("temporal_contrast_share", "temporal_contrast_margin", "temporal_contrast_bonus"):
            if not self.temporal_contrast and was_set(self, name):
                yield f"--{name} has no effect without --temporal_contrast"
        if self.format_reward_weight == 0 and self.accuracy_reward_weight == 0:
            yield "--format_reward_weight and --accuracy_reward_weight are both 0: every reward would be 0"
