"""Numbers that tell whether a run is healthy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qwenvl.grpo.advantages import nanstd
from qwenvl.run_log.health import SAME_REWARD


def equal_groups(rewards: Tensor, group_size: int) -> Tensor:
    """P bool, True for groups whose rewards are all equal. A group with fewer than two rewards counts as equal.

    Equal: they differ by ``SAME_REWARD`` at most, so that the group has no policy gradient.

    Args:
        rewards: N floats, NaN for "no reward". N is a multiple of ``group_size``.

    Example:
        >>> equal_groups(torch.tensor([1.0, 1.0, 0.0, 1.0]), group_size=2).tolist()
        [True, False]
    """
    groups = rewards.view(rewards.numel() // group_size, group_size)
    spread = groups.nan_to_num(nan=-math.inf).amax(dim=1) - groups.nan_to_num(nan=math.inf).amin(dim=1)
    return spread <= SAME_REWARD


def unique_fraction(texts: Sequence[str], group_size: int) -> float:
    """Mean over groups of the share of different completions, 1 / G where all are the same. 1 without rows.

    Args:
        texts: N completions. N is a multiple of ``group_size``.

    Example:
        >>> unique_fraction(["a", "a", "b", "c"], group_size=2)
        0.75
    """
    groups = [texts[n : n + group_size] for n in range(0, len(texts), group_size)]
    return sum(len(set(group)) / len(group) for group in groups) / len(groups) if groups else 1.0


def reward_std(rewards: Tensor, group_size: int) -> float:
    """Mean over groups of the standard deviation (n-1) within the group, or 0 without rows.

    A reward that is NaN ("no reward") is left out. A group with fewer than two rewards has a deviation of 0.
    """
    return nanstd(rewards.view(-1, group_size), dim=1).mean().item() if rewards.numel() else 0.0


def logprob_gap(sampler: Tensor, trainer: Tensor, mask: Tensor) -> tuple[float, float]:
    """Largest and mean absolute difference between the sampler's and the trainer's log-probs of the same tokens.

    Args:
        sampler, trainer: N x T log-probabilities at the same temperature.
        mask: N x T bool. Only true positions are compared.

    Returns:
        (largest, mean). Both are 0 without tokens, and infinity where one side is NaN or infinite, so that no threshold
        passes.
    """
    difference = (sampler.detach().float() - trainer.detach().float()).abs()[mask]
    if difference.numel() == 0:
        return 0.0, 0.0
    difference = torch.nan_to_num(difference, nan=math.inf)
    return difference.max().item(), difference.mean().item()
