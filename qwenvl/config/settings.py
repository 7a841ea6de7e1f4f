"""All settings of a run in one object, checked without torch: what a command line gives before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from qwenvl.config.checks import problems_of_run
from qwenvl.config.own_options import RunOptions, TrainerOptions, WarmupOptions
from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.data.options import DataOptions, DecodingOptions, FrameOptions, PromptOptions, ReadingOptions
from qwenvl.grpo.options import ObjectiveOptions, TeacherOptions
from qwenvl.model.options import LoraOptions, ModelOptions, ReferenceOptions, TuneOptions
from qwenvl.option import Options
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions
from qwenvl.tools.options import ToolOptions


@dataclass
class TrainingOptions(
    ModelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    PromptOptions,
    ToolOptions,
    RunOptions,
    TrainerOptions,
    ReferenceOptions,
    RewardOptions,
    SamplingOptions,
    ObjectiveOptions,
    TeacherOptions,
):
    """The options of training by rewards, but for those of the Trainer."""


@dataclass
class WarmupRunOptions(
    WarmupOptions,
    ModelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    PromptOptions,
    ToolOptions,
    RunOptions,
    TrainerOptions,
):
    """The options of a warm-up, but for those of the Trainer."""


FLAG_GROUPS: tuple[type[Options], ...] = TrainingOptions.__bases__
WARMUP_GROUPS: tuple[type[Options], ...] = WarmupRunOptions.__bases__
"""The options of a command by topic, as ``--help`` and the docs have them."""

_NOT_OF_A_WARMUP: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: "a warm-up scores nothing",
    SamplingOptions: "a warm-up samples nothing",
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
    TeacherOptions: "a warm-up learns from its targets",
}
OF_TRAINING = {each.name: reason for group, reason in _NOT_OF_A_WARMUP.items() for each in fields(group)}
"""The flags of training that a warm-up does not have, each with the reason. A settings file may have them."""


def flags_elsewhere(kind: type) -> dict[str, str]:
    """What to say of the flags that only the other kind of training has, by name."""
    if issubclass(kind, WarmupOptions):
        return {name: f"--{name} has no effect in a warm-up: {why}; leave it out" for name, why in OF_TRAINING.items()}
    return {each.name: f"unknown flag {each.name}; qwenvl warmup has it" for each in fields(WarmupOptions)}


@dataclass
class TrainingSettings(TrainingOptions, TrainerSettings):
    """The settings that a ``GRPOConfig`` is made of.

    Raises:
        ValueError: naming every one that is wrong.
    """

    def __post_init__(self) -> None:
        if problems := problems_of_run(self):
            raise ValueError("\n".join(problems))


@dataclass
class WarmupSettings(WarmupRunOptions, TrainerSettings):
    """The settings that a ``WarmupConfig`` is made of.

    Raises:
        ValueError: naming every one that is wrong.
    """

    def __post_init__(self) -> None:
        if problems := problems_of_run(self):
            raise ValueError("\n".join(problems))
