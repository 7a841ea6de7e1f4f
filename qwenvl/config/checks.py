"""Checks settings beyond the single option: between the options of several rooms, and what the machine lacks.

Nothing here imports torch, so that a command line is refused before torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwenvl.config.trainer_checks import (
    problems_of_trainer,
    recomputes_layers,
    text_of_choice,
    wrong_types_of_trainer,
)
from qwenvl.files import is_utf8
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.option import name_of_row, no_effect, not_with, problems_of, row_of, set_among

# Variables that tell DeepSpeed about its processes. Without one of them it asks MPI.
_LAUNCHED = {"RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"}

# Variables by which Accelerate knows that there are several processes.
_OF_LAUNCHERS = {"RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}

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


def problems_of_run(config: Any) -> list[str]:
    """The problems of the settings of a run, on any machine. Empty where all is well.

    Wrong types come alone, as the other checks rely on the types.
    """
    return wrong_types_of_trainer(config) or problems_of(config, _between_rooms)


NAMED_IN_FILES = ("output_dir", "dataset_use", "eval_dataset_use", "model_name_or_path")
"""Settings whose values stand in files that are UTF-8: logs, the model card, headers of weights."""


def _between_rooms(config: Any) -> Iterator[str]:
    """Problems between the options of several rooms, and of the Trainer's settings."""
    if isinstance(config, ObjectiveOptions):
        yield from _of_training(config)
    logs_each_step = config.logging_steps == 1 and text_of_choice(config.logging_strategy) == "steps"
    if getattr(config, "stop_below_loss", None) is not None and not logs_each_step:  # of a warm-up
        reason = "it reads the loss of each step from the log"
        yield no_effect("--stop_below_loss", without="--logging_steps 1", reason=reason)
    yield from _of_what_is_trained(config)
    if config.activation_offload and not recomputes_layers(config):
        yield no_effect("--activation_offload", without="--gradient_checkpointing")
    if config.tools and config.fsdp and getattr(config, "async_rollouts", 0):
        reason = "the vision tower is copied for looks that are sampled ahead"
        yield not_with("--tools", "--fsdp and --async_rollouts", reason)
    if config.on_nonfinite == "skip":
        if config.deepspeed:
            yield not_with("--on_nonfinite", "--deepspeed", "it updates before gradients can be looked at")
        optimizer = text_of_choice(config.optim)
        if optimizer in ("lomo", "adalomo"):
            yield not_with("--on_nonfinite", f"--optim {optimizer}", "it updates during the backward pass")
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
    yield from problems_of_trainer(config)


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


def problems_of_machine(config: Any) -> Iterator[str]:
    """Files, packages, processes and GPUs that the settings need and this machine lacks."""
    for name in ("fsdp_config", "deepspeed", "dataset_catalog"):
        path = getattr(config, name, None)
        if not isinstance(path, str | Path) or str(path).lstrip().startswith("{"):  # a mapping, or its JSON
            continue
        if not Path(path).is_file():
            kind = "YAML" if name == "dataset_catalog" else "JSON"
            yield f"--{name} {path}: no such file; expected a {kind} file"
    optimizer = text_of_choice(config.optim)
    for package, names in OPTIMIZER_PACKAGES.items():
        if optimizer.startswith(names) and find_spec(package) is None:
            pip = _INSTALLED_AS.get(package, package.replace("_", "-"))
            yield f"--optim {optimizer} needs {package}: pip install {pip}, or take --optim adamw_torch"
    if config.deepspeed and not _LAUNCHED & set(os.environ) and find_spec("mpi4py") is None:
        yield (
            "--deepspeed needs a launcher, for one process too: put torchrun --standalone --nproc_per_node 1 in place "
            "of python"
        )
    if not _OF_LAUNCHERS & set(os.environ):
        for name in set_among(config, "ddp_backend", "ddp_bucket_cap_mb", "ddp_static_graph"):
            yield no_effect(f"--{name}", without="several processes", reason="torchrun starts some")


def _of_training(config: Any) -> Iterator[str]:
    """Problems of a ``GRPOConfig`` between the options of several rooms."""
    yield from _of_reference(config)
    yield from _of_ratio(config)
    if config.temporal_contrast and config.async_rollouts:
        yield not_with("--temporal_contrast", "--async_rollouts", "its second group cannot be sampled ahead")
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
    if config.neftune_noise_alpha is not None:
        yield "--neftune_noise_alpha cannot be used here: completions are sampled without noise; leave it out"
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
