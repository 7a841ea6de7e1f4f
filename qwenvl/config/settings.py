"""All settings of a run in one object, checked without torch, so that a command line is refused before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from qwenvl.config.checks import problems_of_run
from qwenvl.config.own_options import DeviceOptions, LoaderOptions, RunOptions, TrainerOptions, WarmupOptions
from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.data.options import (
    BadSampleOptions,
    DataOptions,
    DecodingOptions,
    FrameOptions,
    PromptOptions,
    ReadingOptions,
)
from qwenvl.data.tool_options import ToolOptions
from qwenvl.grpo.options import DistillOptions, ObjectiveOptions
from qwenvl.model.options import KernelOptions, LoraOptions, ModelOptions, ReferenceOptions, TuneOptions
from qwenvl.option import Options, name_of_row
from qwenvl.rewards.options import ContrastOptions, RewardOptions
from qwenvl.rollout.options import (
    DecodingSpeedOptions,
    EngineOptions,
    GenerationOptions,
    GroupOptions,
    SamplingOptions,
)


@dataclass
class SharedOptions(
    ModelOptions,
    KernelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    BadSampleOptions,
    PromptOptions,
    ToolOptions,
    RunOptions,
    DeviceOptions,
    LoaderOptions,
    TrainerOptions,
):
    """The options that training by rewards and a warm-up have in common."""


@dataclass
class TrainingOptions(
    SharedOptions,
    ReferenceOptions,
    RewardOptions,
    ContrastOptions,
    GroupOptions,
    GenerationOptions,
    EngineOptions,
    DecodingSpeedOptions,
    SamplingOptions,
    ObjectiveOptions,
    DistillOptions,
):
    """The options of training by rewards, but for those of the Trainer."""

    @property
    def needs_reference(self) -> bool:
        """Whether there is a reference: for the KL term, or as the teacher."""
        return self.grpo_beta > 0 or name_of_row(self, "teacher") == "reference"


@dataclass
class WarmupRunOptions(WarmupOptions, SharedOptions):
    """The options of a warm-up, but for those of the Trainer."""


SHARED_GROUPS: tuple[type[Options], ...] = SharedOptions.__bases__
FLAG_GROUPS: tuple[type[Options], ...] = (*SHARED_GROUPS, *TrainingOptions.__bases__[1:])
WARMUP_GROUPS: tuple[type[Options], ...] = (WarmupOptions, *SHARED_GROUPS)
"""The options of a command by topic, as ``--help`` and the docs have them."""

_SAMPLES_NOTHING = "a warm-up samples nothing"
_SCORES_NOTHING = "a warm-up scores nothing"
_NOT_OF_A_WARMUP: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: _SCORES_NOTHING,
    ContrastOptions: _SCORES_NOTHING,
    GroupOptions: _SAMPLES_NOTHING,
    GenerationOptions: _SAMPLES_NOTHING,
    EngineOptions: _SAMPLES_NOTHING,
    DecodingSpeedOptions: _SAMPLES_NOTHING,
    SamplingOptions: _SAMPLES_NOTHING,
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
    DistillOptions: "a warm-up learns from its targets",
}
OF_TRAINING: dict[str, str] = {}
for _group, _reason in _NOT_OF_A_WARMUP.items():
    OF_TRAINING |= dict.fromkeys((each.name for each in fields(_group)), _reason)
"""The flags of training that a warm-up does not have, each with the reason. A settings file may have them."""


def flags_elsewhere(kind: type) -> dict[str, str]:
    """Messages about the flags that only the other kind of training has, by name."""
    if issubclass(kind, WarmupOptions):
        return {name: f"--{name} has no effect in a warm-up: {why}; leave it out" for name, why in OF_TRAINING.items()}
    return {each.name: f"unknown flag {each.name}; qwenvl warmup has it" for each in fields(WarmupOptions)}


def prompts_per_step(args: Any) -> int:
    """The prompts of an optimizer step, those of all processes.

    Args:
        args: settings of a run with those of the Trainer.
    """
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


class CheckedAsARun:
    """Settings that are refused when they are made, as their run would refuse them on any machine.

    Raises:
        ValueError: settings are wrong. The message names each of them.
    """

    def __post_init__(self) -> None:
        problems = problems_of_run(self)
        if problems:
            raise ValueError("\n".join(problems))


@dataclass
class TrainingSettings(CheckedAsARun, TrainingOptions, TrainerSettings):
    """The settings that a ``GRPOConfig`` is made of."""


@dataclass
class WarmupSettings(CheckedAsARun, WarmupRunOptions, TrainerSettings):
    """The settings that a ``WarmupConfig`` is made of."""
