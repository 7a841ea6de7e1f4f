"""``kl_in_reward``: the KL of each completion, taken off its reward before advantages are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.kl import completion_kl
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.reference import Reference
from qwenvl.train.fast_paths import PathLikelihood
from qwenvl.types import RewardBatch, RolloutBatch


class Penalty(NamedTuple):
    """What the reference makes of N completions.

    Attributes:
        ref_logprobs: N x T.
        amounts: N float64, beta x the KL of each completion. Its reward is lowered by that much.
    """

    ref_logprobs: Tensor
    amounts: Tensor


@dataclass(frozen=True)
class KlPenalty:
    """Takes beta x KL off rewards (REINFORCE++, arXiv:2501.03262).

    The KL of a completion is the sum over its tokens of policy - reference log-prob. The policy's log-probs are those
    that it sampled the completion with.

    Attributes:
        reference: the model that the policy is held near.
        likelihood: computes its log-probs.
        temperature: of sampling.
        beta: ``grpo_beta``.
    """

    reference: Reference
    likelihood: PathLikelihood
    temperature: float
    beta: float

    @classmethod
    def of(cls, args: GRPOConfig, reference: Reference | None, likelihood: PathLikelihood) -> KlPenalty | None:
        """What the flags ask for. None without ``kl_in_reward``."""
        if not args.kl_in_reward or reference is None:
            return None
        return cls(reference, likelihood, args.generation_temperature, args.grpo_beta)

    def penalties(self, prompts: Sequence[PromptInputs], rollouts: Sequence[RolloutBatch]) -> list[Penalty]:
        """One for each micro-batch. The reference is asked once for each completion.

        Raises:
            ValueError: the engine gives no log-probs, or one that is no number.
        """
        with self.reference.model() as reference:
            # Without its wrappers: with an adapter, DeepSpeed hangs onto them a hook that waits for all processes.
            bare = unwrap(reference)
            return [self._penalty(bare, *pair) for pair in zip(prompts, rollouts, strict=True)]

    def _penalty(self, reference: torch.nn.Module, prompts: PromptInputs, rollout: RolloutBatch) -> Penalty:
        ids, mask = rollout.completion_ids, rollout.completion_mask
        if not len(ids):  # a micro-batch without prompts, whose stand-in has one token
            return Penalty(torch.zeros(1, 1, device=ids.device), torch.zeros(0, dtype=torch.float64))
        if rollout.logprobs is None:
            raise ValueError("--kl_in_reward needs the log-probs of sampling, and this engine gives none: leave it out")
        ref_logprobs = self.likelihood(reference, prompts, ids, mask, self.temperature).logprobs
        amounts = self.beta * completion_kl(rollout.logprobs, ref_logprobs, mask)
        return Penalty(ref_logprobs, amounts.cpu())


def lowered(rewards: RewardBatch, penalties: Sequence[Penalty | None]) -> RewardBatch:
    """The rewards of all micro-batches with each total lowered by its penalty. What the functions gave stays."""
    amounts = [each.amounts for each in penalties if each is not None]
    if not amounts:
        return rewards
    return replace(rewards, total=(rewards.total.double() - torch.cat(amounts)).to(rewards.total.dtype))
