"""The GRPO loss from log-probabilities: no model, no sampling, only the formula."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from qwenvl.types import LossOutput

KLEstimator = Literal["k1", "k2", "k3"]
LossType = Literal["grpo", "dr_grpo"]

MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: far outside any healthy run, far inside float32


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator = "k3") -> Tensor:
    """Estimate KL(policy || reference) per token from samples of the policy.

    With d = reference - policy, clamped to [-20, 20]: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1
    (Schulman, http://joschu.net/blog/kl-approx.html; GRPO uses k3, arXiv:2402.03300). k3 is never negative and, like
    k1, unbiased; k2 is biased with little variance. Where the clamp acts the gradient is zero.

    As a *term of a loss* they differ in their gradients. That of k1 is zero in expectation whatever the reference is
    (it is the gradient of log p under p): k1 measures the divergence but does not hold the policy back. k2 has in
    expectation the gradient of KL(policy || reference), k3 that of KL(reference || policy).

    Args:
        logprobs: N x T, of the policy.
        ref_logprobs: N x T, of the reference; treated as a constant.
        estimator: ``k1``, ``k2`` or ``k3``.

    Returns:
        N x T in float32 (or float64 where the input is); positions that are infinite on both sides are NaN:
        mask before calling, as ``grpo_loss`` does.

    Example:
        >>> round(kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[-2.0]])).item(), 4)  # exp(-1) + 1 - 1
        0.3679
    """
    difference = (_at_least_float32(ref_logprobs.detach()) - _at_least_float32(logprobs)).clamp(
        -MAX_LOG_RATIO, MAX_LOG_RATIO
    )
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        # expm1 keeps the digits that exp(d) - 1 loses near zero, where a run begins.
        return torch.expm1(difference) - difference
    raise ValueError(f'estimator: expected "k1", "k2" or "k3", got {estimator!r}')


def grpo_loss(
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    alpha: float = 0.5,
    beta: float = 0.1,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    loss_type: LossType = "grpo",
    kl_estimator: KLEstimator = "k3",
    max_completion_length: int | None = None,
) -> LossOutput:
    """The loss of one micro-batch; of a token -alpha * min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta * KL.

    r = exp(logp - old_logp) is the importance ratio, its logarithm clamped to [-20, 20]; KL is that of policy and
    reference (arXiv:2402.03300, equation 3; the second epsilon: arXiv:2503.14476). A token whose r is out of bounds in
    the direction that its advantage pushes to has no policy gradient. Without ``old_logprobs`` the completions are this
    very policy's own: r is 1, and only its gradient matters.

    ``grpo`` takes the mean over each completion's tokens, then over completions (as in equation 3); ``dr_grpo`` sums
    over tokens and divides by completions * max_completion_length (arXiv:2503.20783). A completion without tokens
    contributes 0 and still counts as a completion. Either is a mean over the N completions: losses of micro-batches,
    each weighed by its share of the step's completions, sum to the loss of the step.

    Args:
        logprobs: N x T with gradient, at the sampling temperature. Anything may stand where ``mask`` is false.
        advantages: N.
        mask: N x T bool, true for the tokens of the completion, its end token included.
        old_logprobs: N x T, of the policy before its first update on these completions; None before that update.
        ref_logprobs: N x T; needed when ``beta`` is not 0. Given with ``beta`` 0, the KL is only measured.
        alpha, beta: weights of the policy term and of the KL term.
        epsilon, epsilon_high: how far r may fall below 1 and rise above it; None is as far as it may fall.
        loss_type: ``grpo`` or ``dr_grpo``.
        kl_estimator: see ``kl_estimate``.
        max_completion_length: ``generation_max_length``, the constant length of ``dr_grpo``.

    Returns:
        The scalar loss and metrics ``loss/policy``, ``loss/kl`` (the two parts, they sum to the loss) and, with a
        reference, ``kl`` (mean over tokens). With ``old_logprobs`` also ``ratio/mean``, and ``ratio/clipped_low_frac``
        and ``ratio/clipped_high_frac``, the shares of tokens that clipping leaves without policy gradient.

    Raises:
        ValueError: shapes disagree, what is needed is missing, or a completion's token has no finite log-probability.
    """
    _check_shapes(logprobs, advantages, mask, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
    if beta and ref_logprobs is None:
        raise ValueError(f"beta is {beta}, but there are no ref_logprobs: give the reference's or set beta to 0")

    # A masked position may hold -inf, and 0 * inf is NaN forwards and backwards: replace first, compute afterwards.
    policy = _finite("logprobs", logprobs, mask)
    weights = -alpha * advantages.detach().to(policy.dtype).unsqueeze(1)
    if old_logprobs is None:
        policy_term, ratio_metrics = weights * torch.exp(policy - policy.detach()), {}
    else:
        old = _finite("old_logprobs", old_logprobs.detach(), mask)
        high = epsilon if epsilon_high is None else epsilon_high
        policy_term, ratio_metrics = _clipped(weights, policy - old, mask, 1 - epsilon, 1 + high)
    policy_loss = _aggregate(policy_term * mask, mask, loss_type, max_completion_length)
    metrics = {"loss/policy": policy_loss.item(), **ratio_metrics}
    if ref_logprobs is None:
        return LossOutput(policy_loss, metrics)

    kl = kl_estimate(policy, _finite("ref_logprobs", ref_logprobs, mask), kl_estimator) * mask
    kl_loss = beta * _aggregate(kl, mask, loss_type, max_completion_length)
    metrics["loss/kl"] = kl_loss.item()
    metrics["kl"] = (kl.detach().sum() / mask.sum().clamp(min=1)).item()
    return LossOutput(policy_loss + kl_loss if beta else policy_loss, metrics)


def _clipped(
    weights: Tensor, log_ratio: Tensor, mask: Tensor, low: float, high: float
) -> tuple[Tensor, dict[str, float]]:
    """-alpha * min(r A, clip(r, low, high) A) per token from -alpha * A (N x 1), and what is logged of the ratio."""
    ratio = torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    term = torch.maximum(weights * ratio, weights * ratio.clamp(low, high))  # a minimum, once its sign is turned
    logged = {
        "ratio/mean": ratio.detach() * mask,
        "ratio/clipped_low_frac": (ratio < low) & (weights > 0) & mask,
        "ratio/clipped_high_frac": (ratio > high) & (weights < 0) & mask,
    }
    tokens = mask.sum().clamp(min=1)
    return term, {name: (values.sum() / tokens).item() for name, values in logged.items()}


def _aggregate(per_token: Tensor, mask: Tensor, loss_type: str, max_completion_length: int | None) -> Tensor:
    rows = max(len(mask), 1)
    if loss_type == "grpo":
        return (per_token.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / rows
    if loss_type == "dr_grpo":
        if not max_completion_length or max_completion_length < 1:
            raise ValueError(f"dr_grpo needs max_completion_length (at least 1 token), got {max_completion_length}")
        return per_token.sum() / (rows * max_completion_length)
    raise ValueError(f'loss_type: expected "grpo" or "dr_grpo", got {loss_type!r}')


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _check_shapes(logprobs: Tensor, advantages: Tensor, mask: Tensor, **others: Tensor | None) -> None:
    if logprobs.dim() != 2 or mask.shape != logprobs.shape or advantages.shape != logprobs.shape[:1]:
        raise ValueError(
            "expected logprobs and mask N x T and advantages N, got "
            f"{tuple(logprobs.shape)}, {tuple(mask.shape)} and {tuple(advantages.shape)}"
        )
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected bool, got {mask.dtype}")
    for name, values in others.items():
        if values is not None and values.shape != logprobs.shape:
            raise ValueError(f"{name}: expected shape {tuple(logprobs.shape)}, got {tuple(values.shape)}")


def _finite(name: str, values: Tensor, mask: Tensor) -> Tensor:
    masked = _at_least_float32(values).masked_fill(~mask, 0.0)
    bad = ~torch.isfinite(masked)
    if bad.any():
        row, token = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {token}] is {masked[row, token].item()}: the model gave a token of a completion no finite "
            "log-probability (diverged weights, half precision, or a token the sampler was not allowed to draw)"
        )
    return masked
