"""Checks of the Trainer's own settings: numbers without a meaning, and settings without effect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import get_scheduler
from transformers.training_args import trainer_log_levels

from qwenvl.option import Bounds, was_set

BOUNDS = {
    "adam_beta1": Bounds(least=0, below=1),
    "adam_beta2": Bounds(least=0, below=1),
    "adam_epsilon": Bounds(least=0),
    "dataloader_prefetch_factor": Bounds(least=1),
    "ddp_bucket_cap_mb": Bounds(above=0),
    "ddp_timeout": Bounds(above=0),
    "eval_delay": Bounds(least=0),
    "eval_steps": Bounds(above=0),
    "gradient_accumulation_steps": Bounds(least=1),
    "max_grad_norm": Bounds(least=0),
    "neftune_noise_alpha": Bounds(above=0),
    "save_total_limit": Bounds(least=1, why="without the setting all checkpoints are kept"),
    "seed": Bounds(least=0, most=2**32 - 1),
    "warmup_steps": Bounds(least=0),
    "weight_decay": Bounds(least=0),
}
"""Bounds of settings that keep the defaults they have in the Trainer."""

_NO_LABELS = "no loss here reads labels"
_EVALUATION = "evaluation is made as training is, by this library itself"
_SCRIPTS = "the command trains, and evaluates where it has data for it"
WITHOUT_EFFECT = {
    "label_smoothing_factor": _NO_LABELS,
    "label_names": _NO_LABELS,
    "prediction_loss_only": _EVALUATION,
    "include_for_metrics": _EVALUATION,
    "batch_eval_metrics": _EVALUATION,
    "eval_do_concat_batches": _EVALUATION,
    "eval_use_gather_object": _EVALUATION,
    "eval_accumulation_steps": _EVALUATION,
    "bf16_full_eval": _EVALUATION,
    "fp16_full_eval": _EVALUATION,
    "length_column_name": "lengths are estimated from the text and the headers of the media",
    "do_train": _SCRIPTS,
    "do_predict": _SCRIPTS,
}
"""Settings that nothing here would read, and why."""

NEEDED = {
    "dataloader_persistent_workers": "dataloader_num_workers",
    "dataloader_prefetch_factor": "dataloader_num_workers",
    "dataloader_multiprocessing_context": "dataloader_num_workers",
    "dataloader_in_order": "dataloader_num_workers",
    "hub_strategy": "push_to_hub",
    "hub_always_push": "push_to_hub",
    "liger_kernel_config": "use_liger_kernel",
}
"""Settings that are read only where another one is set."""

IGNORED = {
    "optim": {
        "adam_beta1": ("adafactor", "sgd", "adagrad", "rmsprop"),
        "adam_beta2": ("adafactor", "sgd", "adagrad", "rmsprop"),
        "adam_epsilon": ("adafactor", "sgd", "adagrad", "rmsprop"),
        "optim_args": ("adamw_torch", "adamw_torch_fused", "adafactor"),
        "optim_target_modules": ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"),
    },
    "lr_scheduler_type": {
        "warmup_steps": ("constant", "reduce_lr_on_plateau", "greedy"),
        "lr_scheduler_kwargs": ("constant", "constant_with_warmup"),
    },
}
"""Settings that some optimizers and schedules do not read, with the names of these."""

OPTIMIZER_PACKAGES = {
    "bitsandbytes": ("adamw_bnb", "adamw_8bit", "paged_", "ademamix", "lion_", "rmsprop_bnb"),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "galore_torch": ("galore_",),
    "apollo_torch": ("apollo_",),
    "lomo_optim": ("lomo", "adalomo"),
    "grokadamw": ("grokadamw",),
    "schedulefree": ("schedule_free",),
}
"""Packages that the Trainer's optimizers come from, each with how the names of its optimizers begin."""

_LAUNCHED = {"RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"}  # what DeepSpeed finds out about its processes from


def problems_of_trainer(config: Any) -> Iterator[str]:
    """What is wrong with the settings that the Trainer reads."""
    for name, bounds in BOUNDS.items():
        value = getattr(config, name)
        if isinstance(value, int | float) and (problem := bounds.problem(name, value)):
            yield problem
    if config.max_steps < 1 and config.max_steps != -1:
        default = "-1, the default, leaves it to --num_train_epochs"
        yield f"--max_steps must be at least 1, got {config.max_steps}; {default}"
    if config.warmup_steps > 1 and config.warmup_steps != int(config.warmup_steps):
        yield f"--warmup_steps must be whole, or below 1 for a share of all steps, got {config.warmup_steps}"
    for name in ("log_level", "log_level_replica"):
        if (level := getattr(config, name)) not in trainer_log_levels:
            yield f"--{name} must be one of {', '.join(trainer_log_levels)}, got {level!r}"
    for name, reason in WITHOUT_EFFECT.items():
        if was_set(config, name):
            yield f"--{name} has no effect: {reason}; leave it out"
    for name, other in NEEDED.items():
        if was_set(config, name) and not getattr(config, other):
            yield f"--{name} has no effect without --{other}"
    for choice, names in IGNORED.items():
        chosen = _text(getattr(config, choice))
        for name, deaf in names.items():
            if chosen in deaf and was_set(config, name):
                yield f"--{name} has no effect with --{choice} {chosen}: leave it out or choose another {choice}"
    yield from _without_occasion(config)
    yield from _missing_parts(config)


def schedule_problem(config: Any) -> str | None:
    """Why the schedule of the learning rate can't be made, or None. Asked of a config whose values are resolved."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    steps = config.max_steps if config.max_steps > 0 else 10**6  # of how many is not known yet
    try:
        get_scheduler(
            config.lr_scheduler_type,
            optimizer,
            num_warmup_steps=config.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(config.lr_scheduler_kwargs or {}),
        )
    except (TypeError, ValueError) as error:
        told = f"{_text(config.lr_scheduler_type)} with --lr_scheduler_kwargs {config.lr_scheduler_kwargs or {}}"
        return f"--lr_scheduler_type {told} makes no schedule: {error}"
    return None


def _without_occasion(config: Any) -> Iterator[str]:
    """Settings of logging, evaluating and saving in a run that does not do this, or not at steps."""
    for name in ("logging", "eval", "save"):
        strategy = getattr(config, f"{name}_strategy")
        read_elsewhere = name == "logging" and config.eval_strategy == "steps" and config.eval_steps is None
        if strategy != "steps" and was_set(config, f"{name}_steps") and not read_elsewhere:
            shown = _text(strategy)
            yield f"--{name}_steps has no effect with --{name}_strategy {shown}: leave it out or make the latter steps"
    if config.eval_strategy == "no":
        for name, chosen in (
            ("load_best_model_at_end", config.load_best_model_at_end),
            ("save_strategy best", config.save_strategy == "best"),
            ("metric_for_best_model", config.metric_for_best_model is not None),
            ("eval_delay", config.eval_delay > 0),
            ("greater_is_better", config.greater_is_better is not None),
        ):
            if chosen:
                yield f"--{name} has no effect without evaluation: set --eval_strategy to steps or epoch"
    if config.save_strategy == "no":
        for name in ("save_total_limit", "save_only_model"):
            if was_set(config, name):
                yield f"--{name} has no effect with --save_strategy no: no checkpoint is saved"
    for prefix in ("gradient", "activation"):
        name = f"{prefix}_checkpointing_kwargs"
        is_on = config.gradient_checkpointing or getattr(config, "activation_checkpointing", False)
        if getattr(config, name, None) and not is_on:
            yield f"--{name} has no effect without --gradient_checkpointing"


def _missing_parts(config: Any) -> Iterator[str]:
    """Problems with files, packages and processes that the Trainer would miss only later."""
    uses_fsdp = str(config.fsdp).lower() not in ("none", "false", "[]", "")
    if config.fsdp_config is not None and not uses_fsdp:
        yield "--fsdp_config has no effect without --fsdp: add it or leave both out"
    path = config.fsdp_config
    if isinstance(path, str | Path) and not str(path).lstrip().startswith("{") and not Path(path).is_file():
        yield f"--fsdp_config {path}: no such file; expected a JSON file"
    if config.save_only_model and config.load_best_model_at_end and (uses_fsdp or config.deepspeed):
        yield "--save_only_model: FSDP and DeepSpeed can't take it with --load_best_model_at_end; leave one out"
    optimizer = _text(config.optim)
    if optimizer.startswith("paged_") and (config.use_cpu or not torch.cuda.is_available()):
        plain = optimizer.removeprefix("paged_")
        yield f"--optim {optimizer} has no effect on a CPU: there is no GPU to move states out of; take --optim {plain}"
    for package, names in OPTIMIZER_PACKAGES.items():
        if optimizer.startswith(names) and find_spec(package) is None:
            pip = package.replace("_", "-")
            yield f"--optim {optimizer} needs {package}: pip install {pip}, or take --optim adamw_torch"
    if config.optim_args and not all(part.count("=") == 1 for part in config.optim_args.split(",")):
        yield f"--optim_args must be name=value,name=value, got {config.optim_args!r}"
    if config.deepspeed and not _LAUNCHED & set(os.environ) and find_spec("mpi4py") is None:
        yield (
            "--deepspeed needs a launcher, for one process too: put torchrun --standalone --nproc_per_node 1 in place "
            "of python"
        )


def _text(choice: Any) -> str:
    """A choice as it is typed: the Trainer makes members of an Enum of some."""
    return str(getattr(choice, "value", choice))
