"""The stage *KL in the reward*: the reference's log-probs, and what they take off the rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from qwenvl.grpo.surrogates import completion_kl
from qwenvl.model.loading import unwrap
from qwenvl.model.reference import Reference
from qwenvl.step.likelihood import CompletionLikelihood
from qwenvl.step.types import KLPenalty, Scored, StepContext


@dataclass(frozen=True)
class KLInReward:
    """Computes what ``kl_in_reward`` takes off: beta x the KL of a completion (REINFORCE++, arXiv:2501.03262).

    The KL of a completion is the sum over its tokens of policy - reference log-prob. The policy's log-probs are those
    that it sampled the completion with.

    Raises:
        ValueError: the engine gives no log-probs.
    """

    reference: Reference
    likelihood: CompletionLikelihood
    beta: float

    def __call__(self, batches: Sequence[Scored], step: StepContext) -> list[Scored]:
        """The micro-batches with their penalties."""
        with step.meter.time("time/logp_s"), self.reference.model() as reference:
            # Without its wrappers: with an adapter, DeepSpeed adds to them a hook that waits for all processes.
            bare = unwrap(reference)
            return [replace(each, penalty=self._penalty(bare, each)) for each in batches]

    def _penalty(self, reference: torch.nn.Module, scored: Scored) -> KLPenalty:
        rollout = scored.rollout
        if not len(scored):  # its stand-in has one token, see Experience
            no_amounts = torch.zeros(0, dtype=torch.float64)
            return KLPenalty(no_amounts, ref_logprobs=torch.zeros(1, 1, device=rollout.completion_ids.device))
        if rollout.logprobs is None:
            raise ValueError("kl_in_reward needs the log-probs of sampling, and this engine gives none: leave it out")
        ref_logprobs = self.likelihood.of_rollout(reference, scored.prompts, rollout).logprobs
        kl = completion_kl(rollout.logprobs, ref_logprobs, rollout.completion_mask).cpu()
        return KLPenalty(self.beta * kl, ref_logprobs)
