"""``--dry_run`` of ``qwenvl train`` and ``warmup``: shows what a run would do. It neither trains nor writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields

import torch
from torch import nn

from qwenvl.config.flags import FLAG_GROUPS, WARMUP_GROUPS
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import place_of
from qwenvl.data.options import PromptOptions
from qwenvl.failure import counted
from qwenvl.model.loading import load_processor, load_without_weights, part_of, unwrap
from qwenvl.train.assemble import build_policy, build_rewards, weight_dtype
from qwenvl.train.data_sets import build_dataset
from qwenvl.train.display.console import say
from qwenvl.train.display.first_look import first_look, size_warnings
from qwenvl.train.warmup.targets import TargetCollator, narrowed, shown_targets, targets_of

RECORDS = 4  # whose prompts are made


def dry_run(args: GRPOConfig, what: str = "changed") -> str:
    """The settings, rewards or targets, parameters and first prompts of a run, as lines of text.

    The weights are not loaded: their shapes follow from the checkpoint's ``config.json``.

    Args:
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        what: ``changed``, the settings that differ from their defaults, or ``all``.

    Raises:
        RecordError, BadMediaError: a record that the run would stop at, if it is among the first.
        ValueError, OSError: a run with these settings would be refused.
    """
    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    processor, options = load_processor(str(args.model_name_or_path)), PromptOptions.of(args)
    prompts = counted(args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size, "prompt")
    groups = WARMUP_GROUPS if isinstance(args, WarmupConfig) else FLAG_GROUPS
    own = {each.name for group in groups for each in fields(group)} if what == "all" else set()
    settings = []
    for each in fields(args):
        value = getattr(args, each.name)
        if each.name in own or (value not in (None, []) and each.default is not MISSING and value != each.default):
            settings.append(f"{each.name}: {getattr(value, 'value', value)}")
    title = "settings" if own else "settings that differ from their defaults (--dry_run all: every setting)"
    sections: dict[str, Iterable[str]] = {title: settings}
    if isinstance(args, WarmupConfig):
        targets = targets_of(args)
        collator: GRPOCollator = TargetCollator(processor, options, targets)
        dataset, held_out = (
            narrowed(build_dataset(use, args, targets, collator, training=training), targets, flag)
            for use, training, flag in (
                (args.dataset_use, True, "--dataset_use"),
                (args.eval_dataset_use, False, "--eval_dataset_use"),
            )
        )
        more = {"one step": [prompts], "their targets": shown_targets(dataset, collator, RECORDS)}
    else:
        rubric = build_rewards(args, None, None)
        collator = GRPOCollator(processor, options)
        dataset = build_dataset(args.dataset_use, args, rubric, collator, training=True)
        held_out = build_dataset(args.eval_dataset_use, args, rubric, collator, training=False)
        sections["rewards"] = [f"{name}: weight {of:g}" for name, of in zip(rubric.names, rubric.weights, strict=True)]
        more = {"one step": [f"{prompts}, {args.grpo_sample_size} completions each"]}
    first_look(dataset, collator)
    for warning in size_warnings(args, dataset, held_out):
        say(f"worth a look: {warning}")
    sections["parameters that learn"] = parameter_lines(policy, weight_dtype(args, args.lora_enable))
    sections[f"prompts of the first of {counted(len(dataset), 'record')}"] = prompt_lines(dataset, collator)
    sections |= more
    lines = [line for title, body in sections.items() for line in (title, *(f"  {line}" for line in body))]
    return "\n".join([*lines, "This was a dry run: nothing was trained or written."])


def parameter_lines(policy: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """How many parameters of each part learn."""
    total, learn = dict.fromkeys(("llm", "vision", "mlp"), 0), dict.fromkeys(("llm", "vision", "mlp"), 0)
    for name, parameter in unwrap(policy).named_parameters():
        total[part_of(name)] += parameter.numel()
        learn[part_of(name)] += parameter.numel() * parameter.requires_grad
    for part in total:
        yield f"{part}: {learn[part]:,} of {total[part]:,}"
    yield f"in all: {sum(learn.values()):,} of {sum(total.values()):,}, kept in {str(dtype).removeprefix('torch.')}"


def prompt_lines(dataset, collator: GRPOCollator) -> Iterator[str]:
    """How long the first prompts are, and how many frames they have."""
    for index in range(min(RECORDS, len(dataset))):
        batch = collator([dataset[index]])["prompts"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record, mask, clips in zip(batch.records, batch.attention_mask, batch.frames, strict=True):
            frames = f", {sum(len(clip.indices) for clip in clips)} frames" if clips else ""
            yield f"{place_of(record)}: {int(mask.sum()):,} tokens{frames}"
