"""``GRPOConfig``: every setting of a run, checked when it is made, and what it shares with that of a warm-up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments

from qwenvl.config.own_options import FULL_LEARNING_RATE, LORA_LEARNING_RATE, FitOptions, RunOptions, TrainerOptions
from qwenvl.config.trainer_checks import problems_of_trainer, schedule_problem
from qwenvl.config.unknown import unknown_flag
from qwenvl.data.options import DataOptions, DecodingOptions, FrameOptions, PromptOptions, ReadingOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import LoraOptions, ModelOptions, ReferenceOptions, TuneOptions
from qwenvl.option import problems_of, row_of, was_set
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

WORKERS = 2
"""They keep up with steps of seconds, and each holds a decoder and a few prompts."""
_SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 2 * 10**9  # prompts cross there. Docker gives 64 MB, and a full one kills the process


@dataclass
class PolicyConfig(
    ModelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    PromptOptions,
    RunOptions,
    TrainerOptions,
    TrainingArguments,
):
    """The settings of model, data, run and Trainer: those of training by rewards and of a warm-up alike.

    Batch sizes count prompts, not completions. A value out of range, or one that would have no effect, is refused.

    Attributes:
        best_metric: what the best checkpoint is the best in, by default.
        learning_rates: the default peak, of a whole model and of adapters.
    """

    best_metric: ClassVar[str]
    learning_rates: ClassVar[tuple[float, float]]

    def __new__(cls, *values: Any, **settings: Any) -> PolicyConfig:
        """Names a setting that does not exist, and what to use in its place, where a dataclass would only name it."""
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                raise TypeError(f"{cls.__name__}: {cls.unknown(name)}")
        return super().__new__(cls)

    @classmethod
    def unknown(cls, name: str) -> str:
        """The message for a flag or setting that does not exist."""
        return unknown_flag(name, [each.name for each in fields(cls)])

    def further_problems(self) -> Iterable[str]:
        """Problems between the options of several rooms, and of the Trainer's settings."""
        if not (self.tune_mm_llm or self.tune_mm_vision or self.tune_mm_mlp or self.lora_enable):
            yield "nothing is trained: set one of --tune_mm_llm, --tune_mm_mlp, --tune_mm_vision, or --lora_enable"
        if self.activation_offload and not hasattr(self, "activation_checkpointing_kwargs"):
            yield "--activation_offload needs a newer version of transformers, 5.23 or above"
        yield from problems_of_trainer(self)

    def __post_init__(self) -> None:
        if str(self.fsdp).lower() in ("true", "false"):  # as a settings file has it; transformers takes --fsdp alone
            self.fsdp = str(self.fsdp).lower() == "true"
        if problems := problems_of(self, lambda config: config.further_problems()):
            raise ValueError("\n".join(problems))
        if self.output_dir == "":
            raise ValueError("--output_dir is empty: name the folder of the run")
        if self.learning_rate is None:
            self.learning_rate = self.learning_rates[self.lora_enable]
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
        self.evaluates_by_tokens = self.per_device_eval_batch_size is None
        if self.per_device_eval_batch_size is None:  # of the loader
            self.per_device_eval_batch_size = 1
        TrainingArguments.__post_init__(self)
        # A reward or a script may change the current folder.
        self.output_dir = self.output_dir and os.path.abspath(self.output_dir)
        if rate_follows_metric:  # these schedules take a metric that rises for one that gets worse
            better = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": better, **(self.lr_scheduler_kwargs or {})}
        if problem := schedule_problem(self):
            raise ValueError(problem)
        step = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        if self.train_sampling_strategy == "group_by_length" and step == 1:
            raise ValueError(
                "--train_sampling_strategy group_by_length has no effect on steps of one prompt: leave it out, or "
                "raise --per_device_train_batch_size or --gradient_accumulation_steps"
            )
        # Pinned memory speeds up copies to a CUDA device; without one the loader would only warn.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type == "cuda"


@dataclass
class GRPOConfig(PolicyConfig, ReferenceOptions, RewardOptions, SamplingOptions, ObjectiveOptions, FitOptions):
    """The flags of this library and all ``TrainingArguments`` of transformers, in one object.

    Raises:
        TypeError: a setting that does not exist, with the names near to it.
        ValueError: naming every flag that is wrong, and what to do about it.

    Example:
        >>> GRPOConfig(output_dir="runs/sop", grpo_sample_size=8, max_steps=200).learning_rate
        1e-06
    """

    best_metric: ClassVar[str] = "eval_total_reward"
    learning_rates: ClassVar[tuple[float, float]] = (FULL_LEARNING_RATE, LORA_LEARNING_RATE)

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

    def further_problems(self) -> Iterable[str]:
        yield from problems_of_training(self)
        yield from super().further_problems()

    def __post_init__(self) -> None:
        self.auto_fitted: dict[str, Any] | None = None  # what --auto_fit took
        super().__post_init__()
        if problem := gathering_problem(self):
            raise ValueError(problem)


def computes_in_bf16() -> bool:
    """Whether the CUDA device computes in bfloat16 itself, and ``accelerate launch`` was not told another precision."""
    if os.environ.get("ACCELERATE_MIXED_PRECISION") in ("fp16", "fp8"):
        return False
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def decoding_workers(cuda: bool, cores: int, processes: int, shared_bytes: int | None) -> int:
    """The processes of the data loader of one process that trains.

    They are for a step on a GPU, while which the cores are free. On a CPU the step needs the cores itself. Without
    enough shared memory or cores there are none, and clips are decoded between the steps.

    Args:
        cores: that may be used by all processes of the machine.
        processes: that train on the machine.
        shared_bytes: free shared memory, or None where the system has no such folder.

    Example:
        >>> decoding_workers(cuda=True, cores=16, processes=4, shared_bytes=10**10)
        2
    """
    room = shared_bytes is None or shared_bytes >= _LEAST_BYTES * processes
    return min(WORKERS, max(0, cores // processes - 1)) if cuda and room else 0


def workers_here(cuda: bool) -> int:
    """``decoding_workers`` of this machine and run."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = None
    if _SHARED_MEMORY.is_dir():
        status = os.statvfs(_SHARED_MEMORY)
        shared = status.f_bavail * status.f_frsize
    return decoding_workers(cuda, cores, processes, shared)


def problems_of_training(config: Any) -> Iterator[str]:
    """Problems of a ``GRPOConfig`` between the options of several rooms."""
    if config.num_iterations > 1:
        yield from saves_within_windows(config, config.save_steps, config.eval_steps or config.logging_steps)
    if not config.engine_has_own_weights:
        yield from same_weights(config)
    else:
        yield from _of_servers(config)


def _of_servers(config: Any) -> Iterator[str]:
    """Problems with options beside an engine in processes of its own."""
    if config.reads_sampled_entropies:
        names = [name for name in ("top_entropy_quantile", "entropy_target") if was_set(config, name)]
        yield (
            f"--{' and --'.join(names)} cannot be used with --rollout_engine {config.rollout_engine}: vLLM gives no "
            "entropies of the distributions that tokens are drawn from; leave out one of the two"
        )
    for name in ("vllm_deadline", "vllm_patience"):
        if config.stall_timeout and getattr(config, name) >= 60 * config.stall_timeout:
            yield (
                f"--{name} {getattr(config, name):g} seconds are not below --stall_timeout {config.stall_timeout:g} "
                "minutes, which ends the run before: lower the one or raise the other"
            )


def same_weights(config: Any) -> Iterator[str]:
    """Problems with options that correct for a sampler of other weights, where the policy samples itself."""
    if config.importance_correction not in (None, "none"):
        yield (
            f"--importance_correction {config.importance_correction} has no effect: the policy itself samples, and all "
            "weights are 1; it is for engines with weights of their own"
        )
    loss = row_of(config, "loss_type")
    if loss and loss.arguments.off_policy_mask is not None and config.num_iterations == 1:
        yield (
            f"off_policy_mask of --loss_type {loss.name} has no effect with --num_iterations 1: the policy has not "
            "moved since it sampled; leave one of the two out"
        )


def gathering_problem(config: Any) -> str | None:
    """What is wrong with ``ds3_gather_for_generation``, once the Trainer has read what splits the model, or None."""
    zero = config.deepspeed_plugin
    fsdp = config.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if config.ds3_gather_for_generation or fsdp or (zero is not None and zero.hf_ds_config.is_zero3()):
        return None
    return (
        "--ds3_gather_for_generation False has no effect without DeepSpeed ZeRO-3 or FSDP: each process has all "
        "weights anyway; leave it out, or give --deepspeed scripts/deepspeed/zero3.json"
    )


def saves_within_windows(config: Any, save_steps: float, eval_steps: float) -> Iterator[str]:
    """Problems with checkpoints between the steps on the same completions: they lack those, and none could be resumed.

    Args:
        save_steps, eval_steps: in steps. What is below 1 is a share of a run that is not known yet, and passes.
    """
    if getattr(config, "enable_jit_checkpoint", False):
        yield (
            "--enable_jit_checkpoint saves at any step, with --num_iterations above 1 also between the steps on the "
            "same completions, and such a checkpoint could not be resumed: leave one of the two out"
        )
    saving = [("save_steps", save_steps)] if config.save_strategy == "steps" else []
    if config.save_strategy == "best" and config.eval_strategy == "steps":
        saving = [("eval_steps", eval_steps)]
    for name, steps in saving:
        if steps >= 1 and (over := int(steps) % config.num_iterations):
            near = [whole for whole in (int(steps) - over, int(steps) - over + config.num_iterations) if whole]
            yield (
                f"--{name} {steps:g} is no multiple of --num_iterations {config.num_iterations}: a checkpoint between "
                f"the steps on the same completions could not be resumed; give {' or '.join(map(str, near))}"
            )
