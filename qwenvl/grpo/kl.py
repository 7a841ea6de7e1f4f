"""Estimates of the KL divergence between policy and reference, from log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: far outside any healthy run, far inside float32


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), with the log ratio clamped to [-20, 20]."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def k1(difference: Tensor) -> Tensor:
    """-d. Unbiased. As a term of a loss its gradient is 0 in expectation: it measures and does not hold back."""
    return -difference


def k2(difference: Tensor) -> Tensor:
    """d^2 / 2. Biased, of low variance. In expectation its gradient is that of KL(policy || reference)."""
    return difference.square() / 2


def k3(difference: Tensor) -> Tensor:
    """exp(d) - d - 1. Unbiased and never negative. In expectation its gradient is that of KL(reference || policy)."""
    # expm1 keeps the digits that exp(d) - 1 loses near zero, where a run begins.
    return torch.expm1(difference) - difference


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Each takes d = reference - policy log-prob (Schulman, http://joschu.net/blog/kl-approx.html). GRPO uses k3."""


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k3") -> Tensor:
    """Estimate KL(policy || reference) per token from samples of the policy.

    The difference is clamped to [-20, 20]. Where the clamp acts the gradient is zero.

    Args:
        logprobs: N x T, of the policy.
        ref_logprobs: N x T, of the reference, treated as a constant.
        estimator: a row of ``KL_ESTIMATORS``.

    Returns:
        N x T in float32 (or float64 where the input is). Positions that are infinite on both sides are NaN. Mask
        before calling, as ``Objective`` does.

    Raises:
        ValueError: there is no such estimator.

    Example:
        >>> round(kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[-2.0]])).item(), 4)  # exp(-1) + 1 - 1
        0.3679
    """
    if estimator not in KL_ESTIMATORS:
        raise ValueError(f"estimator: expected one of {', '.join(KL_ESTIMATORS)}, got {estimator!r}")
    difference = at_least_float32(ref_logprobs.detach()) - at_least_float32(logprobs)
    return KL_ESTIMATORS[estimator](difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def completion_kl(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """The sum over each completion's tokens of k1 = l' - q: times beta, the penalty of ``kl_in_reward``.

    In expectation over completions it is KL(policy || reference) of a completion (REINFORCE++, arXiv:2501.03262).

    Args:
        logprobs, ref_logprobs: N x T, of the policy that sampled the completions and of the reference.
        mask: N x T bool, the tokens of the completions. Log-probs where it is false are not read.

    Returns:
        N float64, in nats. A difference counts as 20 at most.

    Raises:
        ValueError: a token of a completion has a log-prob that is no number.

    Example:
        >>> completion_kl(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]), torch.tensor([[True, False]]))
        tensor([0.5000], dtype=torch.float64)
    """
    ours, theirs = (values.double().masked_fill(~mask, 0.0) for values in (logprobs, ref_logprobs))
    total = kl_estimate(ours, theirs, "k1").sum(dim=1)
    if total.isnan().any():
        raise ValueError(f"completion {int(total.isnan().nonzero()[0])}: a token has a log-prob that is no number")
    return total


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32, or in float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()
