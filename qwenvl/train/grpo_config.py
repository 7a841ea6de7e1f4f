"""``GRPOConfig``: every setting of a run, checked when it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from transformers import TrainingArguments

from qwenvl.train.flags import (
    DataArguments,
    ModelArguments,
    ObjectiveArguments,
    RewardArguments,
    SamplingArguments,
    all_problems,
)

FULL_LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5


@dataclass
class GRPOConfig(
    ModelArguments, DataArguments, RewardArguments, SamplingArguments, ObjectiveArguments, TrainingArguments
):
    """The flags of this library and all of transformers' ``TrainingArguments``, in one object.

    Batch sizes count prompts, not completions. A value out of range, or one that would have no effect, is refused.

    Raises:
        ValueError: naming every flag that is wrong, and what to do about it.

    Example:
        >>> GRPOConfig(output_dir="runs/sop", grpo_sample_size=8, max_steps=200).learning_rate
        1e-06
    """

    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate, above 0. "
            f"Unset: {FULL_LEARNING_RATE:g}, with LoRA {LORA_LEARNING_RATE:g}; rewards are a noisy signal."
        },
    )
    bf16: bool | None = field(
        default=None,
        metadata={"help": "Compute in bfloat16. Unset: where a CUDA device has it, never on a CPU."},
    )
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the data; --max_steps overrides it."})
    per_device_train_batch_size: int = field(
        default=1, metadata={"help": "Prompts per process and micro-batch; each has --grpo_sample_size completions."}
    )
    per_device_eval_batch_size: int = field(default=1, metadata={"help": "Prompts per process in evaluation."})
    logging_steps: float = field(
        default=1, metadata={"help": "Optimizer steps between log entries. Steps take seconds: each is logged."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide losses that are not numbers from the log. They should be seen."}
    )
    save_steps: float = field(default=100, metadata={"help": "Optimizer steps between checkpoints."})
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay False: reward functions see every field of a record."}
    )
    ddp_broadcast_buffers: bool | None = field(
        default=False,
        metadata={"help": "Send buffers to all processes before each forward. They never change here: not needed."},
    )

    def __post_init__(self) -> None:
        problems = all_problems(self) + self._training_problems()
        if problems:
            raise ValueError("\n".join(problems))
        if self.learning_rate is None:
            self.learning_rate = LORA_LEARNING_RATE if self.lora_enable else FULL_LEARNING_RATE
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and _wants_bf16()
        if self.metric_for_best_model is None and (
            self.load_best_model_at_end or self.save_strategy == "best" or "plateau" in str(self.lr_scheduler_type)
        ):
            self.metric_for_best_model = "eval_total_reward"
        super().__post_init__()

    def _training_problems(self) -> list[str]:
        """What is wrong with inherited settings: those without effect here would be silent otherwise."""
        problems = []
        if self.learning_rate is not None and self.learning_rate <= 0:
            problems.append(f"--learning_rate must be above 0, got {self.learning_rate}")
        if self.remove_unused_columns:
            problems.append("--remove_unused_columns must stay False: it would strip the prompts from the batch")
        for name, reason in _WITHOUT_EFFECT.items():
            if getattr(self, name):
                problems.append(f"--{name} has no effect: {reason}; leave it out")
        return problems


_WITHOUT_EFFECT = {
    "label_smoothing_factor": "there are no labels in GRPO",
    "label_names": "there are no labels in GRPO",
    "prediction_loss_only": "evaluation scores sampled completions and computes no loss",
    "include_for_metrics": "evaluation scores sampled completions with the reward functions",
    "batch_eval_metrics": "evaluation scores sampled completions with the reward functions",
}


def _wants_bf16() -> bool:
    """Whether the CUDA device computes in bfloat16 itself and accelerate's launcher was not told otherwise."""
    import torch

    if os.environ.get("ACCELERATE_MIXED_PRECISION") in ("fp16", "fp8"):
        return False
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
