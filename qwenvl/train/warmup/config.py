"""``WarmupConfig``: every setting of a warm-up, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from qwenvl.config.display_options import CompletionOptions, DisplayOptions
from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.run_options import RunOptions
from qwenvl.config.trainer_options import TrainerOptions
from qwenvl.data.options import DataOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import ModelOptions, ReferenceOptions
from qwenvl.option import Options, was_set
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions
from qwenvl.train.warmup.options import FULL_LEARNING_RATE, LORA_LEARNING_RATE, WarmupOptions

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
