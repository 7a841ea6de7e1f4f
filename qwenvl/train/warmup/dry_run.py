"""``qwenvl warmup --dry_run``: what a warm-up would do. It reads, and neither trains nor writes."""

from __future__ import annotations

from typing import Any

from qwenvl.data.options import PromptOptions
from qwenvl.model.loading import load_processor, load_without_weights
from qwenvl.train.assemble import build_policy, weight_dtype
from qwenvl.train.data_sets import build_dataset
from qwenvl.train.display.dry_run import (
    RECORDS,
    parameter_lines,
    prompt_lines,
    prompts_of_a_step,
    say_sizes,
    settings_lines,
)
from qwenvl.train.warmup.config import GROUPS, WarmupConfig
from qwenvl.train.warmup.targets import TargetCollator, shown_targets
from qwenvl.train.warmup.trainer import narrowed, targets_of


def dry_run(args: WarmupConfig) -> str:
    """The settings, parameters, first prompts and first targets of a warm-up, as lines of text.

    The weights are not loaded: their shapes follow from the checkpoint's ``config.json``.

    Raises:
        RecordError, BadMediaError: a record that the run would stop at, if it is among the first.
        ValueError, OSError: what the run itself would be refused for.
    """
    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    targets = targets_of(args)
    collator = TargetCollator(load_processor(str(args.model_name_or_path)), PromptOptions.of(args), targets)
    made: list[Any] = [
        narrowed(build_dataset(use, args, targets, collator, training=training), targets, flag)
        for use, training, flag in (
            (args.dataset_use, True, "--dataset_use"),
            (args.eval_dataset_use, False, "--eval_dataset_use"),
        )
    ]
    dataset = made[0]
    say_sizes(args, *made)
    sections = {
        "settings": settings_lines(args, GROUPS),
        "parameters that learn": parameter_lines(policy, weight_dtype(args, args.lora_enable)),
        "one step": [f"{prompts_of_a_step(args)} prompts"],
        f"prompts of the first of {len(dataset):,} records": prompt_lines(dataset, collator),
        "their targets": shown_targets(dataset, collator, RECORDS),
    }
    lines = [line for title, body in sections.items() for line in (title, *(f"  {line}" for line in body))]
    return "\n".join([*lines, "This was a dry run: nothing was trained or written."])
