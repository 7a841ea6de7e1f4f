"""``qwenvl train --dry_run``: shows what a run would do. It neither trains nor writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import nn

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import place_of
from qwenvl.data.options import PromptOptions
from qwenvl.failure import counted
from qwenvl.model.loading import load_processor, load_without_weights, part_of, unwrap
from qwenvl.option import Options
from qwenvl.tools.functions import schemas_of
from qwenvl.train.assemble import build_policy, build_rewards, weight_dtype
from qwenvl.train.data_sets import build_dataset
from qwenvl.train.display.console import say
from qwenvl.train.display.first_look import first_look, size_warnings

RECORDS = 4  # whose prompts are made


def dry_run(args: GRPOConfig, what: str = "changed") -> str:
    """The settings, rewards, parameters and first prompts of a run, as lines of text.

    The weights are not loaded: their shapes follow from the checkpoint's ``config.json``.

    Args:
        what: ``changed``, the settings that differ from their defaults, or ``all``.

    Raises:
        RecordError, BadMediaError: a record that the run would stop at, if it is among the first.
        ValueError, OSError: a run with these settings would be refused.
    """
    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    rubric = build_rewards(args, None, None)
    processor = load_processor(str(args.model_name_or_path))
    collator = GRPOCollator(processor, PromptOptions.of(args), tools=schemas_of(args))
    dataset: Any = build_dataset(args.dataset_use, args, rubric, collator, training=True)
    first_look(dataset, collator)
    say_sizes(args, dataset, build_dataset(args.eval_dataset_use, args, rubric, collator, training=False))
    rewards = [f"{name}: weight {weight:g}" for name, weight in zip(rubric.names, rubric.weights, strict=True)]
    step = f"{counted(prompts_of_a_step(args), 'prompt')}, {args.grpo_sample_size} completions each"
    return sections_text(
        {
            **settings_section(args, FLAG_GROUPS, what),
            "rewards": rewards,
            "parameters that learn": parameter_lines(policy, weight_dtype(args, args.lora_enable)),
            "one step": [step],
            f"prompts of the first of {counted(len(dataset), 'record')}": prompt_lines(dataset, collator),
        }
    )


def sections_text(sections: Mapping[str, Iterable[str]]) -> str:
    """The text of a dry run: titles, and lines below them."""
    lines = [line for title, body in sections.items() for line in (title, *(f"  {line}" for line in body))]
    return "\n".join([*lines, "This was a dry run: nothing was trained or written."])


def say_sizes(args: GRPOConfig, train: Any, evaluation: Any) -> None:
    """Print the warnings of ``size_warnings``, which a run logs. Raises the same errors."""
    for warning in size_warnings(args, train, evaluation):
        say(f"worth a look: {warning}")


def settings_section(args: GRPOConfig, groups: Sequence[type[Options]], what: str) -> dict[str, list[str]]:
    """The settings that differ from their defaults, with ``all`` the other ones of ``groups`` too, by a title."""
    own = {each.name for group in groups for each in fields(group)} if what == "all" else set()
    lines = []
    for each in fields(args):
        value = getattr(args, each.name)
        if each.name in own or (value not in (None, []) and each.default is not MISSING and value != each.default):
            lines.append(f"{each.name}: {getattr(value, 'value', value)}")
    return {"settings" if own else "settings that differ from their defaults (--dry_run all: every setting)": lines}


def parameter_lines(policy: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """How many parameters of each part learn."""
    total, learn = dict.fromkeys(("llm", "vision", "mlp"), 0), dict.fromkeys(("llm", "vision", "mlp"), 0)
    for name, parameter in unwrap(policy).named_parameters():
        total[part_of(name)] += parameter.numel()
        learn[part_of(name)] += parameter.numel() * parameter.requires_grad
    for part in total:
        yield f"{part}: {learn[part]:,} of {total[part]:,}"
    yield f"in all: {sum(learn.values()):,} of {sum(total.values()):,}, kept in {str(dtype).removeprefix('torch.')}"


def prompts_of_a_step(args: GRPOConfig) -> int:
    """Prompts of an optimizer step, over all processes."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def prompt_lines(dataset, collator: GRPOCollator) -> Iterator[str]:
    """How long the first prompts are, and how many frames they have."""
    for index in range(min(RECORDS, len(dataset))):
        batch = collator([dataset[index]])["prompts"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record, mask, clips in zip(batch.records, batch.attention_mask, batch.frames, strict=True):
            frames = f", {sum(len(clip.indices) for clip in clips)} frames" if clips else ""
            yield f"{place_of(record)}: {int(mask.sum()):,} tokens{frames}"
