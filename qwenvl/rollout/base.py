"""What every sampler offers, and the settings it is given."""

from __future__ import annotations

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
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


class Sampler(Protocol):
    """Draws completions; the same seed, prompts and weights give the same ones."""

    def sample(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams, seed: int
    ) -> RolloutBatch:
        """P prompts -> N = P * G completions, row n for prompt n // G."""
        ...


def completion_mask(completion_ids: Tensor, end_ids: list[int]) -> Tensor:
    """N x T bool: True up to and with the first end token."""
    is_end = torch.isin(completion_ids, torch.tensor(end_ids, device=completion_ids.device))
    ends_before = is_end.long().cumsum(1) - is_end.long()
    return ends_before == 0
