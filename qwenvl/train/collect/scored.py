"""Prompts with their completions and rewards: groups of them can be selected and joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from qwenvl.model.inputs import PromptInputs
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch

_PROMPT_ROWS = ("input_ids", "attention_mask")
_COMPLETION_ROWS = ("completion_ids", "completion_mask", "logprobs", "entropies")


@dataclass(frozen=True)
class Scored:
    """P prompts whose N completions have rewards, and are not compared yet. The batch is without pixels."""

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    rewards: RewardBatch

    def __len__(self) -> int:
        return len(self.batch)

    def select(self, groups: Sequence[int]) -> Scored:
        """The groups of the prompts ``groups``, in this order. Samples that were left out stay with the whole."""
        size = len(self.rollout.texts) // max(1, len(self))
        rows = [group * size + n for group in groups for n in range(size)]
        rollout = self.rollout
        width = max(1, int(rollout.completion_mask[rows].sum(1).max()) if rows else 0)
        tensors: dict[str, Any] = {name: getattr(rollout, name) for name in _COMPLETION_ROWS}
        own: dict[str, Any] = {name: None if value is None else value[rows, :width] for name, value in tensors.items()}
        return Scored(
            self.batch.select(groups),
            self.prompts.select(list(groups)),
            replace(
                rollout,
                texts=[rollout.texts[row] for row in rows],
                finish_reasons=[rollout.finish_reasons[row] for row in rows],
                **own,
            ),
            rewards_of_rows(self.rewards, rows),
        )

    def without_media(self) -> Scored:
        """The same without pixels and features, for the run folder: these take most of the memory."""
        return replace(self, batch=without_pixels(self.batch), prompts=self.prompts.select([]))

    @classmethod
    def join(cls, parts: Sequence[Scored]) -> Scored:
        """All groups of ``parts``, in order. At least one of them has some."""
        parts = [part for part in parts if len(part)]
        return cls(
            join_batches([part.batch for part in parts]),
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


def join_batches(parts: Sequence[PromptBatch]) -> PromptBatch:
    """All prompts of ``parts``, in order, left-padded to the longest. The samples that were left out are too."""
    joined: dict[str, Any] = {}
    for name in (each.name for each in fields(PromptBatch)):
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            joined[name] = [item for value in values for item in value]
        elif name in _PROMPT_ROWS:
            joined[name] = _rows(values, left=True)
        else:
            media = [value for value in values if value is not None]
            joined[name] = torch.cat(media) if media else None
    return PromptBatch(**joined)


def join_rollouts(parts: Sequence[RolloutBatch]) -> RolloutBatch:
    """All completions of ``parts``, in order, right-padded to the longest."""
    tensors = {name: [getattr(part, name) for part in parts] for name in _COMPLETION_ROWS}
    return RolloutBatch(
        texts=[text for part in parts for text in part.texts],
        finish_reasons=[reason for part in parts for reason in part.finish_reasons],
        boots=frozenset().union(*(part.boots for part in parts)),
        **{name: None if values[0] is None else _rows(values, left=False) for name, values in tensors.items()},
    )


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


def _rows(values: Sequence[Tensor], left: bool) -> Tensor:
    """Rows of different lengths below each other, padded with zeros."""
    width = max(value.shape[1] for value in values)
    missing = [width - value.shape[1] for value in values]
    return torch.cat([pad(v, (n, 0) if left else (0, n)) for v, n in zip(values, missing, strict=True)])
