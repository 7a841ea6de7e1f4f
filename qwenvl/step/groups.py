"""Groups of an experience before they are compared: selected, and joined to those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import join_rollouts, select_rows
from qwenvl.step.count import Experience
from qwenvl.types import PromptBatch, RewardBatch

_PROMPT_ROWS = ("input_ids", "attention_mask")


def select(experience: Experience, groups: Sequence[int]) -> Experience:
    """The groups of the prompts ``groups``, in this order. Samples that were left out stay with the whole."""
    rollout = experience.rollout
    size = len(rollout.texts) // max(1, len(experience))
    rows = [group * size + n for group in groups for n in range(size)]
    return Experience(
        experience.batch.select(groups),
        experience.prompts.select(list(groups)),
        select_rows(rollout, rows),
        rewards_of_rows(experience.rewards, rows),
    )


def without_media(experience: Experience) -> Experience:
    """The same without pixels and features, for the run folder: these take most of the memory."""
    rollout = replace(experience.rollout, whole=None)
    batch = replace(without_pixels(experience.batch), teacher=None)
    return replace(experience, batch=batch, prompts=experience.prompts.select([]), rollout=rollout)


def join(parts: Sequence[Experience]) -> Experience:
    """All groups of ``parts``, in order. At least one of them has some."""
    parts = [part for part in parts if len(part)]
    return Experience(
        _join_batches([part.batch for part in parts]),
        PromptInputs.join([part.prompts for part in parts]),
        join_rollouts([part.rollout for part in parts]),
        join_rewards([part.rewards for part in parts]),
    )


def rewards_of_rows(rewards: RewardBatch, rows: Sequence[int]) -> RewardBatch:
    """The rewards of some completions."""
    components = [[values[row] for row in rows] for values in rewards.components]
    return replace(rewards, components=components, total=rewards.total[rows])


def without_pixels(batch: PromptBatch) -> PromptBatch:
    """The same prompts without the patches of their media, which nothing reads after sampling."""
    return replace(batch, pixel_values=None, pixel_values_videos=None)


def _join_batches(parts: Sequence[PromptBatch]) -> PromptBatch:
    """All prompts of ``parts``, in order, left-padded to the longest. The samples that were left out are too."""
    joined: dict[str, Any] = {}
    for name in (each.name for each in fields(PromptBatch)):
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            joined[name] = [item for value in values for item in value]
        elif name in _PROMPT_ROWS:
            rows = [row for value in values for row in value]
            joined[name] = pad_sequence(rows, batch_first=True, padding_side="left")
        elif name == "teacher":
            joined[name] = None if values[0] is None else _join_batches(values)
        else:
            media = [value for value in values if value is not None]
            joined[name] = torch.cat(media) if media else None
    return PromptBatch(**joined)


def join_rewards(parts: Sequence[RewardBatch]) -> RewardBatch:
    """All rewards of ``parts``, in order, and the means of their metrics by rows."""
    metrics = {}
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        known = [(part.metrics[name], part.total.numel()) for part in parts if name in part.metrics]
        metrics[name] = sum(value * rows for value, rows in known) / max(1, sum(rows for _, rows in known))
    by_function = zip(*(part.components for part in parts), strict=True)
    return replace(
        parts[0],
        components=[[value for values in columns for value in values] for columns in by_function],
        total=torch.cat([part.total for part in parts]),
        metrics=metrics,
    )
