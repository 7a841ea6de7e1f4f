"""One optimizer step as a value: the experience of each of its micro-batches, and its counts over all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from accelerate.utils import gather_object
from torch import Tensor

from qwenvl.grpo.loss import LossInputs
from qwenvl.grpo.surrogates import StepCounts
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass
class Experience:
    """What the policy made of a micro-batch of P prompts: N completions, their rewards and advantages.

    A micro-batch without prompts has one stand-in completion of one token, which does not count. Its forward and
    backward are those that other processes wait for, and its share of the loss is 0.

    Attributes:
        advantages: N.
        counted: N bool, whether a completion counts in the loss.
        old_logprobs, ref_logprobs: N x T, of the policy before it was trained on these completions, and of the
            reference. They are None until the first step on the experience, which leaves them for the further ones.
            With ``kl_in_reward`` the collector has given those of the reference.
        penalties: N, what the reward of each completion was lowered by, in ``kl_in_reward``. None without.
    """

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    rewards: RewardBatch
    advantages: Tensor
    counted: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    penalties: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """N x T bool, the completion tokens that count in the loss."""
        return self.rollout.completion_mask & self.counted[:, None]

    def loss_inputs(self, policy: Likelihood) -> LossInputs:
        """What the loss is computed from, given what the policy makes of the completions."""
        return LossInputs(
            policy.logprobs, self.old_logprobs, self.ref_logprobs, self.advantages, self.mask, policy.entropies
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
    def of(cls, places: Sequence[PromptBatch], experiences: Sequence[Experience]) -> Step:
        """The first step on new experiences. All processes must call this together."""
        own = [(int(each.counted.sum()), int(each.mask.sum())) for each in experiences]
        by_process = gather_object([own])
        completions, tokens = (sum(pair[k] for process in by_process for pair in process) for k in (0, 1))
        counts = StepCounts(completions, tokens, micro_batches=len(places) * len(by_process))
        return cls(tuple(places), tuple(experiences), counts)

    def experience_of(self, place: PromptBatch) -> Experience:
        """The experience of a micro-batch that was drawn for this step.

        Raises:
            RuntimeError: it was drawn for another one.
        """
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
