"""One optimizer step as a value: the experience of each micro-batch, which of its tokens count, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from accelerate.utils import gather_object
from torch import Tensor

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.loss import LossInputs
from qwenvl.grpo.surrogates import StepCounts
from qwenvl.grpo.weighting import entropy_floor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.model.waiting_media import let_go
from qwenvl.train.collect.scored import Scored
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass(frozen=True)
class TokenRules:
    """How the tokens of a step enter its loss.

    Attributes:
        mask_truncated: those of completions that were cut do not count (DAPO, arXiv:2503.14476, section 3.4).
        top_entropy: share of the counted tokens that the policy term takes, by the entropy that they were sampled with.
        reads_entropies: whether these entropies are needed.
        corrects_sampler: whether the log-probs of the engine are not those of the policy.
        ratio_from_sampler: whether the importance ratio of completions that were sampled ahead is that of the policy to
            the weights that sampled them.
    """

    mask_truncated: bool = False
    top_entropy: float = 1.0
    reads_entropies: bool = False
    corrects_sampler: bool = False
    ratio_from_sampler: bool = False

    @classmethod
    def of(cls, args: GRPOConfig) -> TokenRules:
        """What the flags ask for."""
        return cls(
            mask_truncated=args.mask_truncated_completions,
            top_entropy=args.top_entropy_quantile,
            reads_entropies=args.reads_sampled_entropies,
            corrects_sampler=args.engine_has_own_weights,
            ratio_from_sampler=args.ratio_from_sampler,
        )


@dataclass
class Experience:
    """What the policy made of a micro-batch of P prompts: N completions, their rewards and advantages.

    A micro-batch without prompts has one stand-in completion of one token, which does not count. Its forward and
    backward are those that other processes wait for, and its share of the loss is 0.

    Attributes:
        advantages: N.
        counted: N bool, whether a completion counts in the loss.
        kept: N bool, whether its tokens do. None: they do where the completion does.
        policy_mask: N x T bool, the tokens that the policy term takes. None: all that count.
        sampler_logprobs: N x T, of an engine with weights of its own.
        old_logprobs, ref_logprobs: N x T, of the policy before it was trained on these completions, and of the
            reference. They are None until the first step on the experience, which leaves them for the further ones.
            With ``kl_in_reward`` the collector has given those of the reference.
        staleness: optimizer steps that were made since the weights that sampled the completions (``async_rollouts``).
        ratio_from_sampler: the old log-probs are those that the tokens were sampled with, also in the first step.
        penalties: N, what the reward of each completion was lowered by, in ``kl_in_reward``. None without.
        dropped: groups that were sampled for it and replaced by others (``filter_groups``), without media.
        refills: what was drawn in the place of prompts of its micro-batch, without media.
    """

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    rewards: RewardBatch
    advantages: Tensor
    counted: Tensor
    kept: Tensor | None = None
    policy_mask: Tensor | None = None
    sampler_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    staleness: int = 0
    ratio_from_sampler: bool = False
    penalties: Tensor | None = None
    dropped: tuple[Scored, ...] = ()
    refills: tuple[PromptBatch, ...] = ()

    @property
    def mask(self) -> Tensor:
        """N x T bool, the completion tokens that count in the loss."""
        kept = self.counted if self.kept is None else self.kept
        return self.rollout.completion_mask & kept[:, None]

    def first_logprobs(self, policy: Likelihood) -> Tensor:
        """N x T, the old log-probs, given what the policy makes of the completions before it is trained on them."""
        sampled = self.rollout.logprobs if self.ratio_from_sampler else None
        return policy.logprobs.detach() if sampled is None else sampled

    def loss_inputs(self, policy: Likelihood) -> LossInputs:
        """What the loss is computed from, given what the policy makes of the completions."""
        return LossInputs(
            logprobs=policy.logprobs,
            old_logprobs=self.old_logprobs,
            ref_logprobs=self.ref_logprobs,
            advantages=self.advantages,
            mask=self.mask,
            entropies=policy.entropies,
            sampler_logprobs=self.sampler_logprobs,
            policy_mask=self.policy_mask,
        )


class MicroBatch(Protocol):
    """A micro-batch that a loss was computed of, as a run tells of it where that is not finite."""

    @property
    def loss(self) -> float:
        """Its share of the loss of the step. It may be NaN or infinite."""

    @property
    def metrics_that_are_not_finite(self) -> list[str]:
        """Each with its value: ``kl nan``."""

    def report(self) -> dict[str, Any]:
        """What is needed to compute its loss again, as JSON can hold it."""


@dataclass(frozen=True)
class TrainedOn:
    """A micro-batch of completions that a loss was computed of.

    Attributes:
        iteration: of its step.
        loss: its share of the loss of the step. It may be NaN or infinite.
        metrics: of the loss, by name.
    """

    experience: Experience
    iteration: int
    loss: float
    metrics: dict[str, float]

    @property
    def metrics_that_are_not_finite(self) -> list[str]:
        """Each with its value: ``kl nan``."""
        return [f"{name} {value}" for name, value in self.metrics.items() if not math.isfinite(value)]

    def report(self) -> dict[str, Any]:
        """Its loss, and its prompts with their completions, rewards and advantages, as JSON can hold them."""
        batch, rollout = self.experience.batch, self.experience.rollout
        size = max(1, len(rollout.texts) // max(1, len(batch)))
        groups = [
            {
                "where": record.where,
                "id": record.id,
                "epoch": epoch,
                "completions": [
                    {
                        "ids": rollout.completion_ids[n][rollout.completion_mask[n]].tolist(),
                        "finish_reason": rollout.finish_reasons[n],
                        "reward": self.experience.rewards.totals()[n],
                        "advantage": self.experience.advantages[n].item(),
                    }
                    for n in range(p * size, (p + 1) * size)
                ],
            }
            for p, (record, epoch) in enumerate(zip(batch.records, batch.epochs, strict=True))
        ]
        return {"loss": self.loss, "metrics": self.metrics, "iteration": self.iteration, "prompts": groups}


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        places: its micro-batches in this process, as they were drawn.
        experiences: one for each place.
        counts: over all micro-batches and processes. Losses divide by them.
        iteration: how many steps were made on these experiences before, below ``num_iterations`` (arXiv:2402.03300,
            algorithm 1).
    """

    places: tuple[PromptBatch, ...]
    experiences: tuple[Experience, ...]
    counts: StepCounts
    iteration: int = 0

    @classmethod
    def of(
        cls,
        places: Sequence[PromptBatch],
        experiences: Sequence[Experience],
        rules: TokenRules | None = None,
        clock: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> Step:
        """The first step on new experiences. All processes must call this together.

        Args:
            rules: how tokens enter the loss, which is noted in the experiences. None: all of them, and alike.
            clock: measures what this process waits for those that are still sampling, within ``clock("time/wait_s")``.

        Raises:
            ValueError: the rules need entropies or log-probs that the engine did not give.
        """
        rules = TokenRules() if rules is None else rules
        for each in experiences:
            if rules.mask_truncated:
                whole = [reason != "length" for reason in each.rollout.finish_reasons]
                each.kept = each.counted & torch.tensor(whole, device=each.counted.device)
            if rules.corrects_sampler:
                each.sampler_logprobs = _given_by_engine(each)
            each.ratio_from_sampler = rules.ratio_from_sampler and each.staleness > 0
        entropy = _compared_entropies(experiences, rules.top_entropy) if rules.reads_entropies else None
        own = [(int(each.counted.sum()), int(each.mask.sum())) for each in experiences]
        with clock("time/wait_s"):
            by_process = gather_object([own])
        completions, tokens = (sum(pair[k] for process in by_process for pair in process) for k in (0, 1))
        counts = StepCounts(completions, tokens, len(places) * len(by_process), entropy)
        return cls(tuple(places), tuple(experiences), counts)

    def experience_of(self, place: PromptBatch) -> Experience:
        """The experience of a micro-batch that was drawn for this step. The media of the others take no memory.

        Raises:
            RuntimeError: it was drawn for another one.
        """
        let_go(*(each.prompts for each in self.experiences))
        for known, experience in zip(self.places, self.experiences, strict=True):
            if known is place:
                return experience
        raise RuntimeError("this micro-batch was not drawn for this optimizer step")

    def again(self, places: Sequence[PromptBatch]) -> Step:
        """The next step on the same experiences.

        Args:
            places: as many empty batches, drawn in the place of prompts.

        Raises:
            RuntimeError: if they are not. The order of prompts and the steps have come apart.
        """
        if len(places) != len(self.places) or any(len(batch) or batch.bad for batch in places):
            raise RuntimeError(
                "new prompts were drawn in the midst of the steps on the same completions (num_iterations): an epoch "
                "must not be ended there"
            )
        return replace(self, places=tuple(places), iteration=self.iteration + 1)


def _given_by_engine(experience: Experience) -> Tensor | None:
    """The log-probs that an engine with weights of its own gave its tokens."""
    logprobs, mask = experience.rollout.logprobs, experience.mask
    if mask.any() and (logprobs is None or not logprobs[mask].isfinite().all()):
        raise ValueError(
            "the engine gave "
            + ("no log-probs" if logprobs is None else "a token no finite log-prob")
            + ": what corrects for its weights (--importance_correction, --off_policy_mask_threshold, "
            "--async_rollouts) needs them"
        )
    return logprobs


def _compared_entropies(experiences: Sequence[Experience], share: float) -> float | None:
    """The mean entropy of the counted tokens of all processes. Notes the ``share`` of them with the highest.

    Returns:
        None where no token counts.
    """
    for each in experiences:
        if each.rollout.entropies is None and each.mask.any():
            raise ValueError(
                "--top_entropy_quantile and --entropy_target need the entropies of the distributions that tokens are "
                "sampled from, and this engine does not give them: take one that does, or leave the flags out"
            )
    known = [(each, each.rollout.entropies) for each in experiences if each.rollout.entropies is not None]
    own = [entropies[each.mask].cpu() for each, entropies in known]
    every = torch.cat([values for process in gather_object([own]) for values in process] or [torch.zeros(0)])
    if share < 1:
        floor = entropy_floor(every, share)
        for each, entropies in known:
            each.policy_mask = each.mask & (entropies >= floor)
    return every.double().mean().item() if len(every) else None
