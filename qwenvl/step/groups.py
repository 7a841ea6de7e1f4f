"""Groups of scored completions: some of a micro-batch, and those of several joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import join_rollouts, select_rows
from qwenvl.step.types import Scored
from qwenvl.types import PromptBatch, RewardBatch

_PROMPT_ROWS = ("input_ids", "attention_mask")


def select(scored: Scored, groups: Sequence[int]) -> Scored:
    """The groups of the prompts ``groups``, in this order. Samples that were left out stay with the whole."""
    size = len(scored.rollout.texts) // max(1, len(scored))
    rows: list[int] = []
    for group in groups:
        rows += range(group * size, (group + 1) * size)
    return Scored(
        batch=scored.batch.select(groups),
        prompts=scored.prompts.select(list(groups)),
        rollout=select_rows(scored.rollout, rows),
        staleness=scored.staleness,
        rewards=rewards_of_rows(scored.rewards, rows),
    )


def without_media(scored: Scored) -> Scored:
    """The same without pixels and features, for the run folder: these take most of the memory."""
    rollout = replace(scored.rollout, whole=None)
    batch = replace(without_pixels(scored.batch), teacher=None)
    return replace(scored, batch=batch, prompts=scored.prompts.select([]), rollout=rollout)


def join(parts: Sequence[Scored]) -> Scored:
    """All groups of ``parts``, in order, as old as those of the first. At least one of them has some."""
    filled = [part for part in parts if len(part)]
    return Scored(
        batch=_join_batches([part.batch for part in filled]),
        prompts=PromptInputs.join([part.prompts for part in filled]),
        rollout=join_rollouts([part.rollout for part in filled]),
        staleness=parts[0].staleness,
        rewards=join_rewards([part.rewards for part in filled]),
    )


def rewards_of_rows(rewards: RewardBatch, rows: Sequence[int]) -> RewardBatch:
    """The rewards of some completions."""
    def chosen(values: list[Any]) -> list[Any]:
        return [values[row] for row in rows]

    components = [chosen(values) for values in rewards.components]
    metrics = {name: chosen(values) for name, values in rewards.metrics.items()}
    failed = {name: chosen(flags) for name, flags in rewards.failed.items()}
    return replace(rewards, components=components, total=rewards.total[list(rows)], metrics=metrics, failed=failed)


def without_pixels(batch: PromptBatch) -> PromptBatch:
    """The same prompts without the patches of their media, which nothing reads after sampling."""
    return replace(batch, pixel_values=None, pixel_values_videos=None)


def _join_batches(parts: Sequence[PromptBatch]) -> PromptBatch:
    """All prompts of ``parts``, in order, left-padded to the longest. The samples that were left out are too."""
    joined: dict[str, Any] = {}
    for field in fields(PromptBatch):
        name = field.name
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            joined[name] = list(chain.from_iterable(values))
        elif name in _PROMPT_ROWS:  # each P x L, with an L of its own
            rows = list(chain.from_iterable(values))
            joined[name] = pad_sequence(rows, batch_first=True, padding_side="left")
        elif name == "teacher":
            joined[name] = None if values[0] is None else _join_batches(values)
        else:  # media and their grids: a part without images or videos has None
            media = [value for value in values if value is not None]
            joined[name] = torch.cat(media) if media else None
    return PromptBatch(**joined)


def join_rewards(parts: Sequence[RewardBatch]) -> RewardBatch:
    """All rewards of ``parts``, in order."""
    components: list[list[float | None]] = [[] for _ in parts[0].components]
    failed: dict[str, list[bool]] = {name: [] for name in parts[0].failed}
    for part in parts:
        for joined, values in zip(components, part.components, strict=True):
            joined += values
        for name, flags in part.failed.items():
            failed[name] += flags
    metrics: dict[str, list[float | None]] = {}
    for part in parts:
        for name in part.metrics:
            metrics[name] = []
    for name, joined in metrics.items():
        for part in parts:
            # A function may log a number in one call and not in another.
            joined += part.metrics.get(name, [None] * part.total.numel())
    return replace(
        parts[0],
        components=components,
        total=torch.cat([part.total for part in parts]),
        metrics=metrics,
        failed=failed,
    )
