"""The stage *compare*: each completion's reward relative to its group is its advantage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenvl.grpo.advantages import RewardScale, group_advantages, needs_whole_step
from qwenvl.step.groups import join_rewards
from qwenvl.step.processes import Processes
from qwenvl.step.types import Experience, Scored, StepContext, stand_in
from qwenvl.types import RewardBatch

Advantages = Callable[[RewardBatch, StepContext], Tensor]
"""From the rewards of all completions of this process to their N advantages."""


@dataclass(frozen=True)
class Compare:
    """Makes scored completions the experience that a step is trained on.

    Attributes:
        advantages: makes them from the rewards of all micro-batches.
        device: where the policy is.
        leaves_out_truncated: the tokens of completions that were cut at the limit do not count (DAPO,
            arXiv:2503.14476, section 3.4).
        corrects_for_sampler: the engine has weights of its own, and the loss reads the log-probs that it gave.
    """

    advantages: Advantages
    device: torch.device
    leaves_out_truncated: bool
    corrects_for_sampler: bool

    def __call__(self, batches: Sequence[Scored], step: StepContext) -> list[Experience]:
        """The micro-batches with their advantages, and with the masks of the tokens that count."""
        rewards = join_rewards([each.compared_rewards for each in batches])
        of_groups = self.advantages(rewards, step).to(self.device)
        sizes = [each.rewards.total.numel() for each in batches]
        experiences = []
        for scored, advantages in zip(batches, of_groups.split(sizes), strict=True):
            experiences.append(self._experience(scored, advantages))
        return experiences

    def _experience(self, scored: Scored, advantages: Tensor) -> Experience:
        prompts = scored.prompts
        rollout = scored.rollout
        loss_mask = rollout.completion_mask
        if not len(scored):
            prompts, rollout = stand_in(self.device)
            advantages = torch.zeros(1, device=self.device)
            loss_mask = torch.zeros_like(rollout.completion_mask)
        if self.leaves_out_truncated:
            ended = [reason != "length" for reason in rollout.finish_reasons]
            loss_mask = loss_mask & torch.tensor(ended, device=loss_mask.device)[:, None]
        if self.corrects_for_sampler:
            require_sampler_logprobs(rollout.logprobs, loss_mask)
        return Experience(
            batch=scored.batch,
            prompts=prompts,
            rollout=rollout,
            staleness=scored.staleness,
            rewards=scored.rewards,
            dropped=scored.dropped,
            refills=scored.refills,
            penalty=scored.penalty,
            advantages=advantages,
            loss_mask=loss_mask,
            sampler_logprobs=rollout.logprobs if self.corrects_for_sampler else None,
        )


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages by an estimator of ``qwenvl.grpo.advantages``.

    Attributes:
        group_size: completions per prompt.
        estimator, scale_rewards: see ``group_advantages``.
        processes: all of the run. Some estimators need the rewards of the whole step.
    """

    group_size: int
    estimator: str
    scale_rewards: RewardScale
    processes: Processes

    def __call__(self, rewards: RewardBatch, step: StepContext) -> Tensor:
        """N advantages of the completions of this process. Collective where the estimator needs the whole step."""
        own = value_table(rewards)
        if not needs_whole_step(self.estimator, self.scale_rewards):
            return self._of_table(own, rewards.weights)
        by_process = self.processes.gather(own)
        advantages = self._of_table(torch.cat(by_process), rewards.weights)
        # The rows of process 0 come first.
        start = sum(len(table) for table in by_process[: step.process])
        return advantages[start : start + len(own)]

    def _of_table(self, table: Tensor, weights: Sequence[float]) -> Tensor:
        return group_advantages(
            table[:, 0],
            self.group_size,
            self.scale_rewards,
            self.estimator,
            components=table[:, 1:],
            weights=weights,
        )


def no_advantages(rewards: RewardBatch, step: StepContext) -> Tensor:
    """N zeros: a teacher alone is learned from, and rewards are only logged."""
    return torch.zeros_like(rewards.total)


def value_table(rewards: RewardBatch) -> Tensor:
    """N x (1 + K): the total of each completion, then the value of each function. NaN: there is none."""
    table = torch.empty(len(rewards.total), 1 + len(rewards.components), dtype=rewards.total.dtype)
    table[:, 0] = rewards.total
    for column, values in enumerate(rewards.components, 1):
        known = [math.nan if value is None else value for value in values]
        table[:, column] = torch.tensor(known, dtype=table.dtype)
    return table


def require_sampler_logprobs(logprobs: Tensor | None, mask: Tensor) -> None:
    """Check the log-probs that an engine with weights of its own gave its tokens.

    Args:
        mask: N x T bool, the tokens that count.

    Raises:
        ValueError: there are none, or that of a token is not finite.
    """
    if mask.any() and (logprobs is None or not logprobs[mask].isfinite().all()):
        raise ValueError(
            "the engine gave "
            + ("no log-probs" if logprobs is None else "a token no finite log-prob")
            + ": what corrects for its weights (--importance_correction, off_policy_mask of --loss_type, "
            "--async_rollouts) needs them"
        )
