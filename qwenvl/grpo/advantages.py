"""Advantages: each completion's reward relative to its own group."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

RewardScale = Literal["group", "batch", "none"]


def group_advantages(rewards: Tensor, group_size: int, scale: RewardScale = "group", eps: float = 1e-4) -> Tensor:
    """Centre each reward on the mean of its group and divide it by a spread.

    NaN marks a completion without a reward. It counts in no mean and no standard deviation, and its advantage is 0.

    Args:
        rewards: N floats, NaN for "no reward". Row n belongs to group n // group_size.
        group_size: completions per prompt, at least 2.
        scale: ``group`` divides by the group's standard deviation (n-1) + eps (GRPO, arXiv:2402.03300, section 4.1).
            ``batch`` divides by the standard deviation of all N rewards + eps. ``none`` only centres (Dr. GRPO,
            arXiv:2503.20783).
        eps: added to the standard deviation, so that a group of equal rewards gives zeros.

    Returns:
        N advantages, in the dtype of ``rewards`` (integers become float32). All of them are finite.

    Raises:
        ValueError: the rows do not divide into groups, a group is smaller than two, or a reward is infinite.

    Example:
        >>> group_advantages(torch.tensor([1.0, 0.0, 3.0, 1.0]), group_size=2, scale="none").tolist()
        [0.5, -0.5, 1.0, -1.0]
        >>> group_advantages(torch.tensor([1.0, float("nan"), 0.0]), group_size=3, scale="none").tolist()
        [0.5, 0.0, -0.5]
    """
    if group_size < 2:
        raise ValueError(
            f"group_size is {group_size}: with fewer than 2 completions per prompt the advantage is always 0; "
            "raise grpo_sample_size"
        )
    if rewards.dim() != 1 or rewards.numel() % group_size:
        raise ValueError(
            f"rewards: expected a vector of whole groups of {group_size}, got shape {tuple(rewards.shape)}"
        )
    if not rewards.is_floating_point():
        rewards = rewards.float()
    infinite = rewards.isinf().nonzero().flatten().tolist()
    if infinite:
        raise ValueError(f"rewards: rows {infinite[:8]} are infinite; the reward functions must give finite numbers")

    # In float64: rounded to float32 the mean of equal rewards may not be one of them, and eps is no larger than that.
    groups = rewards.double().view(-1, group_size)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (nanstd(groups, dim=1).unsqueeze(1) + eps)
    elif scale == "batch":
        centred = centred / (nanstd(groups.flatten(), dim=0) + eps)
    elif scale != "none":
        raise ValueError(f'scale: expected "group", "batch" or "none", got {scale!r}')
    return centred.reshape(-1).nan_to_num(nan=0.0).to(rewards.dtype)


def nanstd(values: Tensor, dim: int) -> Tensor:
    """Standard deviation (n-1) along a dimension of the values that are not NaN, or 0 where there are fewer than two.

    Example:
        >>> nanstd(torch.tensor([[1.0, 3.0], [5.0, float("nan")]]), dim=1)
        tensor([1.4142, 0.0000])
    """
    squares = (values - values.nanmean(dim=dim, keepdim=True)).square().nansum(dim=dim)
    return (squares / (values.isfinite().sum(dim=dim) - 1).clamp(min=1)).sqrt()
