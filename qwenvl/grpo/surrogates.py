"""The small functions that objectives are made of: importance ratios and limits on them.

Notation: l and l' are the log-probs of a token under the policy and under the policy at sampling time, r is the
importance ratio, A the advantage of the completion, |o| the number of its tokens, m the mask, sg[x] is x without
gradient. Log ratios are clamped to [-20, 20] before they are exponentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenvl.grpo.kl import MAX_LOG_RATIO, bounded_exp


@dataclass(frozen=True)
class RatioBounds:
    """How far the importance ratio may move before a loss uses it no further. Each limit reads its own.

    Attributes:
        epsilon, epsilon_high: how far r may fall below 1 and rise above it. None means: as far as it may fall.
        delta: largest r of a completion with a negative advantage. None is without.
        dual_clip: with a negative advantage a token costs at most this times -A. None is without.
        cispo: largest weight of a token, the bound itself and not what it exceeds 1 by.
        sapo: temperatures where A > 0 and elsewhere.
        vespo: (k, lambda) where A >= 0 and elsewhere.
    """

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    dual_clip: float | None = None
    cispo: float = 5.0
    sapo: tuple[float, float] = (1.0, 1.05)
    vespo: tuple[tuple[float, float], tuple[float, float]] = ((2.0, 3.0), (3.0, 2.0))

    @property
    def highest(self) -> float:
        """1 + epsilon_high, the largest r that a positive advantage pushes to."""
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


@dataclass(frozen=True)
class Terms:
    """What limits are computed from, for N completions of T tokens.

    Attributes:
        logprobs: N x T, l with gradient, 0 where the mask is false.
        log_ratio: N x T, l - l', not clamped.
        ratio: N x T, a row of ``RATIOS``.
        advantages: N x 1.
        mask: N x T bool.
    """

    logprobs: Tensor
    log_ratio: Tensor
    ratio: Tensor
    advantages: Tensor
    mask: Tensor


def token_ratio(log_ratio: Tensor, mask: Tensor, logprobs: Tensor) -> Tensor:
    """r = exp(l - l'), one for each token (GRPO, arXiv:2402.03300)."""
    return bounded_exp(log_ratio)


def sequence_ratio(log_ratio: Tensor, mask: Tensor, logprobs: Tensor) -> Tensor:
    """s = exp(mean over the completion's tokens of l - l'), the same for each of them (GSPO, arXiv:2507.18071)."""
    mean = (log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return bounded_exp(mean).expand_as(log_ratio)


def sequence_token_ratio(log_ratio: Tensor, mask: Tensor, logprobs: Tensor) -> Tensor:
    """sg[s] exp(l - sg[l]): the value of the sequence's ratio, the gradient of the token (GSPO-token, same paper)."""
    return sequence_ratio(log_ratio, mask, logprobs).detach() * torch.exp(logprobs - logprobs.detach())


def clip(terms: Terms, bounds: RatioBounds) -> tuple[Tensor, dict[str, Tensor]]:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) (arXiv:1707.06347; two epsilons: DAPO, arXiv:2503.14476).

    A token whose ratio is out of bounds, on the side to which its advantage pushes, has no policy gradient. With
    ``delta`` the first r is min(r, delta) (INTELLECT-2, arXiv:2505.07291). With ``dual_clip`` c the gain of a negative
    advantage is at least c A (arXiv:1912.09729).
    """
    low, high = 1 - bounds.epsilon, bounds.highest
    ratio, advantages = terms.ratio, terms.advantages
    free = ratio if bounds.delta is None else ratio.clamp(max=bounds.delta)
    gain = torch.minimum(free * advantages, ratio.clamp(low, high) * advantages)
    if bounds.dual_clip is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, bounds.dual_clip * advantages), gain)
    clipped = {"clipped_low": (ratio < low) & (advantages < 0), "clipped_high": (ratio > high) & (advantages > 0)}
    if bounds.delta is not None:
        clipped["clipped_delta"] = (ratio > bounds.delta) & (advantages < 0)
    if bounds.dual_clip is not None:
        clipped["clipped_dual"] = (ratio > bounds.dual_clip) & (advantages < 0)
    return gain, clipped


def cispo(terms: Terms, bounds: RatioBounds) -> tuple[Tensor, dict[str, Tensor]]:
    """sg[min(r, bound)] A l: each token keeps its gradient, its weight is bounded (MiniMax-M1, arXiv:2506.13585)."""
    weight = terms.ratio.detach().clamp(max=bounds.cispo)
    return weight * terms.advantages * terms.logprobs, {"clipped_high": terms.ratio > bounds.cispo}


def sapo(terms: Terms, bounds: RatioBounds) -> tuple[Tensor, dict[str, Tensor]]:
    """A 4/t sigmoid(t (r - 1)): a soft limit, t by the sign of A (SAPO, arXiv:2511.20347)."""
    temperature = _by_sign(terms.advantages > 0, bounds.sapo, terms.ratio)
    return terms.advantages * 4 / temperature * torch.sigmoid(temperature * (terms.ratio - 1)), {}


def vespo(terms: Terms, bounds: RatioBounds) -> tuple[Tensor, dict[str, Tensor]]:
    """sg[phi(w)] A l with phi(w) = exp(lam + k log w - lam w) (VESPO, arXiv:2602.10693).

    w = exp(sum over the completion's tokens of l - l'). The sum is limited to [log 1e-8, 20].
    """
    each = terms.log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * terms.mask
    log_w = each.sum(dim=1, keepdim=True).clamp(math.log(1e-8), MAX_LOG_RATIO)
    k, lam = (_by_sign(terms.advantages >= 0, pair, log_w) for pair in zip(*bounds.vespo, strict=True))
    return torch.exp(lam + k * log_w - lam * log_w.exp()) * terms.advantages * terms.logprobs, {}


def likelihood(terms: Terms, bounds: RatioBounds) -> tuple[Tensor, dict[str, Tensor]]:
    """A l: the likelihood of each completion, weighted by its advantage, without a ratio (REINFORCE)."""
    return terms.advantages * terms.logprobs, {}


RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
}
"""Each takes l - l', the mask and l (all N x T) and gives r (N x T)."""

LIMITS: dict[str, Callable[[Terms, RatioBounds], tuple[Tensor, dict[str, Tensor]]]] = {
    "clip": clip,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "none": likelihood,
}
"""Each gives what is maximised (N x T), and by name where it was limited (N x T bool)."""


def _by_sign(first: Tensor, pair: tuple[float, float], like: Tensor) -> Tensor:
    """The first of a pair where ``first`` says so, else the second, in the type of ``like``."""
    return torch.where(first, *(like.new_tensor(value) for value in pair))
