"""Checks settings beyond the single option: between rooms, of the Trainer's own settings, of the machine.

Nothing here imports torch, so that a command line is refused before torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.files import is_utf8
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.option import (
    Bounds,
    misfit,
    name_of_row,
    nearest,
    no_effect,
    not_with,
    problems_of,
    row_of,
    set_among,
    was_set,
)

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
}
"""Settings of the Trainer that must keep their default here, each with the reason."""

OPTIM_ARGS = {
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adagrad": ("lr_decay", "weight_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay", "centered"),
}
"""What the Trainer reads of ``--optim_args`` for the optimizers of PyTorch that have some. It passes over others."""

WITHOUT_BETAS = ("adafactor", "sgd", "adagrad", "rmsprop")
"""Optimizers that have no beta1, beta2 and epsilon of Adam."""
# Variables that tell DeepSpeed about its processes. Without one of them it asks MPI.
_LAUNCHED = {"RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"}

OPTIMIZER_PACKAGES = {
    "bitsandbytes": ("adamw_bnb", "adamw_8bit", "paged_", "ademamix", "lion_", "rmsprop_bnb"),
    "optimi": ("stable_adamw",),
    "torchdistx": ("adamw_anyprecision",),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "galore_torch": ("galore_",),
    "apollo_torch": ("apollo_",),
    "lomo_optim": ("lomo", "adalomo"),
    "grokadamw": ("grokadamw",),
    "schedulefree": ("schedule_free",),
}
"""The packages of the Trainer's optimizers, as they are imported, each with the beginnings of its optimizers' names."""
_INSTALLED_AS = {"optimi": "torch-optimi"}  # where pip knows a package by another name


_PLAIN_TYPES = (bool, int, float, str, list, dict, type(None))


def problems_of_run(config: Any) -> list[str]:
    """The problems of the settings of a run, on any machine. Empty where all is well.

    Wrong types come alone, as the other checks rely on the types.
    """
    return _wrong_types_of_trainer(config) or problems_of(config, _between_rooms)


def _wrong_types_of_trainer(config: Any) -> list[str]:
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


NAMED_IN_FILES = ("output_dir", "dataset_use", "eval_dataset_use", "model_name_or_path")
"""Settings whose values stand in files that are UTF-8: logs, the model card, headers of weights."""


def _between_rooms(config: Any) -> Iterator[str]:
    """Problems between the options of several rooms, and of the Trainer's settings."""
    if isinstance(config, ObjectiveOptions):
        yield from _of_training(config)
    if getattr(config, "stop_below_loss", None) is not None and config.logging_steps != 1:  # of a warm-up
        reason = "it reads the loss of each step from the log"
        yield no_effect("--stop_below_loss", without="--logging_steps 1", reason=reason)
    yield from _of_what_is_trained(config)
    if config.activation_offload and not config.gradient_checkpointing:
        yield no_effect("--activation_offload", without="--gradient_checkpointing")
    if config.tools and config.fsdp and getattr(config, "async_rollouts", 0):
        reason = "the vision tower is copied for looks that are sampled ahead"
        yield not_with("--tools", "--fsdp and --async_rollouts", reason)
    if config.on_nonfinite == "skip":
        if config.deepspeed:
            yield not_with("--on_nonfinite", "--deepspeed", "it updates before gradients can be looked at")
        if _text(config.optim) in ("lomo", "adalomo"):
            yield not_with("--on_nonfinite", f"--optim {_text(config.optim)}", "it updates during the backward pass")
    if config.display is not None and config.disable_tqdm:
        yield not_with("--display", "--disable_tqdm", "--display none shows no progress")
    if config.output_dir == "":
        yield "--output_dir is empty: name the folder of the run"
    for name in NAMED_IN_FILES:
        value = str(getattr(config, name, None))
        if not is_utf8(value):
            yield f"--{name} {value!r}: the name is not UTF-8; give another one"
    trackers = config.report_to
    if isinstance(trackers, list) and len(trackers) > 1 and ("none" in trackers or "all" in trackers):
        yield f"--report_to {' '.join(config.report_to)}: none and all stand alone; leave one or the other out"
    yield from _of_trainer(config)


def _of_what_is_trained(config: Any) -> Iterator[str]:
    """Problems between the parts of the model that learn, their learning rates and how their weights are kept."""
    if not (config.tune_mm_llm or config.tune_mm_vision or config.tune_mm_mlp or config.lora_enable):
        yield "nothing is trained: set one of --tune_mm_llm, --tune_mm_mlp, --tune_mm_vision, or --lora_enable"
    if config.mm_projector_lr is not None and not config.tune_mm_mlp:
        yield no_effect("--mm_projector_lr", without="--tune_mm_mlp")
    if config.vision_tower_lr is not None and not config.tune_mm_vision:
        yield no_effect("--vision_tower_lr", without="--tune_mm_vision")
    if config.load_in_4bit:
        for name in ("deepspeed", "fsdp"):
            if getattr(config, name):
                yield not_with("--load_in_4bit", f"--{name}", "weights in 4 bits are not split or gathered")


def _of_trainer(config: Any) -> Iterator[str]:
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
        if was_set(config, name):
            yield f"--{name} cannot be used: {reason}; leave it out"
    yield from _without_effect(config)
    if config.optim_args and not all(part.count("=") == 1 for part in config.optim_args.split(",")):
        yield f"--optim_args must be name=value,name=value, got {config.optim_args!r}"


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
    if not config.gradient_checkpointing and not config.activation_checkpointing:
        for name in set_among(config, "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
            yield no_effect(f"--{name}", without="--gradient_checkpointing or --activation_checkpointing")


def _of_optimizer(config: Any) -> Iterator[str]:
    """Problems of settings that the optimizer or the schedule does not read."""
    optimizer = _text(config.optim)
    schedule = _text(config.lr_scheduler_type)
    if optimizer in WITHOUT_BETAS:
        for name in set_among(config, "adam_beta1", "adam_beta2", "adam_epsilon"):
            yield not_with(f"--{name}", f"--optim {optimizer}")
    if config.optim_args and optimizer in ("adamw_torch", "adamw_torch_fused", "adafactor"):
        yield not_with("--optim_args", f"--optim {optimizer}")
    elif config.optim_args and optimizer in OPTIM_ARGS:
        known = OPTIM_ARGS[optimizer]
        for part in config.optim_args.replace(" ", "").split(","):
            name = part.partition("=")[0]
            if name not in known:
                yield f"--optim_args: {optimizer} has no {name!r}: {nearest(name, known)}"
    if config.optim_target_modules and optimizer in ("adamw_torch", "adamw_torch_fused", *WITHOUT_BETAS):
        yield not_with("--optim_target_modules", f"--optim {optimizer}")
    if config.warmup_steps and schedule in ("constant", "reduce_lr_on_plateau", "greedy"):
        yield not_with("--warmup_steps", f"--lr_scheduler_type {schedule}")
    if was_set(config, "lr_scheduler_kwargs") and schedule in ("constant", "constant_with_warmup"):
        yield not_with("--lr_scheduler_kwargs", f"--lr_scheduler_type {schedule}")


def _of_logs_and_checkpoints(config: Any) -> Iterator[str]:
    """Problems of settings that the strategies of logs, evaluations and checkpoints do not read."""
    logs = _text(config.logging_strategy)
    evaluates = _text(config.eval_strategy)
    saves = _text(config.save_strategy)
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
    if saves == "no":
        for name in set_among(config, "save_total_limit", "save_only_model"):
            yield not_with(f"--{name}", "--save_strategy no", "no checkpoint is saved")


def _text(value: Any) -> str:
    """The text of a setting that the Trainer makes a member of an Enum."""
    return str(getattr(value, "value", value))


def problems_of_machine(config: Any) -> Iterator[str]:
    """Files, packages, processes and GPUs that the settings need and this machine lacks."""
    for name in ("fsdp_config", "deepspeed", "dataset_catalog"):
        path = getattr(config, name, None)
        if not isinstance(path, str | Path) or str(path).lstrip().startswith("{"):  # a mapping, or its JSON
            continue
        if not Path(path).is_file():
            kind = "YAML" if name == "dataset_catalog" else "JSON"
            yield f"--{name} {path}: no such file; expected a {kind} file"
    optimizer = _text(config.optim)
    for package, names in OPTIMIZER_PACKAGES.items():
        if optimizer.startswith(names) and find_spec(package) is None:
            pip = _INSTALLED_AS.get(package, package.replace("_", "-"))
            yield f"--optim {optimizer} needs {package}: pip install {pip}, or take --optim adamw_torch"
    if config.deepspeed and not _LAUNCHED & set(os.environ) and find_spec("mpi4py") is None:
        yield (
            "--deepspeed needs a launcher, for one process too: put torchrun --standalone --nproc_per_node 1 in place "
            "of python"
        )


def _of_training(config: Any) -> Iterator[str]:
    """Problems of a ``GRPOConfig`` between the options of several rooms."""
    yield from _of_reference(config)
    yield from _of_ratio(config)
    if config.tools and config.temporal_contrast:
        reason = "its second group would look at frames in the right order"
        yield not_with("--tools", "--temporal_contrast", reason)
    if config.tools and config.generation_repetition_penalty != 1:
        yield not_with("--tools", "--generation_repetition_penalty", "it would count what tools append")
    yield from _of_local_engine(config)
    if config.shared_prefix == "off":
        if config.compile_decoding:
            yield not_with("--compile_decoding", "--shared_prefix off", "it compiles the shared sampling")
        if config.draft_tokens:
            yield not_with("--draft_tokens", "--shared_prefix off", "it drafts in the shared sampling")
    if config.check_parity == "every" and config.lora_dropout:
        reason = "dropout changes the trainer's log-probs on purpose"
        yield not_with("--check_parity every", "--lora_dropout", reason)
    if config.log_completions_every is not None:
        if config.display == "none":
            yield not_with("--log_completions_every", "--display none")
        if config.disable_tqdm:
            yield not_with("--log_completions_every", "--disable_tqdm")
    if config.offloads_teacher and config.use_cpu:
        yield not_with(f"offload of --teacher {config.teacher_path}", "--use_cpu")
    if config.num_iterations > 1:
        yield from _saves_within_windows(config)
    if config.engine_has_own_weights:
        yield from _of_engine_with_own_weights(config)
    else:
        yield from _of_policy_as_engine(config)


def _of_engine_with_own_weights(config: Any) -> Iterator[str]:
    """Problems of options where servers sample, with weights that they are sent."""
    if config.reads_sampled_entropies:
        names = set_among(config, "top_entropy_quantile", "entropy_target")
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


def _of_policy_as_engine(config: Any) -> Iterator[str]:
    """Problems of options that correct for another policy, where the policy itself samples."""
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


def _of_reference(config: Any) -> Iterator[str]:
    """Problems of the options of the reference."""
    if config.load_in_4bit and config.ref_model_name_or_path is not None:
        reason = "the reference is the model without its adapter"
        yield not_with("--load_in_4bit", "--ref_model_name_or_path", reason)
    if not config.needs_reference:
        needed = "--grpo_beta above 0 or --teacher reference"
        reason = "there is no reference otherwise"
        for name in set_among(config, "ref_model_name_or_path", "sync_ref_model"):
            yield no_effect(f"--{name}", without=needed, reason=reason)
    if config.sync_ref_model:
        if config.lora_enable:
            reason = "the frozen weights of the reference do not change"
            yield not_with("--sync_ref_model", "--lora_enable", reason)
        if 0 <= config.max_steps <= config.ref_model_sync_steps:
            needed = f"--max_steps above --ref_model_sync_steps {config.ref_model_sync_steps}"
            yield no_effect("--sync_ref_model", without=needed, reason="the run ends before the reference moves")


def _of_local_engine(config: Any) -> Iterator[str]:
    """Problems of options that need the local engine, or another one."""
    local = "--rollout_engine local"
    gathers = "--ds3_gather_for_generation"
    if config.rollout_engine != "local":
        if config.compile_decoding:
            yield no_effect("--compile_decoding", without=local, reason="the servers compile their own")
        if config.draft_tokens:
            yield no_effect("--draft_tokens", without=local, reason="servers sample in a way of their own")
        if config.load_in_4bit:
            yield not_with("--load_in_4bit", f"--rollout_engine {config.rollout_engine}", "vLLM takes whole weights")
        if not config.ds3_gather_for_generation:
            reason = "servers sample from weights of their own"
            yield no_effect("--ds3_gather_for_generation", without=local, reason=reason)
    if not config.ds3_gather_for_generation:
        if config.compile_decoding:
            reason = "weights that are gathered by layer can't be compiled"
            yield no_effect("--compile_decoding", without=gathers, reason=reason)
        if config.draft_tokens:
            reason = "each process has as many forwards as its own drafts need"
            yield no_effect("--draft_tokens", without=gathers, reason=reason)
    if config.async_rollouts and (not config.engine_has_own_weights or config.rollout_engine == "vllm_colocate"):
        yield (
            f"--async_rollouts {config.async_rollouts} needs --rollout_engine vllm_server: the local engine, and a "
            "server on the same GPU, cannot sample while the policy trains; leave it out"
        )


def _of_ratio(config: Any) -> Iterator[str]:
    """Problems of settings of the importance ratio, which is 1 where each step has completions of the policy itself."""
    uncorrected = config.async_rollouts > 0 and name_of_row(config, "importance_correction") == "none"
    if config.num_iterations > 1 or uncorrected:
        return
    subjects = [f"--{name}" for name in set_among(config, "grpo_epsilon", "grpo_epsilon_high")]
    for option, arguments in (("loss_type", ("ratio", "delta", "dual_clip", "bound")), ("kl_estimator", ("unbiased",))):
        row = row_of(config, option)
        if row is not None:  # an argument that this row does not have is not set
            subjects += [f"{name} of --{option} {row.name}" for name in set_among(row.arguments, *arguments)]
    for subject in subjects:
        yield no_effect(
            subject,
            without="--num_iterations above 1 or (--async_rollouts above 0 and --importance_correction none)",
            reason="the ratio is 1 otherwise, as each step has completions of the policy itself",
        )


def _saves_within_windows(config: Any) -> Iterator[str]:
    """Problems with checkpoints between steps on the same completions: none has these, so that none can be resumed."""
    saving = [("save_steps", config.save_steps)] if config.save_strategy == "steps" else []
    if config.save_strategy == "best" and config.eval_strategy == "steps":
        saving = [("eval_steps", config.eval_steps or config.logging_steps)]
    for name, steps in saving:
        if steps < 1:
            yield f"--{name} {steps:g}: with --num_iterations above 1 give a number of steps, a multiple of it"
            continue
        beyond = int(steps) % config.num_iterations
        if beyond:
            below = int(steps) - beyond
            above = below + config.num_iterations
            advice = f"{below} or {above}" if below else f"{above}"
            yield (
                f"--{name} {steps:g} is no multiple of --num_iterations {config.num_iterations}: a checkpoint between "
                f"the steps on the same completions could not be resumed; give {advice}"
            )
