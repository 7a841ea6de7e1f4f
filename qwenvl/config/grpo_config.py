"""``GRPOConfig``: every setting of a run, checked when it is made."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments

from qwenvl.config.checks import gathering_problem, problems_between_rooms
from qwenvl.config.own_options import (
    FULL_LEARNING_RATE,
    LORA_LEARNING_RATE,
    DisplayOptions,
    FitOptions,
    RunOptions,
    TrainerOptions,
)
from qwenvl.config.trainer_checks import schedule_problem
from qwenvl.config.unknown import unknown_flag
from qwenvl.config.workers import workers_here
from qwenvl.data.options import DataOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import ModelOptions
from qwenvl.option import problems_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions


@dataclass
class GRPOConfig(
    ModelOptions,
    DataOptions,
    RewardOptions,
    SamplingOptions,
    ObjectiveOptions,
    RunOptions,
    FitOptions,
    TrainerOptions,
    DisplayOptions,
    TrainingArguments,
):
    """The flags of this library and all ``TrainingArguments`` of transformers, in one object.

    Batch sizes count prompts, not completions. A value out of range, or one that would have no effect, is refused.

    Raises:
        TypeError: a setting that does not exist, with the names near to it.
        ValueError: naming every flag that is wrong, and what to do about it.

    Example:
        >>> GRPOConfig(output_dir="runs/sop", grpo_sample_size=8, max_steps=200).learning_rate
        1e-06
    """

    best_metric: ClassVar[str] = "eval_total_reward"

    def __new__(cls, *values: Any, **settings: Any) -> GRPOConfig:
        """Names a setting that does not exist, and what to use in its place, where a dataclass would only name it."""
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                raise TypeError(f"{cls.__name__}: {unknown_flag(name, known)}")
        return super().__new__(cls)

    @property
    def correction(self) -> str:
        """The importance correction that the objective has: by default one for completions that are sampled ahead."""
        if self.importance_correction is None and self.async_rollouts and not self.loss_type.startswith("vespo"):
            return "token_truncate"
        return super().correction

    @property
    def ratio_from_sampler(self) -> bool:
        """Whether the importance ratio is that of the policy to the older weights that sampled a completion ahead."""
        return self.async_rollouts > 0 and self.correction == "none"

    def __post_init__(self) -> None:
        if str(self.fsdp).lower() in ("true", "false"):  # as a settings file has it; transformers takes --fsdp alone
            self.fsdp = str(self.fsdp).lower() == "true"
        if problems := problems_of(self, problems_between_rooms):
            raise ValueError("\n".join(problems))
        if self.output_dir == "":
            raise ValueError("--output_dir is empty: name the folder of the run")
        if self.learning_rate is None:
            self.learning_rate = LORA_LEARNING_RATE if self.lora_enable else FULL_LEARNING_RATE
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and computes_in_bf16()
        rate_follows_metric = self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        follows_metric = rate_follows_metric or self.save_strategy == "best" or self.load_best_model_at_end
        if self.metric_for_best_model is None and follows_metric:
            self.metric_for_best_model = self.best_metric
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = workers_here(torch.cuda.is_available() and not self.use_cpu)
        if getattr(self, "activation_checkpointing", True) is None:
            # The name in newer versions of transformers; the older one, which all versions know, would only warn.
            self.activation_checkpointing = self.gradient_checkpointing
        if self.activation_offload:
            given = self.activation_checkpointing_kwargs or self.gradient_checkpointing_kwargs or {}
            known = json.loads(given) if isinstance(given, str) else given
            self.activation_checkpointing_kwargs = {**known, "offload": True}
            self.gradient_checkpointing_kwargs = None  # the same by an older name
        self.auto_fitted: dict[str, Any] | None = None  # what --auto_fit took
        self.evaluates_by_tokens = self.per_device_eval_batch_size is None
        if self.per_device_eval_batch_size is None:  # of the loader
            self.per_device_eval_batch_size = 1
        TrainingArguments.__post_init__(self)
        # A reward or a script may change the current folder.
        self.output_dir = self.output_dir and os.path.abspath(self.output_dir)
        if rate_follows_metric:  # these schedules take a metric that rises for one that gets worse
            better = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": better, **(self.lr_scheduler_kwargs or {})}
        if problem := schedule_problem(self) or gathering_problem(self):
            raise ValueError(problem)
        step = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        if self.train_sampling_strategy == "group_by_length" and step == 1:
            raise ValueError(
                "--train_sampling_strategy group_by_length has no effect on steps of one prompt: leave it out, or "
                "raise --per_device_train_batch_size or --gradient_accumulation_steps"
            )
        # Pinned memory speeds up copies to a CUDA device; without one the loader would only warn.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type == "cuda"


def computes_in_bf16() -> bool:
    """Whether the CUDA device computes in bfloat16 itself, and ``accelerate launch`` was not told another precision."""
    if os.environ.get("ACCELERATE_MIXED_PRECISION") in ("fp16", "fp8"):
        return False
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
