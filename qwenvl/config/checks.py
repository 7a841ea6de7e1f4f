"""Checks of settings beyond the single option: between rooms, of the Trainer's own settings, of the machine.

They import no torch, so that a command line is refused before torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.option import Bounds, problems_of, row_of, unmet_needs, was_set

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

NOT_OF_OURS = {
    **dict.fromkeys(("label_smoothing_factor", "label_names"), "no loss here reads labels"),
    **dict.fromkeys(
        (
            *("prediction_loss_only", "include_for_metrics", "batch_eval_metrics", "eval_do_concat_batches"),
            *("eval_use_gather_object", "eval_accumulation_steps", "bf16_full_eval", "fp16_full_eval"),
        ),
        "evaluation is made as training is, by this library itself",
    ),
    "length_column_name": "lengths are estimated from the text and the headers of the media",
    **dict.fromkeys(("do_train", "do_predict"), "the command trains, and evaluates where it has data for it"),
    "enable_jit_checkpoint": "--save_on_signal saves a checkpoint, at the end of a step",
    "remove_unused_columns": "reward functions see every field of a record",
    "ddp_find_unused_parameters": "each trained parameter has a gradient, which is 0 for prompts without media",
    "ddp_broadcast_buffers": "buffers never change, and processes may run different numbers of forwards",
    "logging_nan_inf_filter": "a loss that is not a number must show",
}
"""Settings of the Trainer that must keep their default here, and why."""

_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")
NEEDS = {
    **dict.fromkeys((f"dataloader_{name}" for name in _WORKERS), "dataloader_num_workers"),
    "dataloader_drop_last": "num_iterations == 1: short steps are filled up",
    **dict.fromkeys(("hub_strategy", "hub_always_push"), "push_to_hub"),
    "liger_kernel_config": "use_liger_kernel",
    **dict.fromkeys(
        ("adam_beta1", "adam_beta2", "adam_epsilon"), "optim not in ('adafactor', 'sgd', 'adagrad', 'rmsprop')"
    ),
    "optim_args": "optim not in ('adamw_torch', 'adamw_torch_fused', 'adafactor')",
    "optim_target_modules": (
        "optim not in ('adamw_torch', 'adamw_torch_fused', 'adafactor', 'sgd', 'adagrad', 'rmsprop')"
    ),
    "warmup_steps": "lr_scheduler_type not in ('constant', 'reduce_lr_on_plateau', 'greedy')",
    "lr_scheduler_kwargs": "lr_scheduler_type not in ('constant', 'constant_with_warmup')",
    "eval_steps": "eval_strategy == 'steps'",
    **dict.fromkeys(
        ("eval_delay", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"), "eval_strategy != 'no'"
    ),
    "save_strategy": "save_strategy != 'best' or eval_strategy != 'no'",
    **dict.fromkeys(("save_total_limit", "save_only_model"), "save_strategy != 'no': no checkpoint is saved"),
    "fsdp_config": "fsdp",
    **dict.fromkeys(
        ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
        "gradient_checkpointing or activation_checkpointing",
    ),
}
"""Conditions of settings that keep the defaults they have in the Trainer, see ``option``."""

_LAUNCHED = {"RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"}  # what DeepSpeed finds out about its processes from

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


def problems_of_run(config: Any) -> list[str]:
    """Everything wrong with the settings of a run, on any machine. Empty where all is well."""
    return problems_of(config, _between_rooms)


def _between_rooms(config: Any) -> Iterator[str]:
    if isinstance(config, ObjectiveOptions):
        yield from _of_training(config)
    if not (config.tune_mm_llm or config.tune_mm_vision or config.tune_mm_mlp or config.lora_enable):
        yield "nothing is trained: set one of --tune_mm_llm, --tune_mm_mlp, --tune_mm_vision, or --lora_enable"
    if config.activation_offload and not hasattr(config, "activation_checkpointing_kwargs"):
        yield "--activation_offload needs a newer version of transformers, 5.23 or above"
    if config.output_dir == "":
        yield "--output_dir is empty: name the folder of the run"
    yield from _of_trainer(config)


def _of_trainer(config: Any) -> Iterator[str]:
    """What is wrong with the settings that the Trainer reads."""
    for name, bounds in BOUNDS.items():
        if problem := bounds.problem(name, getattr(config, name)):
            yield problem
    if config.max_steps < 1 and config.max_steps != -1:
        default = "-1, the default, leaves it to --num_train_epochs"
        yield f"--max_steps must be at least 1, got {config.max_steps}; {default}"
    if config.warmup_steps > 1 and config.warmup_steps != int(config.warmup_steps):
        yield f"--warmup_steps must be whole, or below 1 for a share of all steps, got {config.warmup_steps}"
    for name, reason in NOT_OF_OURS.items():
        if was_set(config, name):
            yield f"--{name} cannot be used: {reason}; leave it out"
    for name, need in NEEDS.items():
        if hasattr(config, name) and was_set(config, name):
            yield from unmet_needs(config, f"--{name}", (need,))
    if config.optim_args and not all(part.count("=") == 1 for part in config.optim_args.split(",")):
        yield f"--optim_args must be name=value,name=value, got {config.optim_args!r}"


def problems_of_machine(config: Any) -> Iterator[str]:
    """Files, packages, processes and GPUs that the settings need and this machine lacks."""
    for name in ("fsdp_config", "deepspeed", "dataset_catalog"):
        path = getattr(config, name, None)
        if isinstance(path, str | Path) and not str(path).lstrip().startswith("{") and not Path(path).is_file():
            yield f"--{name} {path}: no such file; expected a {'YAML' if name == 'dataset_catalog' else 'JSON'} file"
    optimizer = str(getattr(config.optim, "value", config.optim))  # the Trainer makes it a member of an Enum
    for package, names in OPTIMIZER_PACKAGES.items():
        if optimizer.startswith(names) and find_spec(package) is None:
            pip = package.replace("_", "-")
            yield f"--optim {optimizer} needs {package}: pip install {pip}, or take --optim adamw_torch"
    if config.deepspeed and not _LAUNCHED & set(os.environ) and find_spec("mpi4py") is None:
        yield (
            "--deepspeed needs a launcher, for one process too: put torchrun --standalone --nproc_per_node 1 in place "
            "of python"
        )


def _of_training(config: Any) -> Iterator[str]:
    """Problems of a ``GRPOConfig`` between the options of several rooms."""
    if config.num_iterations > 1:
        yield from _saves_within_windows(config)
    if config.engine_has_own_weights:
        if config.reads_sampled_entropies:
            names = [name for name in ("top_entropy_quantile", "entropy_target") if was_set(config, name)]
            yield (
                f"--{' and --'.join(names)} cannot be used with --rollout_engine {config.rollout_engine}: vLLM gives "
                "no entropies of the distributions that tokens are drawn from; leave out one of the two"
            )
        for name in ("vllm_deadline", "vllm_patience"):
            if config.stall_timeout and getattr(config, name) >= 60 * config.stall_timeout:
                yield (
                    f"--{name} {getattr(config, name):g} seconds are not below --stall_timeout "
                    f"{config.stall_timeout:g} minutes, which ends the run before: lower the one or raise the other"
                )
        return
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


def _saves_within_windows(config: Any) -> Iterator[str]:
    """Problems with checkpoints between the steps on the same completions: they lack those, so none can be resumed."""
    saving = [("save_steps", config.save_steps)] if config.save_strategy == "steps" else []
    if config.save_strategy == "best" and config.eval_strategy == "steps":
        saving = [("eval_steps", config.eval_steps or config.logging_steps)]
    for name, steps in saving:
        if steps < 1:
            yield f"--{name} {steps:g}: with --num_iterations above 1 give a number of steps, a multiple of it"
        elif over := int(steps) % config.num_iterations:
            near = [whole for whole in (int(steps) - over, int(steps) - over + config.num_iterations) if whole]
            yield (
                f"--{name} {steps:g} is no multiple of --num_iterations {config.num_iterations}: a checkpoint between "
                f"the steps on the same completions could not be resumed; give {' or '.join(map(str, near))}"
            )
