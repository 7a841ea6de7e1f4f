"""What every sampler offers, and the settings it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from qwenvl.model.inputs import PromptInputs
from qwenvl.types import RolloutBatch


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn.

    Attributes:
        max_new_tokens: a completion is cut there, with finish reason ``length``.
        temperature: logits are divided by it; 0 means greedy.
        top_p: only the most probable tokens whose probabilities sum to this are drawn from.
        token_budget: prompts are sampled together as long as their tokens, as the sampler holds them, stay below this;
            None: all together.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    token_budget: int | None = None


class Sampler(Protocol):
    """Draws completions; the same seed, prompts and weights give the same ones."""

    def sample(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams, seed: int
    ) -> RolloutBatch:
        """P prompts -> N = P * G completions, row n for prompt n // G."""
        ...


def split_rollouts(rollout: RolloutBatch, sizes: Sequence[int]) -> list[RolloutBatch]:
    """The rows of ``rollout`` cut into consecutive batches of the given sizes, each no wider than its longest row."""
    parts, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        width = max(1, int(rollout.completion_mask[rows].sum(1).max()) if size else 0)
        parts.append(
            RolloutBatch(
                rollout.completion_ids[rows, :width],
                rollout.completion_mask[rows, :width],
                rollout.texts[rows],
                rollout.finish_reasons[rows],
                None if rollout.logprobs is None else rollout.logprobs[rows, :width],
            )
        )
        start += size
    return parts


def within_budget(costs: Sequence[int], budget: int | None) -> list[list[int]]:
    """Consecutive indices in groups whose costs sum to at most ``budget``; one that exceeds it alone is a group.

    Example:
        >>> within_budget([5, 4, 3, 20, 1], 10)
        [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    total = 0
    for index, cost in enumerate(costs):
        if not groups or (budget is not None and total + cost > budget):
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += cost
    return groups


def completion_mask(completion_ids: Tensor, end_ids: list[int]) -> Tensor:
    """N x T bool: True up to and with the first end token."""
    is_end = torch.isin(completion_ids, torch.tensor(end_ids, device=completion_ids.device))
    ends_before = is_end.long().cumsum(1) - is_end.long()
    return ends_before == 0
