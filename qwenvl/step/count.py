"""One optimizer step as a value: the experience of each micro-batch, which of its tokens count, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.loss import LossInputs, StepCounts
from qwenvl.grpo.surrogates import entropy_floor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass
class TeacherScores:
    """What a teacher makes of the N completions of a micro-batch, N x T.

    Attributes:
        logprobs, top: under its own prompts. ``top`` is the number of its likeliest token.
        weights: from 0 to 1, how much a token is taught (``distill_on vision``). None: all the same.
        states: K x H hidden states of its K tokens, for the exact KL (``distill_kl full``). None without.
        advantages: added to those of the rewards. None: nothing.
    """

    logprobs: Tensor
    top: Tensor
    weights: Tensor | None = None
    states: Tensor | None = None
    advantages: Tensor | None = None


@dataclass
class Experience:
    """N completions of the P prompts of a micro-batch, with their rewards, advantages and log-probs.

    The collector samples and scores it, and compares its completions with their groups. ``Step.of`` adds what depends
    on the whole step, and the first iteration adds the log-probs of policy and reference. The batch is without pixels.

    A micro-batch without prompts has one stand-in completion of one token, which does not count. Its forward and
    backward are those that other processes wait for, and its share of the loss is 0.

    Attributes:
        advantages: N. Empty until completions are compared.
        loss_mask: N x T bool, the tokens that the loss takes. ``Step.of`` leaves out completions that were cut.
        dropped: groups that were sampled for it and replaced by others (``filter_groups``), without media.
        refills: prompts drawn to replace others of it, without media.
        policy_mask: N x T bool, the tokens that the policy term takes. None: those of ``loss_mask``.
        sampler_logprobs: N x T, of an engine with weights of its own.
        old_logprobs, ref_logprobs: N x T, of the policy before it was trained on these completions, and of the
            reference. None until the first iteration computes them, later iterations reuse them. With ``kl_in_reward``
            the collector has computed those of the reference.
        staleness: optimizer steps made since the weights that sampled the completions (``async_rollouts``).
        ratio_from_sampler: the old log-probs are those that the tokens were sampled with, also in the first iteration.
        penalties: N, the KL penalties taken off the rewards (``kl_in_reward``). None without.
        teacher: what a teacher makes of the completions (``teacher``). None without.
    """

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    rewards: RewardBatch
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    loss_mask: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    dropped: tuple[Experience, ...] = ()
    refills: tuple[PromptBatch, ...] = ()
    policy_mask: Tensor | None = None
    sampler_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    staleness: int = 0
    ratio_from_sampler: bool = False
    penalties: Tensor | None = None
    teacher: TeacherScores | None = None

    def __len__(self) -> int:
        """P."""
        return len(self.batch)

    @property
    def completions(self) -> int:
        """Completions that count, also those whose tokens do not."""
        return len(self.advantages) if len(self.batch) else 0

    def first_logprobs(self, policy: Likelihood) -> Tensor:
        """N x T, the old log-probs, given those of the policy before it is trained on the completions."""
        sampled = self.rollout.logprobs if self.ratio_from_sampler else None
        return policy.logprobs.detach() if sampled is None else sampled

    def loss_inputs(self, policy: Likelihood) -> LossInputs:
        """What the loss is computed from, given the policy's log-probs and entropies of the completions."""
        advantages, divergences, taught = self.advantages, policy.divergences, self.teacher
        if taught is not None and taught.advantages is not None:
            advantages = advantages[:, None] + taught.advantages
        if divergences is not None and taught is not None and taught.weights is not None:
            divergences = divergences * taught.weights
        return LossInputs(
            logprobs=policy.logprobs,
            old_logprobs=self.old_logprobs,
            ref_logprobs=self.ref_logprobs,
            advantages=advantages,
            mask=self.loss_mask,
            entropies=policy.entropies,
            sampler_logprobs=self.sampler_logprobs,
            policy_mask=self.policy_mask,
            divergences=divergences,
        )


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        experiences: one for each micro-batch of this process, in their order.
        counts: over all micro-batches and processes. Losses divide by them.
        iteration: how many steps were made on these experiences before, below ``num_iterations`` (arXiv:2402.03300,
            algorithm 1).
    """

    experiences: tuple[Experience, ...]
    counts: StepCounts
    iteration: int = 0

    @classmethod
    def of(
        cls,
        experiences: Sequence[Experience],
        args: GRPOConfig,
        clock: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> Step:
        """The first step on new experiences. All processes must call this together.

        Args:
            args: which tokens enter the loss, and how, which is noted in the experiences. Those of completions that
                were cut do not count with ``mask_truncated_completions`` (DAPO, arXiv:2503.14476, section 3.4); the
                policy term takes the share ``top_entropy_quantile`` of the counted ones, by the entropy that they were
                sampled with.
            clock: measures the wait for processes that are still sampling, within ``clock("time/wait_s")``.

        Raises:
            ValueError: the flags need entropies or log-probs that the engine did not give.
        """
        for each in experiences:
            if args.mask_truncated_completions:
                whole = [reason != "length" for reason in each.rollout.finish_reasons]
                each.loss_mask = each.loss_mask & torch.tensor(whole, device=each.loss_mask.device)[:, None]
            if args.engine_has_own_weights:
                each.sampler_logprobs = _sampler_logprobs(each)
            each.ratio_from_sampler = args.ratio_from_sampler and each.staleness > 0
        entropy = None
        if args.reads_sampled_entropies:
            entropies = _entropies_of_step(experiences)
            entropy = entropies.double().mean().item() if len(entropies) else None
            if args.top_entropy_quantile < 1:
                floor = entropy_floor(entropies, args.top_entropy_quantile)
                for each in experiences:
                    if each.rollout.entropies is not None:
                        each.policy_mask = each.loss_mask & (each.rollout.entropies >= floor)
        own = [(each.completions, int(each.loss_mask.sum())) for each in experiences]
        with clock("time/wait_s"):
            by_process = gather_object([own])
        completions, tokens = (sum(pair[k] for process in by_process for pair in process) for k in (0, 1))
        counts = StepCounts(completions, tokens, len(experiences) * len(by_process), entropy)
        return cls(tuple(experiences), counts)

    def next_iteration(self, batches: Sequence[PromptBatch]) -> Step:
        """The next step on the same experiences.

        Args:
            batches: as many empty batches, drawn in place of prompts.

        Raises:
            RuntimeError: they are not empty. The order of prompts and the steps have come apart.
        """
        if len(batches) != len(self.experiences) or any(len(batch) or batch.bad for batch in batches):
            raise RuntimeError(
                "new prompts were drawn in the midst of the steps on the same completions (num_iterations): an epoch "
                "must not be ended there"
            )
        return replace(self, iteration=self.iteration + 1)


def _sampler_logprobs(experience: Experience) -> Tensor | None:
    """The log-probs that an engine with weights of its own gave its tokens."""
    logprobs, mask = experience.rollout.logprobs, experience.loss_mask
    if mask.any() and (logprobs is None or not logprobs[mask].isfinite().all()):
        raise ValueError(
            "the engine gave "
            + ("no log-probs" if logprobs is None else "a token no finite log-prob")
            + ": what corrects for its weights (--importance_correction, off_policy_mask of --loss_type, "
            "--async_rollouts) needs them"
        )
    return logprobs


def _entropies_of_step(experiences: Sequence[Experience]) -> Tensor:
    """Entropies at sampling time of all tokens of ``loss_mask``, of all processes, in one row."""
    for each in experiences:
        if each.rollout.entropies is None and each.loss_mask.any():
            raise ValueError(
                "--top_entropy_quantile and --entropy_target need the entropies of the distributions that tokens are "
                "sampled from, and this engine does not give them: take one that does, or leave the flags out"
            )
    known = [(each.rollout.entropies, each.loss_mask) for each in experiences]
    own = [entropies[mask].cpu() for entropies, mask in known if entropies is not None]
    return torch.cat([values for process in gather_object([own]) for values in process] or [torch.zeros(0)])
