"""``GRPOConfig`` and ``WarmupConfig``: every setting of a run, checked when it is made."""

from __future__ import annotations

import inspect
import os
import shutil
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from transformers import TrainingArguments, get_scheduler

from qwenvl.config.checks import problems_of_machine, problems_of_run
from qwenvl.config.flags import help_of
from qwenvl.config.other_names import unknown_flag
from qwenvl.config.settings import TrainingOptions, WarmupRunOptions, flags_elsewhere, prompts_per_step
from qwenvl.config.trainer_checks import MAPPINGS, mapping_of
from qwenvl.rollout.options import DecodingSpeedOptions
from qwenvl.types import EVALUATED

Some = TypeVar("Some")

WORKERS = 2
"""Default processes that load data. Two keep up with steps of seconds; each holds a decoder and a few prompts."""
SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 2 * 10**9  # of shared memory, which prompts cross. Docker gives 64 MB, and a full one kills the process


def named_settings(kind: type[Some]) -> type[Some]:
    """Decorate a config so that it refuses an unknown setting by name, and notes given ones in ``set_by_user``.

    The docstring gets the help of all settings. The signature stays that of the dataclass, so that editors complete it.
    """
    made_by_dataclass = kind.__init__
    in_order = [each.name for each in fields(kind) if each.init]  # type: ignore[arg-type]
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]

    @wraps(made_by_dataclass)
    def init(self: Any, *values: Any, **settings: Any) -> None:
        for name in settings:
            if name not in known:
                raise TypeError(f"{kind.__name__}: {unknown_flag(name, known, flags_elsewhere(kind))}")
        self.set_by_user = frozenset([*in_order[: len(values)], *settings])
        made_by_dataclass(self, *values, **settings)

    kind.__init__ = init  # type: ignore[method-assign]
    described = [each for each in fields(kind) if "help" in each.metadata]  # type: ignore[arg-type]
    arguments = [f"    {each.name}: {help_of(each)}" for each in described]
    kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Args:", *arguments])
    return kind


@named_settings
@dataclass
class GRPOConfig(TrainingOptions, TrainingArguments):
    """The flags of this library and all ``TrainingArguments`` of transformers, in one object.

    Batch sizes count prompts, not completions. A value out of range, or one that would have no effect, is refused.

    Raises:
        TypeError: a setting that does not exist, with the names near to it.
        ValueError: naming every flag that is wrong, and what to do about it.

    Example:
        >>> GRPOConfig(output_dir="runs/sop", grpo_sample_size=8, max_steps=200).learning_rate
        1e-06
    """

    set_by_user = frozenset[str]()
    """Names of the settings that were given. All others have their default, or what it resolves to on this machine."""
    evaluates_by_tokens = False
    """Evaluations put prompts together by their tokens, as no batch size is given for them."""

    def __post_init__(self) -> None:
        settle(self, rates=(1e-6, 1e-5), best_metric=f"eval{EVALUATED}")
        problem = gathering_problem(self)
        if problem:
            raise ValueError(problem)

    @property
    def correction(self) -> str:
        """The importance correction of the objective. Completions that are sampled ahead have one by default."""
        if self.importance_correction is None and self.async_rollouts and not self.loss_type.startswith("vespo"):
            return "token_truncate"
        return super().correction

    @property
    def ratio_from_sampler(self) -> bool:
        """Whether the importance ratio is that of the policy to the older weights that sampled a completion ahead."""
        return self.async_rollouts > 0 and self.correction == "none"


@named_settings
@dataclass
class WarmupConfig(WarmupRunOptions, TrainingArguments):
    """The flags of a warm-up: its own, and those of training that are not about sampling, rewards and their loss.

    Raises:
        TypeError: a setting that does not exist, with the reason or the names near to it.
        ValueError: naming every flag that is wrong or has no effect, and what to do about it.

    Example:
        >>> WarmupConfig(output_dir="runs/warm", stop_below_loss=0.5, max_steps=200).learning_rate
        1e-05
    """

    set_by_user = frozenset[str]()
    """Names of the settings that were given, as those of a ``GRPOConfig``."""
    evaluates_by_tokens = False  # its evaluations have a batch size

    # Settings that code of both trainers reads. A warm-up takes one step on its targets, and samples nothing.
    num_iterations = 1
    async_rollouts = 0
    entropy_target = None
    sync_ref_model = False
    engine_has_own_weights = False
    compile_decoding = False
    draft_tokens = 0
    rollout_token_budget = DecodingSpeedOptions.rollout_token_budget
    log_completions_every = 0

    def __post_init__(self) -> None:
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size
        settle(self, rates=(1e-5, 1e-4), best_metric="eval_loss")


RunConfig: TypeAlias = GRPOConfig | WarmupConfig
"""The settings of a run."""


def require_config(args: Any, kind: type) -> None:
    """Raise TypeError where a trainer gets something else than its settings, such as a dict of them."""
    if isinstance(args, kind):
        return
    make = "**the dict" if isinstance(args, dict) else "output_dir=..., max_steps=..."
    trainer = kind.__name__.replace("Config", "Trainer")
    found = "transformers.TrainingArguments" if type(args) is TrainingArguments else type(args).__name__
    raise TypeError(f"{trainer}: expected a {kind.__name__} as args, got {found}: {kind.__name__}({make})")


def settle(config: RunConfig, rates: tuple[float, float], best_metric: str) -> None:
    """Check the settings of a run, and resolve the defaults that depend on other settings or on the machine.

    Args:
        rates: the default peak of the learning rate, of a whole model and of adapters.
        best_metric: the default metric by which the best checkpoint is chosen.

    Raises:
        ValueError: naming every setting that is wrong.
    """
    if str(config.fsdp).lower() in ("true", "false"):  # as a settings file has it; transformers takes --fsdp alone
        config.fsdp = str(config.fsdp).lower() == "true"
    _make_numbers_plain(config)
    if config.report_to is None:  # as people write it in Python
        config.report_to = "none"
    problems = problems_of_run(config) or list(problems_of_machine(config))
    if problems:
        raise ValueError("\n".join(problems))
    for name in MAPPINGS:
        if hasattr(config, name):  # older versions of transformers lack some
            setattr(config, name, mapping_of(config, name))
    _resolve_rate_and_precision(config, rates)
    rate_follows_metric = config.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
    follows_metric = rate_follows_metric or config.save_strategy == "best" or config.load_best_model_at_end
    if config.metric_for_best_model is None and follows_metric:
        config.metric_for_best_model = best_metric
    if config.dataloader_num_workers is None:
        config.dataloader_num_workers = decoding_workers(torch.cuda.is_available() and not config.use_cpu)
    _resolve_checkpointing(config)
    config.evaluates_by_tokens = config.per_device_eval_batch_size is None
    if config.evaluates_by_tokens:
        config.per_device_eval_batch_size = 1  # of the loader: prompts are put together by their tokens afterwards
    TrainingArguments.__post_init__(config)
    # A reward or a script may change the current folder.
    config.output_dir = config.output_dir and os.path.abspath(config.output_dir)
    if rate_follows_metric:  # these schedules take a metric that rises for one that gets worse
        better = "max" if config.greater_is_better else "min"
        config.lr_scheduler_kwargs = {"mode": better, **(config.lr_scheduler_kwargs or {})}
    check_schedule(config)
    if config.train_sampling_strategy == "group_by_length" and prompts_per_step(config) == 1:
        raise ValueError(
            "--train_sampling_strategy group_by_length has no effect on steps of one prompt: leave it out, or "
            "raise --per_device_train_batch_size or --gradient_accumulation_steps"
        )
    # Pinned memory speeds up copies to a CUDA device; without one the loader would only warn.
    config.dataloader_pin_memory = config.dataloader_pin_memory and config.device.type == "cuda"


def _make_numbers_plain(config: RunConfig) -> None:
    """Replace numbers of NumPy, as a script may compute them, by those of Python: JSON and YAML have no others."""
    for each in fields(config):
        value = getattr(config, each.name, None)
        if isinstance(value, np.generic):
            setattr(config, each.name, value.item())
        elif isinstance(value, list):
            setattr(config, each.name, [item.item() if isinstance(item, np.generic) else item for item in value])


def _resolve_rate_and_precision(config: RunConfig, rates: tuple[float, float]) -> None:
    """Adapters learn at another rate than a whole model, and bfloat16 is taken where the device computes in it."""
    of_model, of_adapters = rates
    if config.learning_rate is None:
        config.learning_rate = of_adapters if config.lora_enable else of_model
    if config.bf16 is None:
        config.bf16 = not config.fp16 and not config.use_cpu and computes_in_bf16()


def _resolve_checkpointing(config: RunConfig) -> None:
    """Give the settings of checkpointing under the name that the installed transformers has for them.

    Newer versions call it ``activation_checkpointing``. They know the older name, and would only warn.
    """
    has_newer_name = hasattr(config, "activation_checkpointing")
    if has_newer_name and config.activation_checkpointing is None:
        config.activation_checkpointing = config.gradient_checkpointing
    if has_newer_name and config.activation_checkpointing_kwargs is None:
        config.activation_checkpointing_kwargs = config.gradient_checkpointing_kwargs
        config.gradient_checkpointing_kwargs = None
    if config.activation_offload:
        given = config.activation_checkpointing_kwargs or config.gradient_checkpointing_kwargs or {}
        config.activation_checkpointing_kwargs = {**given, "offload": True}
        config.gradient_checkpointing_kwargs = None


def check_schedule(config: RunConfig) -> None:
    """Make the schedule of the learning rate for a parameter of its own: the Trainer would once the model is loaded.

    Raises:
        ValueError: the schedule does not have one of ``lr_scheduler_kwargs``, or lacks one that it needs.
    """
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    try:
        get_scheduler(
            config.lr_scheduler_type,
            optimizer,
            num_warmup_steps=0,  # so that the rate of step 0 is computed by the schedule, with its arguments
            num_training_steps=10,
            scheduler_specific_kwargs=config.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError) as error:
        name = getattr(config.lr_scheduler_type, "value", config.lr_scheduler_type)
        raise ValueError(
            f"--lr_scheduler_type {name} cannot be made with --lr_scheduler_kwargs {config.lr_scheduler_kwargs}: "
            f"{' '.join(str(error).split())}"
        ) from None


def computes_in_bf16() -> bool:
    """Whether the CUDA device computes in bfloat16 itself, and ``accelerate launch`` was not told another precision."""
    if os.environ.get("ACCELERATE_MIXED_PRECISION") in ("fp16", "fp8"):
        return False
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def decoding_workers(cuda: bool) -> int:
    """The default number of processes of the data loader of each process that trains, on this machine.

    They decode during a step on a GPU, while the cores are free. On a CPU the step needs the cores itself. Without
    enough shared memory or cores there are no workers, and clips are decoded between the steps.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    has_room = not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).free >= _LEAST_BYTES * processes
    if not cuda or not has_room:
        return 0
    spare_cores = max(0, cores // processes - 1)  # one is the training process's own
    return min(WORKERS, spare_cores)


def gathering_problem(config: GRPOConfig) -> str | None:
    """The problem of ``ds3_gather_for_generation`` in a run that nothing splits, or None.

    Call it once the Trainer has read the settings of DeepSpeed and FSDP.
    """
    zero = config.deepspeed_plugin
    fsdp = config.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if config.ds3_gather_for_generation or fsdp or (zero is not None and zero.hf_ds_config.is_zero3()):
        return None
    return (
        "--ds3_gather_for_generation False has no effect without DeepSpeed ZeRO-3 or FSDP: each process has all "
        "weights anyway; leave it out, or give --deepspeed scripts/deepspeed/zero3.json"
    )
