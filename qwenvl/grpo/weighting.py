"""Per-token weights of the policy loss: importance correction for the sampler, off-policy masks.

Notation: l and l' are the log-probs of a token under the policy and under the policy before its first update on the
completion, l_sampler under the engine that sampled it, A the advantage of the completion. All weights are constants:
no gradient runs through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenvl.grpo.kl import bounded_exp


@dataclass(frozen=True)
class Weighting:
    """The weight of each token in the policy term, N x T. Averages divide as they would without it.

    Attributes:
        correction: a row of ``CORRECTIONS``, or ``none``.
        lowest, highest: bounds of its weights. A ``lowest`` of None is no bound.
        off_policy_threshold: completions that ``off_policy`` finds at this threshold weigh nothing. None: all weigh.

    Example:
        >>> weights, _ = Weighting(off_policy_threshold=0.5)(logprobs, old, None, advantages, mask)
    """

    correction: str = "none"
    lowest: float | None = None
    highest: float = 3.0
    off_policy_threshold: float | None = None

    def __call__(
        self, logprobs: Tensor, old: Tensor, sampler: Tensor | None, advantages: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights, and by name what to log the mean of, all N x T.

        Args:
            logprobs, old, sampler: N x T of l, l' and l_sampler, finite where the mask is true. A sampler of None is
                the policy l' itself.
            advantages: N x 1.
            mask: N x T bool.
        """
        logprobs = logprobs.detach()
        weights, logged = torch.ones_like(logprobs), {}
        if self.correction != "none" and sampler is not None:
            weights, ratio = CORRECTIONS[self.correction](old - sampler, mask, self.lowest or 0.0, self.highest)
            logged["sampler/ratio_mean"], logged["sampler/limited_frac"] = ratio, weights != ratio
        if self.off_policy_threshold is not None:
            sampled = old if sampler is None else sampler
            dropped = off_policy(sampled - logprobs, advantages, mask, self.off_policy_threshold)
            weights, logged["off_policy/dropped_frac"] = weights.masked_fill(dropped, 0.0), dropped
        return weights, logged


def off_policy(fallen: Tensor, advantages: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Whether to drop a completion: A < 0 and mean(l_sampler - l) > threshold (DeepSeek-V3.2, arXiv:2512.02556).

    Args:
        fallen: N x T, l_sampler - l.

    Returns:
        N x T bool, the same for all tokens of a completion.
    """
    mean = (fallen * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return ((advantages < 0) & (mean > threshold)).expand_as(fallen)


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
    return (log_ratio * mask).sum(dim=1, keepdim=True).expand_as(log_ratio)
