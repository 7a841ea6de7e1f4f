"""Checks between the options of several rooms, and between them and the Trainer's own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from qwenvl.config.own_options import display_problems
from qwenvl.config.trainer_checks import problems_of_trainer
from qwenvl.option import was_set


def problems_between_rooms(config: Any) -> Iterator[str]:
    """What is wrong with a ``GRPOConfig`` beyond the options of single rooms."""
    if config.num_iterations > 1:
        yield from saves_within_windows(config, config.save_steps, config.eval_steps or config.logging_steps)
        if config.dataloader_drop_last:
            yield "--dataloader_drop_last has no effect with --num_iterations above 1: short steps are filled up"
    if config.advantage_estimator == "gdpo" and config.reward_aggregation != "sum":
        yield (
            f"--reward_aggregation {config.reward_aggregation} has no effect with --advantage_estimator gdpo, which "
            "normalises each reward function and sums them itself: leave it out"
        )
    if config.grpo_beta == 0:
        for name in ("ref_model_name_or_path", "sync_ref_model", "ref_offload"):
            if was_set(config, name):
                yield f"--{name} has no effect with --grpo_beta 0: no reference is kept"
    if config.sync_ref_model and 0 < config.max_steps <= config.ref_model_sync_steps:
        yield (
            f"--sync_ref_model has no effect: the run ends after {config.max_steps} steps, before the reference was "
            f"mixed; give --ref_model_sync_steps below it (it is {config.ref_model_sync_steps})"
        )
    if not config.engine_has_own_weights:
        yield from same_weights(config)
    else:
        yield from _of_servers(config)
    if config.difficulty_band is not None and config.train_sampling_strategy == "sequential":
        yield "--difficulty_band has no effect with --train_sampling_strategy sequential: each record has its turn"
    if config.difficulty_band is not None and config.max_steps < 0 and config.num_train_epochs <= 1:
        yield (
            f"--difficulty_band has no effect with --num_train_epochs {config.num_train_epochs:g}: it goes by the pass "
            "rates of earlier epochs; raise the number of epochs, or give --max_steps"
        )
    if config.shared_prefix == "off" and config.compile_decoding:
        yield "--compile_decoding has no effect with --shared_prefix off: it compiles the shared sampling"
    if config.on_nonfinite == "skip":
        if config.deepspeed:
            yield "--on_nonfinite skip has no effect with --deepspeed: it updates before gradients can be looked at"
        if "lomo" in str(getattr(config.optim, "value", config.optim)):
            yield "--on_nonfinite skip has no effect with --optim lomo or adalomo: it updates during the backward pass"
    yield from memory_problems(config)
    yield from display_problems(config)
    yield from problems_of_trainer(config)


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


def memory_problems(config: Any) -> Iterator[str]:
    """Problems with options that lower the memory of a step."""
    if config.activation_offload:
        if not config.gradient_checkpointing:
            yield (
                "--activation_offload has no effect without --gradient_checkpointing True: what it keeps elsewhere is "
                "what enters each checkpointed layer"
            )
        if not hasattr(config, "activation_checkpointing_kwargs"):
            yield "--activation_offload needs a newer version of transformers, 5.23 or above"
    if config.load_in_4bit and (config.deepspeed or str(config.fsdp).lower() not in ("none", "false", "[]", "")):
        yield "--load_in_4bit cannot be used with --deepspeed or --fsdp: weights in 4 bits are not split or gathered"
    if config.load_in_4bit and config.ref_model_name_or_path is not None:
        yield "--load_in_4bit: the reference is the model without its adapter; leave out --ref_model_name_or_path"
    if config.lora_dropout > 0 and config.check_parity != "off" and was_set(config, "check_parity"):
        yield (
            f"--check_parity {config.check_parity} has no effect with --lora_dropout: it changes the trainer's "
            "log-probs on purpose; leave one of the two out"
        )


def same_weights(config: Any) -> Iterator[str]:
    """Problems with options that correct for a sampler of other weights, where the policy samples itself."""
    if config.importance_correction not in (None, "none"):
        yield (
            f"--importance_correction {config.importance_correction} has no effect: the policy itself samples, and all "
            "weights are 1; it is for engines with weights of their own"
        )
    if config.off_policy_mask_threshold is not None and config.num_iterations == 1:
        yield (
            "--off_policy_mask_threshold has no effect with --num_iterations 1: the policy has not moved since it "
            "sampled; leave one of the two out"
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
