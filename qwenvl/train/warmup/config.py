"""``WarmupConfig``: the options of a warm-up with the settings of training that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from qwenvl.config.grpo_config import PolicyConfig
from qwenvl.rollout.options import SamplingOptions
from qwenvl.train.warmup.options import FULL_LEARNING_RATE, LORA_LEARNING_RATE, OF_TRAINING, WarmupOptions


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
    auto_fit = sync_ref_model = engine_has_own_weights = compile_decoding = False
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
