"""Checks between the options of several rooms, and between them and the Trainer's own settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qwenvl.option import Bounds, was_set

TRAINER_BOUNDS = {
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


def problems_between_rooms(config: Any) -> Iterator[str]:
    """What is wrong with a ``GRPOConfig`` beyond the options of single rooms."""
    for name, bounds in TRAINER_BOUNDS.items():
        if problem := bounds.problem(name, getattr(config, name)):
            yield problem
    if config.max_steps == 0:  # to the Trainer any number below 1 means none
        yield "--max_steps must be at least 1, got 0; -1, the default, leaves it to --num_train_epochs"
    if config.num_iterations > 1:
        yield from saves_within_windows(config, config.save_steps, config.eval_steps or config.logging_steps)
        if config.dataloader_drop_last:
            yield "--dataloader_drop_last has no effect with --num_iterations above 1: short steps are filled up"
    if config.shared_prefix == "off" and config.compile_decoding:
        yield "--compile_decoding has no effect with --shared_prefix off: it compiles the shared sampling"
    for name, reason in WITHOUT_EFFECT.items():
        if was_set(config, name):
            yield f"--{name} has no effect: {reason}; leave it out"


def saves_within_windows(config: Any, save_steps: float, eval_steps: float) -> Iterator[str]:
    """Problems with checkpoints between the steps on the same completions: they lack those, and none could be resumed.

    Args:
        save_steps, eval_steps: in steps; what is below 1 is a share of a run that is not known yet, and passes.
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
