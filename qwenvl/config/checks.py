"""Checks between the options of several rooms, and between them and the Trainer's own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwenvl.option import Bounds, was_set

TRAINER_BOUNDS = {
    "adam_beta1": Bounds(least=0, below=1),
    "adam_beta2": Bounds(least=0, below=1),
    "adam_epsilon": Bounds(least=0),
    "eval_steps": Bounds(above=0),
    "max_grad_norm": Bounds(least=0),
    "weight_decay": Bounds(least=0),
    "gradient_accumulation_steps": Bounds(least=1),
    "dataloader_num_workers": Bounds(least=0),
}
"""Bounds of settings of the Trainer that keep the defaults they have there."""

_NO_LABELS = "GRPO has no labels"
_EVALUATION = "evaluation samples completions as training does and scores them with the reward functions"
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
}
"""Settings of the Trainer that nothing here would read, and why."""


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


def problems_between_rooms(config: Any) -> Iterator[str]:
    """What is wrong with a ``GRPOConfig`` beyond the options of single rooms."""
    for name, bounds in TRAINER_BOUNDS.items():
        value = getattr(config, name)
        if isinstance(value, int | float) and (problem := bounds.problem(name, value)):
            yield problem
    if config.max_steps == 0:  # to the Trainer any number below 1 means none
        yield "--max_steps must be at least 1, got 0; -1, the default, leaves it to --num_train_epochs"
    if config.num_iterations > 1:
        yield from saves_within_windows(config, config.save_steps, config.eval_steps or config.logging_steps)
        if config.dataloader_drop_last:
            yield "--dataloader_drop_last has no effect with --num_iterations above 1: short steps are filled up"
    if config.advantage_estimator == "gdpo" and config.reward_aggregation != "sum":
        yield (
            f"--reward_aggregation {config.reward_aggregation} has no effect with --advantage_estimator gdpo, which "
            "normalises each reward function and sums them itself: leave it out"
        )
    if config.shared_prefix == "off" and config.compile_decoding:
        yield "--compile_decoding has no effect with --shared_prefix off: it compiles the shared sampling"
    for name, reason in WITHOUT_EFFECT.items():
        if was_set(config, name):
            yield f"--{name} has no effect: {reason}; leave it out"
    yield from strategies(config)
    yield from missing_parts(config)


def strategies(config: Any) -> Iterator[str]:
    """Problems with when a run evaluates and saves: what has no effect without the other."""
    for name in ("eval", "save"):
        strategy = getattr(config, f"{name}_strategy")
        if strategy != "steps" and was_set(config, f"{name}_steps"):
            shown = getattr(strategy, "value", strategy)
            yield f"--{name}_steps has no effect with --{name}_strategy {shown}: leave it out or make the latter steps"
    if config.eval_strategy == "no":
        for flag, chosen in (
            ("load_best_model_at_end", config.load_best_model_at_end),
            ("save_strategy best", config.save_strategy == "best"),
        ):
            if chosen:
                yield f"--{flag} has no effect without evaluation: set --eval_strategy to steps or epoch"


def missing_parts(config: Any) -> Iterator[str]:
    """Problems with files, packages and processes that the Trainer would miss only later."""
    if config.fsdp_config is not None and str(config.fsdp).lower() in ("none", "false", "[]", ""):
        yield "--fsdp_config has no effect without --fsdp: add it or leave both out"
    path = config.fsdp_config
    if isinstance(path, str | Path) and not str(path).lstrip().startswith("{") and not Path(path).is_file():
        yield f"--fsdp_config {path}: no such file; expected a JSON file"
    optimizer = getattr(config.optim, "value", config.optim)
    for package, names in OPTIMIZER_PACKAGES.items():
        if str(optimizer).startswith(names) and find_spec(package) is None:
            pip = package.replace("_", "-")
            yield f"--optim {optimizer} needs {package}: pip install {pip}, or take --optim adamw_torch"
    if config.deepspeed and not _LAUNCHED & set(os.environ) and find_spec("mpi4py") is None:
        yield (
            "--deepspeed needs a launcher, for one process too: put torchrun --standalone --nproc_per_node 1 in place "
            "of python"
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
