"""The options of a warm-up and ``WarmupConfig``, which has them with the settings of training that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from qwenvl.config.flags import SHARED_GROUPS
from qwenvl.config.grpo_config import PolicyConfig
from qwenvl.config.own_options import FitOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import ReferenceOptions
from qwenvl.option import Options, option
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
        needs="not from_rollouts: a completion is taught as it was written",
    )
    from_rollouts: str | None = option(
        None,
        "Folder of a run whose best completions are the targets, in the place of solutions (rejection sampling). "
        "Records of --dataset_use without such a completion are left out.",
        unset="the records' solutions",
    )
    min_reward: float | None = option(
        None,
        "Least total reward of a completion of --from_rollouts to learn from. Required there: total rewards have no "
        "fixed scale.",
        unset="none",
        needs="from_rollouts",
    )
    max_per_prompt: int = option(
        4,
        "Most completions of --from_rollouts to learn from for each prompt, at least 1; equal texts count once. Those "
        "with the highest reward are taken, and of equal ones the latest.",
        least=1,
        needs="from_rollouts",
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
        if self.from_rollouts is not None and self.min_reward is None:
            yield "--from_rollouts needs --min_reward: the least total reward of a completion to learn from"


GROUPS: tuple[type[Options], ...] = (WarmupOptions, *SHARED_GROUPS)
"""The options that a warm-up reads, by topic."""

_REASONS: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: "a warm-up scores nothing",
    SamplingOptions: "a warm-up samples nothing",
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
    FitOptions: "it is about training by rewards",
}
OF_TRAINING = {each.name: reason for group, reason in _REASONS.items() for each in fields(group)}
"""The flags of training that a warm-up does not have, each with the reason. A settings file may have them."""


@dataclass
class WarmupConfig(WarmupOptions, PolicyConfig):
    """The flags of a warm-up: its own, and those of training that are not about sampling, rewards and their loss.

    Raises:
        TypeError: a setting that does not exist, with the reason or the names near to it.
        ValueError: naming every flag that is wrong or has no effect, and what to do about it.

    Example:
        >>> WarmupConfig(output_dir="runs/warm", stop_below_loss=0.5, max_steps=200).learning_rate
        1e-05
    """

    best_metric: ClassVar[str] = "eval_loss"
    learning_rates: ClassVar[tuple[float, float]] = (FULL_LEARNING_RATE, LORA_LEARNING_RATE)
    # No flags: what the code that is shared with training reads. One step on each prompt, no sampling, no reference.
    num_iterations = grpo_sample_size = eval_sample_size = 1
    async_rollouts = grpo_beta = log_completions_every = 0
    auto_fit = sync_ref_model = ref_offload = engine_has_own_weights = compile_decoding = False
    auto_fitted = ref_model_name_or_path = entropy_target = difficulty_band = None
    ds3_gather_for_generation = True
    reward_aggregation = "sum"
    rollout_token_budget = SamplingOptions.rollout_token_budget  # bounds the forwards of evaluation too
    generation_max_length, generation_top_p = SamplingOptions.generation_max_length, 1.0

    @classmethod
    def unknown(cls, name: str) -> str:
        flag = name.split("=")[0].lstrip("-").replace("-", "_").removeprefix("no_")
        if flag in OF_TRAINING:
            return f"--{flag} has no effect in a warm-up: {OF_TRAINING[flag]}; leave it out"
        return super().unknown(name)

    def __post_init__(self) -> None:
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size
        super().__post_init__()

    def further_problems(self) -> Iterable[str]:
        if self.stop_below_loss is not None and self.logging_steps != 1:
            yield "--stop_below_loss reads the loss of each step from the log: leave --logging_steps at 1"
        yield from super().further_problems()
