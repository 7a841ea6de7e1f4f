"""The small functions that objectives are made of: importance ratios, limits on them, estimates of the KL, weights.

Notation: l and l' are the log-probs of a token under the policy and under the policy before its first update on the
completion, l_sampler under the engine that sampled it, r is the importance ratio, A the advantage of the completion,
|o| the number of its tokens, m the mask, sg[x] is x without gradient. Log ratios are clamped to [-20, 20] before they
are exponentiated. Weights are constants: no gradient runs through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: far outside any healthy run, far inside float32


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), with the log ratio clamped to [-20, 20]."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32, or in float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()


@dataclass(frozen=True)
class RatioBounds:
    """The bounds of the importance ratio, beyond which a loss uses it no further. Each limit reads its own.

    Attributes:
        epsilon: how far r may fall below 1.
        epsilon_high: how far r may rise above 1. None: as far as it may fall.
        delta: largest r of a completion with a negative advantage. None: no such bound.
        dual_clip: with a negative advantage a token costs at most this times -A. None: no such bound.
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
class LossInputs:
    """The inputs of a policy loss: N completions of one micro-batch.

    Attributes:
        logprobs: N x T with gradient, of the policy, at the sampling temperature.
        old_logprobs: N x T, of the policy before its first update on these completions. Before that update they are
            ``logprobs`` themselves, detached: the importance ratio is 1 then, and its gradient that of the log-prob.
        ref_logprobs: N x T, of the reference. None where there is none.
        advantages: N, or N x T.
        mask: N x T bool, true for the tokens that count, a completion's end token among them. Anything may stand in the
            log-probs where it is false.
        entropies: N x T, of the policy's distribution of each token, in nats. None where they are not known.
        sampler_logprobs: N x T, of the engine that sampled the tokens. None where it does not give them.
        policy_mask: N x T bool, the tokens that the policy term takes. None for all that count.
        divergences: N x T with gradient, KL(policy || teacher) of each token. None without.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    mask: Tensor
    entropies: Tensor | None = None
    sampler_logprobs: Tensor | None = None
    policy_mask: Tensor | None = None
    divergences: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """N x T, l - l', not clamped."""
        return self.logprobs - self.old_logprobs


def token_ratio(inputs: LossInputs) -> Tensor:
    """r = exp(l - l'), one for each token (GRPO, arXiv:2402.03300)."""
    return bounded_exp(inputs.log_ratio)


def sequence_ratio(inputs: LossInputs) -> Tensor:
    """s = exp(mean over the completion's tokens of l - l'), the same for each of them (GSPO, arXiv:2507.18071)."""
    return bounded_exp(_mean(inputs.log_ratio, inputs.mask)).expand_as(inputs.logprobs)


def sequence_token_ratio(inputs: LossInputs) -> Tensor:
    """sg[s] exp(l - sg[l]): the value of the sequence's ratio, the gradient of the token (GSPO-token, same paper)."""
    return sequence_ratio(inputs).detach() * torch.exp(inputs.logprobs - inputs.logprobs.detach())


Limited = tuple[Tensor, dict[str, Tensor]]


def clip(inputs: LossInputs, ratio: Tensor, bounds: RatioBounds) -> Limited:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) (arXiv:1707.06347; two epsilons: DAPO, arXiv:2503.14476).

    A token whose ratio is out of bounds, on the side to which its advantage pushes, has no policy gradient. With
    ``delta`` the first r is min(r, delta) (INTELLECT-2, arXiv:2505.07291). With ``dual_clip`` c the gain of a negative
    advantage is at least c A (arXiv:1912.09729).
    """
    low = 1 - bounds.epsilon
    high = bounds.highest
    advantages = inputs.advantages
    free = ratio if bounds.delta is None else ratio.clamp(max=bounds.delta)
    gain = torch.minimum(free * advantages, ratio.clamp(low, high) * advantages)
    if bounds.dual_clip is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, bounds.dual_clip * advantages), gain)
    clipped = {
        "clipped_low": (ratio < low) & (advantages < 0),
        "clipped_high": (ratio > high) & (advantages > 0),
    }
    if bounds.delta is not None:
        clipped["clipped_delta"] = (ratio > bounds.delta) & (advantages < 0)
    if bounds.dual_clip is not None:
        clipped["clipped_dual"] = (ratio > bounds.dual_clip) & (advantages < 0)
    return gain, clipped


def cispo(inputs: LossInputs, ratio: Tensor, bounds: RatioBounds) -> Limited:
    """sg[min(r, bound)] A l: each token keeps its gradient, its weight is bounded (MiniMax-M1, arXiv:2506.13585)."""
    weight = ratio.detach().clamp(max=bounds.cispo)
    return weight * inputs.advantages * inputs.logprobs, {"clipped_high": ratio > bounds.cispo}


def sapo(inputs: LossInputs, ratio: Tensor, bounds: RatioBounds) -> Limited:
    """A 4/t sigmoid(t (r - 1)): a soft limit, t by the sign of A (SAPO, arXiv:2511.20347)."""
    temperature = _by_sign(inputs.advantages > 0, bounds.sapo, ratio)
    return inputs.advantages * 4 / temperature * torch.sigmoid(temperature * (ratio - 1)), {}


def vespo(inputs: LossInputs, ratio: Tensor, bounds: RatioBounds) -> Limited:
    """sg[phi(w)] A l with phi(w) = exp(lam + k log w - lam w) (VESPO, arXiv:2602.10693).

    w = exp(sum over the completion's tokens of l - l'). The sum is limited to [log 1e-8, 20].
    """
    each = inputs.log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * inputs.mask
    log_w = each.sum(dim=1, keepdim=True).clamp(math.log(1e-8), MAX_LOG_RATIO)
    (k_above, lam_above), (k_below, lam_below) = bounds.vespo
    rewarded = inputs.advantages >= 0
    k = _by_sign(rewarded, (k_above, k_below), log_w)
    lam = _by_sign(rewarded, (lam_above, lam_below), log_w)
    phi = torch.exp(lam + k * log_w - lam * log_w.exp())
    return phi * inputs.advantages * inputs.logprobs, {}


def likelihood(inputs: LossInputs, ratio: Tensor, bounds: RatioBounds) -> Limited:
    """A l: the likelihood of each completion, weighted by its advantage, without a ratio (REINFORCE)."""
    return inputs.advantages * inputs.logprobs, {}


RATIOS: dict[str, Callable[[LossInputs], Tensor]] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
}
"""Each gives r, N x T."""

LIMITS: dict[str, Callable[[LossInputs, Tensor, RatioBounds], Limited]] = {
    "clip": clip,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "none": likelihood,
}
"""Each gives what is maximised (N x T), and by name where it was limited (N x T bool)."""


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

    Example:
        >>> round(kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[-2.0]])).item(), 4)  # exp(-1) + 1 - 1
        0.3679
    """
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
    ours = logprobs.double().masked_fill(~mask, 0.0)
    theirs = ref_logprobs.double().masked_fill(~mask, 0.0)
    total = kl_estimate(ours, theirs, "k1").sum(dim=1)
    broken = total.isnan().nonzero()
    if len(broken):
        raise ValueError(f"completion {int(broken[0])}: a token has a log-prob that is no number")
    return total


@dataclass(frozen=True)
class Weighting:
    """The weight of each token in the policy term, N x T. Averages divide as they would without it.

    Attributes:
        correction: a row of ``CORRECTIONS``, or ``none``.
        lowest, highest: bounds of its weights. A ``lowest`` of None is no bound.
        off_policy_threshold: what ``off_policy`` finds at this threshold weighs nothing. None: all weigh.

    Example:
        >>> weights, _ = Weighting(off_policy_threshold=0.5)(inputs)
    """

    correction: str = "none"
    lowest: float | None = None
    highest: float = 3.0
    off_policy_threshold: float | None = None

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights, and by name what to log the mean of, all N x T. A sampler of None is the policy l' itself."""
        old = inputs.old_logprobs
        sampler = inputs.sampler_logprobs
        weights = torch.ones_like(old)
        logged = {}
        if self.correction != "none" and sampler is not None:
            correct = CORRECTIONS[self.correction]
            weights, ratio = correct(old - sampler, inputs.mask, self.lowest or 0.0, self.highest)
            logged["sampler/ratio_mean"] = ratio
            logged["sampler/limited_frac"] = weights != ratio
        if self.off_policy_threshold is not None:
            when_sampled = old if sampler is None else sampler
            fallen = when_sampled - inputs.logprobs.detach()
            dropped = off_policy(fallen, inputs.advantages, inputs.mask, self.off_policy_threshold)
            weights = weights.masked_fill(dropped, 0.0)
            logged["off_policy/dropped_frac"] = dropped
        return weights, logged


def off_policy(fallen: Tensor, advantages: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """True for tokens to drop: A < 0, and mean(l_sampler - l) > threshold over their completion's tokens.

    So the paper masks tokens (DeepSeek-V3.2, arXiv:2512.02556). Of advantages of completions, N x 1, all tokens of a
    completion are dropped, or none. Those of a teacher, N x T, differ between tokens.

    Args:
        fallen: N x T, l_sampler - l.

    Returns:
        N x T bool.
    """
    return ((advantages < 0) & (_mean(fallen, mask) > threshold)).expand_as(fallen)


def token_truncate(log_ratio: Tensor, mask: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """min(max(w, lowest), highest), w = exp(l' - l_sampler) for each token."""
    ratio = bounded_exp(log_ratio)
    return ratio.clamp(lowest, highest), ratio


def token_mask(log_ratio: Tensor, mask: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """w where it lies from lowest to highest, else 0, w = exp(l' - l_sampler) for each token."""
    ratio = bounded_exp(log_ratio)
    return ratio.masked_fill((ratio < lowest) | (ratio > highest), 0.0), ratio


def sequence_truncate(log_ratio: Tensor, mask: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """min(max(w, lowest), highest), w = exp(sum over the completion of l' - l_sampler)."""
    return token_truncate(_summed(log_ratio, mask), mask, lowest, highest)


def sequence_mask(log_ratio: Tensor, mask: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """w where it lies from lowest to highest, else 0, w = exp(sum over the completion of l' - l_sampler)."""
    return token_mask(_summed(log_ratio, mask), mask, lowest, highest)


CORRECTIONS: dict[str, Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]] = {
    "token_truncate": token_truncate,
    "token_mask": token_mask,
    "sequence_truncate": sequence_truncate,
    "sequence_mask": sequence_mask,
}
"""Each takes l' - l_sampler, the mask and two bounds, and gives the weights and w before its bounds (N x T each)."""


def entropy_floor(entropies: Tensor, share: float) -> float:
    """The smallest entropy among the ``share`` of tokens with the highest (arXiv:2506.01939, equation 5).

    It is the value at place (n - 1)(1 - share) of the n sorted ones, rounded up: tokens of equal entropy are taken
    together.

    Args:
        entropies: those of all tokens of a step, in any order.

    Example:
        >>> entropy_floor(torch.tensor([0.1, 0.4, 0.2, 0.3, 0.5]), share=0.5)  # place 2 of 0 to 4
        0.30000001192092896
    """
    if not len(entropies):
        return 0.0
    place = math.ceil((len(entropies) - 1) * (1 - share) - 1e-9)  # 1 - share is rarely exact
    return entropies.sort().values[place].item()


def _summed(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """N x T, the sum over the tokens of each completion, the same for each of them."""
    return (log_ratio * mask).sum(dim=1, keepdim=True).expand_as(log_ratio)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """N x 1, the mean over the tokens of each completion."""
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _by_sign(first: Tensor, pair: tuple[float, float], like: Tensor) -> Tensor:
    """The first of a pair where ``first`` says so, else the second, in the type of ``like``."""
    return torch.where(first, like.new_tensor(pair[0]), like.new_tensor(pair[1]))
