"""Advantages: each completion's reward relative to its own group, by the estimators of several papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RewardScale = Literal["group", "batch", "none"]

EPS = 1e-4
"""Added to each standard deviation, so that equal rewards do not divide 0 by 0."""


@dataclass(frozen=True)
class Grouped:
    """The rewards of P groups of G completions, NaN where there is none.

    Attributes:
        total: P x G, what each completion is worth.
        components: P x G x K, what each reward function gave.
        weights: K, of the reward functions.
    """

    total: Tensor
    components: Tensor
    weights: Tensor

    @property
    def centred(self) -> Tensor:
        """P x G, each total minus the mean of its group."""
        return self.total - self.total.nanmean(dim=1, keepdim=True)


def grpo(rewards: Grouped, scale: RewardScale) -> Tensor:
    """(r - mean of the group) / the spread that scale_rewards names (GRPO, arXiv:2402.03300, section 4.1).

    ``group``: the group's standard deviation. ``batch``: that of all rewards of the step. ``none``: 1 (Dr. GRPO,
    arXiv:2503.20783).

    Example:
        >>> grpo(Grouped(torch.tensor([[1.0, 0.0], [3.0, 1.0]]), torch.empty(2, 2, 0), torch.empty(0)), "none").tolist()
        [[0.5, -0.5], [1.0, -1.0]]
    """
    if scale == "group":
        return rewards.centred / (nanstd(rewards.total, dim=1).unsqueeze(1) + EPS)
    if scale == "batch":
        return rewards.centred / (nanstd(rewards.total.flatten(), dim=0) + EPS)
    if scale == "none":
        return rewards.centred
    raise ValueError(f'scale: expected "group", "batch" or "none", got {scale!r}')


def rloo(rewards: Grouped, scale: RewardScale) -> Tensor:
    """r - mean of the others of the group, which is G/(G - 1) (r - mean of the group) (RLOO, arXiv:2402.14740).

    Example:
        >>> rloo(Grouped(torch.tensor([[4.0, 0.0, 2.0]]), torch.empty(1, 3, 0), torch.empty(0)), "none").tolist()
        [[3.0, -3.0, 0.0]]
    """
    known = rewards.total.isfinite().sum(dim=1, keepdim=True)
    return rewards.centred * known / (known - 1).clamp(min=1)


def reinforce_plus_plus(rewards: Grouped, scale: RewardScale) -> Tensor:
    """(r - mean of the group) / std of these differences over the step (REINFORCE++-baseline, arXiv:2501.03262).

    The differences have a mean of 0 over the step already, because they have one in each group.

    Example:
        >>> groups = Grouped(torch.tensor([[1.0, 0.0], [3.0, 1.0]]), torch.empty(2, 2, 0), torch.empty(0))
        >>> reinforce_plus_plus(groups, "none")  # 0.5 -0.5 1 -1 by sqrt(2.5 / 3)
        tensor([[ 0.5477, -0.5477],
                [ 1.0953, -1.0953]])
    """
    return rewards.centred / (nanstd(rewards.centred.flatten(), dim=0) + EPS)


def gdpo(rewards: Grouped, scale: RewardScale) -> Tensor:
    """Sum of weight x (r_k - mean) / std in the group, for each function k, then / std of the step (arXiv:2601.05242).

    A function with a wide range, or one that is rarely right, weighs no less than another. The sum has a mean of 0
    over the step already, because each of its terms has one in each group.

    Example:
        >>> components = torch.tensor([[[1.0, 0.0], [0.0, 50.0]]])  # two completions, two functions
        >>> gdpo(Grouped(torch.tensor([[1.0, 50.0]]), components, torch.tensor([3.0, 1.0])), "none")
        tensor([[ 0.7071, -0.7071]])
    """
    centred = rewards.components - rewards.components.nanmean(dim=1, keepdim=True)
    each = centred / (nanstd(rewards.components, dim=1).unsqueeze(1) + EPS)
    total = (each * rewards.weights).nansum(dim=2).masked_fill(rewards.total.isnan(), torch.nan)
    return total / (nanstd(total.flatten(), dim=0) + EPS)


ESTIMATORS: dict[str, Callable[[Grouped, RewardScale], Tensor]] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "gdpo": gdpo,
}
"""What ``advantage_estimator`` names. Each gives P x G advantages, NaN where there is no reward."""


def needs_whole_step(estimator: str, scale: RewardScale) -> bool:
    """Whether an advantage depends on rewards of other groups, so that those of all processes have to be gathered."""
    if estimator == "grpo":
        return scale == "batch"
    return estimator in ("reinforce_plus_plus", "gdpo")


def group_advantages(
    rewards: Tensor,
    group_size: int,
    scale: RewardScale = "group",
    estimator: str = "grpo",
    components: Tensor | None = None,
    weights: Sequence[float] = (),
) -> Tensor:
    """The advantages of N completions by a row of ``ESTIMATORS``.

    NaN marks a completion without a reward. It counts in no mean and no standard deviation, and its advantage is 0.
    All standard deviations are those with n - 1, plus 1e-4.

    Args:
        rewards: N floats, NaN for "no reward". Row n belongs to group n // group_size. Where ``needs_whole_step`` says
            so, those of the whole step.
        group_size: completions per prompt, at least 2.
        scale: what ``grpo`` divides by. Other estimators do not read it.
        estimator: a row of ``ESTIMATORS``.
        components, weights: N x K values of the reward functions, NaN where one does not apply, and K weights. Only
            ``gdpo`` reads them.

    Returns:
        N advantages, in the dtype of ``rewards`` (integers become float32). All of them are finite.

    Raises:
        ValueError: the rows do not divide into groups, a group is smaller than two, a reward is infinite, there is no
            such estimator or scale, or ``gdpo`` lacks the components.

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
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if components is None:
        components = rewards.new_empty(len(rewards), 0)
    expected = (len(rewards), len(weights))
    if tuple(components.shape) != expected or (estimator == "gdpo" and not weights):
        raise ValueError(f"components: expected N x K for K weights, {expected}, got {tuple(components.shape)}")
    if not rewards.is_floating_point():
        rewards = rewards.float()
    infinite = rewards.isinf().nonzero().flatten().tolist()
    if infinite:
        raise ValueError(f"rewards: rows {infinite[:8]} are infinite; the reward functions must give finite numbers")

    # In float64: rounded to float32 the mean of equal rewards may not be one of them, and eps is no larger than that.
    groups = len(rewards) // group_size
    grouped = Grouped(
        total=rewards.double().view(groups, group_size),
        components=components.double().view(groups, group_size, len(weights)),
        weights=torch.tensor(weights, dtype=torch.float64, device=rewards.device),
    )
    advantages = ESTIMATORS[estimator](grouped, scale)  # P x G
    return advantages.flatten().nan_to_num(nan=0.0).to(rewards.dtype)


def nanstd(values: Tensor, dim: int) -> Tensor:
    """Standard deviation (n-1) along a dimension of the values that are not NaN, or 0 where there are fewer than two.

    Example:
        >>> nanstd(torch.tensor([[1.0, 3.0], [5.0, float("nan")]]), dim=1)
        tensor([1.4142, 0.0000])
    """
    squares = (values - values.nanmean(dim=dim, keepdim=True)).square().nansum(dim=dim)
    return (squares / (values.isfinite().sum(dim=dim) - 1).clamp(min=1)).sqrt()
