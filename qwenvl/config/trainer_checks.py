"""Checks the settings that the Trainer reads: their types, bounds and combinations, and those that have no use here.

Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.option import Bounds, misfit, nearest, no_effect, not_with, set_among, was_set

BOUNDS = {
    "adam_beta1": Bounds(least=0, below=1),
    "adam_beta2": Bounds(least=0, below=1),
    "adam_epsilon": Bounds(least=0),
    "ddp_bucket_cap_mb": Bounds(above=0),
    "ddp_timeout": Bounds(above=0),
    "eval_delay": Bounds(least=0),
    "eval_steps": Bounds(above=0),
    "gradient_accumulation_steps": Bounds(least=1),
    "max_grad_norm": Bounds(least=0),
    "neftune_noise_alpha": Bounds(above=0),
    "save_total_limit": Bounds(least=1, why="without the setting all checkpoints are kept"),
    "warmup_steps": Bounds(least=0),
    "weight_decay": Bounds(least=0),
}
"""Bounds of settings that keep the defaults they have in the Trainer."""

NOT_OF_OURS = {
    **dict.fromkeys(("label_smoothing_factor", "label_names"), "no loss here reads labels"),
    **dict.fromkeys(
        (
            "prediction_loss_only",
            "include_for_metrics",
            "batch_eval_metrics",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "eval_accumulation_steps",
            "bf16_full_eval",
            "fp16_full_eval",
        ),
        "evaluation is made as training is, by this library itself",
    ),
    "length_column_name": "lengths are estimated from the text and the headers of the media",
    **dict.fromkeys(("do_train", "do_predict"), "the command trains, and evaluates where it has data for it"),
    "do_eval": "--eval_strategy says when to evaluate",
    "average_tokens_across_devices": "the loss is a mean over the tokens of all processes in any case",
    "enable_jit_checkpoint": "--save_on_signal saves a checkpoint, at the end of a step",
    "remove_unused_columns": "reward functions see every field of a record",
    "ddp_find_unused_parameters": "each trained parameter has a gradient, which is 0 for prompts without media",
    "ddp_broadcast_buffers": "buffers never change, and processes may run different numbers of forwards",
    "logging_nan_inf_filter": "a loss that is not a number must show",
    "debug": "--on_nonfinite says which records have numbers that overflow",
    "parallelism_config": "--deepspeed or --fsdp split the model",
    "auto_find_batch_size": "steps of fewer prompts are another run; qwenvl plan says which flags lower the memory",
}
"""Settings of the Trainer that must keep their default here, each with the reason."""

OPTIM_ARGS = {
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adagrad": ("lr_decay", "weight_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay", "centered"),
}
"""What the Trainer reads of ``--optim_args`` for the optimizers of PyTorch that have some. It passes over others."""

_TRUTH_VALUES_OF_OPTIMIZERS = ("nesterov", "centered")
"""Those of these arguments that are no numbers."""

MAPPINGS = (
    "lr_scheduler_kwargs",
    "gradient_checkpointing_kwargs",
    "activation_checkpointing_kwargs",
    "liger_kernel_config",
)
"""Settings of the Trainer that are a mapping, or its JSON."""
_OF_CHECKPOINTING = (
    "use_reentrant",
    "preserve_rng_state",
    "determinism_check",
    "debug",
    "early_stop",
    "context_fn",
    "offload",
)

WITHOUT_BETAS = ("adafactor", "sgd", "adagrad", "rmsprop")
"""Optimizers that have no beta1, beta2 and epsilon of Adam."""

_PLAIN_TYPES = (bool, int, float, str, list, dict, type(None))


def wrong_types_of_trainer(config: Any) -> list[str]:
    """Problems of the Trainer's settings with a wrong type or choice: transformers would take "False" for true.

    Objects such as a Path, a member of an Enum or an AcceleratorConfig are left to transformers.
    """
    hints = get_type_hints(TrainerSettings)
    # Texts by their types, but transformers takes True for FSDP with its defaults and False for no such space.
    hints["fsdp"] = str | bool | None
    hints["trackio_static_space_id"] = str | bool | None
    problems = []
    for each in fields(TrainerSettings):
        if type(getattr(config, each.name)) in _PLAIN_TYPES:
            problems.append(misfit(config, each.name, hints[each.name]))
    return [problem for problem in problems if problem is not None]


def problems_of_trainer(config: Any) -> Iterator[str]:
    """Problems of the settings that the Trainer reads."""
    for name, bounds in BOUNDS.items():
        problem = bounds.problem(name, getattr(config, name))
        if problem:
            yield problem
    if config.max_steps < 1 and config.max_steps != -1:
        default = "-1, the default, leaves it to --num_train_epochs"
        yield f"--max_steps must be at least 1, got {config.max_steps}; {default}"
    if config.warmup_steps > 1 and config.warmup_steps != int(config.warmup_steps):
        yield f"--warmup_steps must be whole, or below 1 for a share of all steps, got {config.warmup_steps}"
    for name, reason in NOT_OF_OURS.items():
        # transformers makes an empty list of a text that is empty, as that of --debug.
        if was_set(config, name) and getattr(config, name) != []:
            yield f"--{name} cannot be used: {reason}; leave it out"
    yield from _without_effect(config)
    if config.optim_args and not all(part.count("=") == 1 for part in config.optim_args.split(",")):
        yield f"--optim_args must be name=value,name=value, got {config.optim_args!r}"
    yield from _of_mappings(config)
    counted = config.include_num_input_tokens_seen
    if counted not in (True, False, "no", "all", "non_padding"):
        yield f"--include_num_input_tokens_seen must be no, all or non_padding, got {counted!r}"


def _of_mappings(config: Any) -> Iterator[str]:
    """Problems of the settings that are mappings."""
    for name in MAPPINGS:
        try:
            given = mapping_of(config, name) or {}
        except ValueError as error:
            yield str(error)
            continue
        if "checkpointing" in name:
            for each in given:
                if each not in _OF_CHECKPOINTING:
                    yield f"--{name}: checkpointing has no argument {each!r}: {nearest(each, _OF_CHECKPOINTING)}"


def mapping_of(config: Any, name: str) -> dict[str, Any] | None:
    """The mapping that a setting of ``MAPPINGS`` is, or whose JSON it is. None where it is not set.

    Raises:
        ValueError: it is another text.
    """
    given = getattr(config, name, None)
    if not isinstance(given, str):
        return given
    try:
        value = json.loads(given)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"--{name} must be a JSON mapping such as '{{\"name\": 1}}', got {given!r}")
    return value


def recomputes_layers(config: Any) -> bool:
    """Whether a run computes the layers again in the backward pass, by either name of the setting.

    Newer versions of transformers call it ``activation_checkpointing``, and prefer this name.
    """
    by_newer_name = getattr(config, "activation_checkpointing", None)
    return bool(config.gradient_checkpointing if by_newer_name is None else by_newer_name)


def _without_effect(config: Any) -> Iterator[str]:
    """Problems of settings of the Trainer that have no effect beside other ones."""
    yield from _of_optimizer(config)
    yield from _of_logs_and_checkpoints(config)
    if not config.dataloader_num_workers:
        of_workers = (
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
        )
        for name in set_among(config, *of_workers):
            yield no_effect(f"--{name}", without="--dataloader_num_workers")
    if config.dataloader_drop_last and getattr(config, "num_iterations", 1) > 1:
        yield no_effect("--dataloader_drop_last", without="--num_iterations 1", reason="short steps are filled up")
    if not config.push_to_hub:
        for name in set_among(config, "hub_strategy", "hub_always_push"):
            yield no_effect(f"--{name}", without="--push_to_hub")
    if config.liger_kernel_config is not None and not config.use_liger_kernel:
        yield no_effect("--liger_kernel_config", without="--use_liger_kernel")
    if was_set(config, "fsdp_config") and not config.fsdp:
        yield no_effect("--fsdp_config", without="--fsdp")
    if _has_no_tracker(config.report_to):
        for name in set_among(config, "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
            yield no_effect(f"--{name}", without="--report_to")
    if set_among(config, "gradient_checkpointing_kwargs") and set_among(config, "activation_checkpointing_kwargs"):
        yield not_with("--gradient_checkpointing_kwargs", "--activation_checkpointing_kwargs", "they are the same")
    if not recomputes_layers(config):
        for name in set_among(config, "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
            yield no_effect(f"--{name}", without="--gradient_checkpointing or --activation_checkpointing")


def _of_optimizer(config: Any) -> Iterator[str]:
    """Problems of settings that the optimizer or the schedule does not read."""
    optimizer = text_of_choice(config.optim)
    schedule = text_of_choice(config.lr_scheduler_type)
    if optimizer in WITHOUT_BETAS:
        for name in set_among(config, "adam_beta1", "adam_beta2", "adam_epsilon"):
            yield not_with(f"--{name}", f"--optim {optimizer}")
    if config.optim_args and optimizer in ("adamw_torch", "adamw_torch_fused", "adafactor"):
        yield not_with("--optim_args", f"--optim {optimizer}")
    elif config.optim_args and optimizer in OPTIM_ARGS:
        known = OPTIM_ARGS[optimizer]
        for part in config.optim_args.replace(" ", "").split(","):
            name, _, value = part.partition("=")
            if name not in known:
                yield f"--optim_args: {optimizer} has no {name!r}: {nearest(name, known)}"
            elif name not in _TRUTH_VALUES_OF_OPTIMIZERS and not _is_number(value):
                yield f"--optim_args: {name} must be a number, got {value!r}"
    if config.optim_target_modules and optimizer in ("adamw_torch", "adamw_torch_fused", *WITHOUT_BETAS):
        yield not_with("--optim_target_modules", f"--optim {optimizer}")
    if config.warmup_steps and schedule in ("constant", "reduce_lr_on_plateau", "greedy"):
        yield not_with("--warmup_steps", f"--lr_scheduler_type {schedule}")
    if was_set(config, "lr_scheduler_kwargs") and schedule in ("constant", "constant_with_warmup"):
        yield not_with("--lr_scheduler_kwargs", f"--lr_scheduler_type {schedule}")


def _has_no_tracker(trackers: str | list[str] | None) -> bool:
    """Whether ``--report_to`` names no tracker."""
    return trackers in (None, "none", [], ["none"])


def _is_number(text: str) -> bool:
    """Whether a text is a number, as the Trainer reads one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_logs_and_checkpoints(config: Any) -> Iterator[str]:
    """Problems of settings that the strategies of logs, evaluations and checkpoints do not read."""
    logs = text_of_choice(config.logging_strategy)
    evaluates = text_of_choice(config.eval_strategy)
    saves = text_of_choice(config.save_strategy)
    # Without --eval_steps the Trainer evaluates every --logging_steps.
    paces_evaluation = evaluates == "steps" and not config.eval_steps
    if was_set(config, "logging_steps") and logs != "steps" and not paces_evaluation:
        needed = "--logging_strategy steps or (--eval_strategy steps and no --eval_steps)"
        yield no_effect("--logging_steps", without=needed)
    if was_set(config, "save_steps") and saves != "steps":
        yield no_effect("--save_steps", without="--save_strategy steps")
    if config.eval_steps is not None and evaluates != "steps":
        yield no_effect("--eval_steps", without="--eval_strategy steps")
    if evaluates == "no":
        of_evaluation = ("eval_delay", "load_best_model_at_end", "metric_for_best_model", "greater_is_better")
        for name in set_among(config, *of_evaluation):
            yield not_with(f"--{name}", "--eval_strategy no")
        if saves == "best":
            reason = "nothing says which checkpoint is the best"
            yield not_with("--save_strategy best", "--eval_strategy no", reason)
    rate_follows = text_of_choice(config.lr_scheduler_type) in ("reduce_lr_on_plateau", "greedy")
    reads_metric = config.load_best_model_at_end or saves == "best" or rate_follows
    if evaluates != "no" and config.greater_is_better is not None and not reads_metric:
        yield no_effect("--greater_is_better", without="--load_best_model_at_end or --save_strategy best")
    if saves == "no":
        for name in set_among(config, "save_total_limit", "save_only_model"):
            yield not_with(f"--{name}", "--save_strategy no", "no checkpoint is saved")


def text_of_choice(value: Any) -> str:
    """The text of a setting that the Trainer makes a member of an Enum."""
    return str(getattr(value, "value", value))
