"""Checks between the options of several rooms, and between them and the Trainer's own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from qwenvl.config.trainer_checks import problems_of_trainer
from qwenvl.option import row_of, was_set


def problems_between_rooms(config: Any) -> Iterator[str]:
    """What is wrong with a ``GRPOConfig`` beyond the options of single rooms."""
    if config.num_iterations > 1:
        yield from saves_within_windows(config, config.save_steps, config.eval_steps or config.logging_steps)
    if not config.engine_has_own_weights:
        yield from same_weights(config)
    else:
        yield from _of_servers(config)
    if config.activation_offload and not hasattr(config, "activation_checkpointing_kwargs"):
        yield "--activation_offload needs a newer version of transformers, 5.23 or above"
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
