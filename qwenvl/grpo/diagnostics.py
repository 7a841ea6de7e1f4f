"""Numbers that tell whether a run is healthy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qwenvl.grpo.advantages import nanstd

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T_975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


class MeanInterval(NamedTuple):
    """A mean, the half width of its 95 % interval (NaN below two values) and the number of values."""

    mean: float
    half_width: float
    n: int


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Mean of independent values with the 95 % interval mean +- half_width, by Student's t with n-1 degrees of freedom.

    Values of one prompt's completions are not independent: average them per prompt first.

    Raises:
        ValueError: a value is NaN or infinite.

    Example:
        >>> mean_interval([0.0, 1.0])  # standard error 0.5, t(1) = 12.7062
        MeanInterval(mean=0.5, half_width=6.3531, n=2)
    """
    n = len(values)
    if not all(math.isfinite(value) for value in values):
        raise ValueError("mean_interval: a value is NaN or infinite")
    if n < 2:
        return MeanInterval(float(values[0]) if n else math.nan, math.nan, n)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return MeanInterval(mean, student_t_975(n - 1) * math.sqrt(variance / n), n)


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, above 30 degrees by the Cornish-Fisher expansion (error below 1e-4)."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def zero_std_fraction(rewards: Tensor, group_size: int, tolerance: float = 1e-6) -> float:
    """Share of groups whose rewards are all equal (largest - smallest <= tolerance): they carry no policy gradient.

    A group with fewer than two rewards carries none either, and counts as equal.

    Args:
        rewards: N floats, NaN for "no reward". N is a multiple of ``group_size``.

    Example:
        >>> zero_std_fraction(torch.tensor([1.0, 1.0, 0.0, 1.0]), group_size=2)
        0.5
    """
    if rewards.numel() == 0:
        return 0.0
    return equal_groups(rewards, group_size, tolerance).float().mean().item()


def equal_groups(rewards: Tensor, group_size: int, tolerance: float = 1e-6) -> Tensor:
    """Whether the rewards of each group are all equal, P bool. A group with fewer than two rewards counts as equal.

    Example:
        >>> equal_groups(torch.tensor([1.0, 1.0, 0.0, 1.0]), group_size=2).tolist()
        [True, False]
    """
    groups = rewards.view(rewards.numel() // group_size, group_size)
    spread = groups.nan_to_num(nan=-math.inf).amax(dim=1) - groups.nan_to_num(nan=math.inf).amin(dim=1)
    return spread <= tolerance


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

    A reward that is NaN ("no reward") is left out. A group with fewer than two others has a deviation of 0.
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


def logprob_gaps(sampler: Tensor, trainer: Tensor, mask: Tensor) -> list[float]:
    """The largest difference of ``logprob_gap`` for each completion. 0 for one without tokens.

    Args:
        sampler, trainer, mask: as there.

    Returns:
        N numbers.
    """
    rows = zip(sampler, trainer, mask, strict=True)
    return [logprob_gap(own[None], other[None], counted[None])[0] for own, other, counted in rows]
