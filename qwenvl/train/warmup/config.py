"""The options of a warm-up and ``WarmupConfig``, which has them with the settings of training that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.own_options import CompletionOptions, DisplayOptions, RunOptions, TrainerOptions
from qwenvl.data.options import DataOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import ModelOptions, ReferenceOptions
from qwenvl.option import Options, option, was_set
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

FULL_LEARNING_RATE = 1e-5
LORA_LEARNING_RATE = 1e-4
RECENT = 10
"""Optimizer steps whose mean loss ``stop_below_loss`` is compared with."""


@dataclass
class WarmupOptions(Options):
    """What a warm-up teaches, and when it ends."""

    target_template: str | None = option(
        None,
        "Text of a target. {solution} becomes what the record's answer block holds, or its whole solution where it has "
        "no such block. {thinking} becomes the record's field `thinking`, or the think block of its solution: "
        "'<think>{thinking}</think><answer>{solution}</answer>'.",
        unset="the solution as it stands, in <answer> tags where it has none, after the record's `thinking` in <think> "
        "tags where it has one",
    )
    from_rollouts: str | None = option(
        None,
        "Folder of a run whose best completions are the targets, in the place of solutions (rejection sampling). "
        "Records of --dataset_use without such a completion are left out.",
        unset="the records' solutions",
    )
    min_reward: float | None = option(
        None,
        "Least total reward of a completion of --from_rollouts to learn from. It is needed there, as the best reward "
        "hangs on the run's functions and weights.",
        unset="none",
    )
    max_per_prompt: int = option(
        4,
        "Most completions of --from_rollouts to learn from for each prompt, at least 1; equal texts count once. Those "
        "with the highest reward are taken, and of equal ones the latest.",
        least=1,
    )
    stop_below_loss: float | None = option(
        None,
        f"End when the mean loss of the last {RECENT} optimizer steps is below this, in nats per target token, above "
        "0. A low one leaves a policy that says the same to a prompt every time, which training by rewards can learn "
        "nothing from.",
        unset="the run ends with --max_steps or --num_train_epochs",
        above=0,
    )
    learning_rate: float | None = option(
        None, "Peak learning rate, above 0.", unset=f"{FULL_LEARNING_RATE:g}, with LoRA {LORA_LEARNING_RATE:g}", above=0
    )
    per_device_eval_batch_size: int | None = option(
        None,
        "Prompts per process that evaluation computes together, at least 1. More: less time, more memory.",
        unset="that of training",
        least=1,
    )

    def problems(self) -> Iterator[str]:
        if self.target_template is not None and "{solution}" not in self.target_template:
            yield f"--target_template must hold {{solution}}, got {self.target_template!r}"
        if self.from_rollouts is None:
            for name in ("min_reward", "max_per_prompt"):
                if was_set(self, name):
                    yield f"--{name} has no effect without --from_rollouts"
            return
        if self.target_template is not None:
            yield "--target_template has no effect with --from_rollouts: a completion is taught as it was written"
        if self.min_reward is None:
            yield "--from_rollouts needs --min_reward: the least total reward of a completion to learn from"


GROUPS: tuple[type[Options], ...] = (
    WarmupOptions,
    ModelOptions,
    DataOptions,
    RunOptions,
    TrainerOptions,
    DisplayOptions,
)
"""The options that a warm-up reads, by topic."""

_WITHOUT_EFFECT: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: "a warm-up scores nothing",
    SamplingOptions: "a warm-up samples nothing",
    CompletionOptions: "a warm-up samples nothing",
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
}


@dataclass
class WarmupConfig(WarmupOptions, GRPOConfig):
    """The flags of a warm-up: its own, and those of training that are not about sampling, rewards and their loss.

    Raises:
        TypeError: a setting that does not exist, with the names near to it.
        ValueError: naming every flag that is wrong or has no effect, and what to do about it.

    Example:
        >>> WarmupConfig(output_dir="runs/warm", stop_below_loss=0.5, max_steps=200).learning_rate
        1e-05
    """

    best_metric: ClassVar[str] = "eval_loss"

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            self.learning_rate = LORA_LEARNING_RATE if self.lora_enable else FULL_LEARNING_RATE
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size
        super().__post_init__()

    def problems(self) -> Iterator[str]:
        for name, reason in without_effect().items():
            if was_set(self, name):
                yield f"--{name} has no effect in a warm-up: {reason}; leave it out"
        if self.stop_below_loss is not None and self.logging_steps != 1:
            yield "--stop_below_loss reads the loss of each step from the log: leave --logging_steps at 1"

    def to_dict(self) -> dict[str, Any]:
        """The settings that a warm-up reads."""
        return {name: value for name, value in super().to_dict().items() if name not in without_effect()}


def without_effect() -> dict[str, str]:
    """The flags of training that a warm-up does not read, each with the reason."""
    unread = [*_WITHOUT_EFFECT, *(group for group in FLAG_GROUPS if group not in GROUPS)]
    return {
        each.name: _WITHOUT_EFFECT.get(group, "it is about training by rewards")
        for group in reversed(unread)
        for each in fields(group)
    }


def read_by_warmup() -> set[str]:
    """The names of all settings that a warm-up reads, those of the Trainer among them."""
    return {each.name for each in fields(WarmupConfig)} - set(without_effect())
