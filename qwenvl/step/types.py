"""The types of a training step. Each has one writer, the stage that is named beside it.

    PromptBatch -> EncodedPrompts -> Sampled -> Scored -> Experience -> TrainStep

Shapes: P prompts of a micro-batch, G completions per prompt, N = P * G, T completion tokens, K reward functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import TrainerState

from qwenvl.grpo.loss import LossInputs, StepCounts
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.step.meter import Meter
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch

Input = TypeVar("Input", contravariant=True)
Output = TypeVar("Output", covariant=True)


class Stage(Protocol[Input, Output]):
    """One part of a training step: from the micro-batches of this process to the same micro-batches, one type further.

    A stage gets all micro-batches of a step at once. All processes call it together.
    """

    def __call__(self, batches: Sequence[Input], step: StepContext) -> Sequence[Output]:
        """Returns one micro-batch for each of ``batches``, in the same order."""
        ...


@dataclass(frozen=True)
class StepContext:
    """The values that every stage may read besides its input. Written by the trainer, or by what samples without one.

    Attributes:
        policy: the model that samples, without DeepSpeed's wrapper.
        wrapped: the policy as DeepSpeed has wrapped it. Before that, the policy itself or None.
        version: optimizer steps that made the policy's weights. None: a script may have changed them in between.
        seed: of the run. Random draws are functions of it, of ``process``, and of epochs and ids of records.
        process: number of this process.
        meter: measures time, and takes the metrics of stages.
        trainer_state: what reward functions get. None without a trainer.
        purpose: what completions are drawn for, if not for the first time for the prompts of the step: another
            purpose has other draws.
    """

    policy: nn.Module
    wrapped: nn.Module | None
    version: int | None
    seed: int
    process: int
    meter: Meter
    trainer_state: TrainerState | None = None
    purpose: tuple[object, ...] = ()

    @property
    def finished_steps(self) -> int:
        """Optimizer steps of the run so far."""
        return 0 if self.trainer_state is None else self.trainer_state.global_step

    @property
    def epoch(self) -> int:
        """Epochs of the run that are over."""
        return 0 if self.trainer_state is None else int(self.trainer_state.epoch or 0)

    def drawing_for(self, *purpose: object) -> StepContext:
        """The same context for completions that are drawn for another purpose."""
        return replace(self, purpose=purpose)


@dataclass(frozen=True)
class EncodedPrompts:
    """P prompts as the model takes them. Written by ``Encode``.

    Attributes:
        inputs: on the device. Features of the vision tower stand in the place of pixels where it runs once per prompt.
    """

    batch: PromptBatch
    inputs: PromptInputs


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """P prompts with G completions each. Written by ``Sample`` or ``SampleAhead``.

    Attributes:
        prompts: the model inputs of ``batch``.
        staleness: optimizer steps made since the weights that sampled the completions (``async_rollouts``).
    """

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    staleness: int = 0

    def __len__(self) -> int:
        """P."""
        return len(self.batch)


@dataclass(frozen=True)
class KLPenalty:
    """The KL that ``kl_in_reward`` takes off the rewards. Written by ``KLInReward``.

    Attributes:
        amounts: N float64, beta x the KL of each completion.
        ref_logprobs: N x T, of the reference, which the loss reuses.
    """

    amounts: Tensor
    ref_logprobs: Tensor


@dataclass(frozen=True, kw_only=True)
class Scored(Sampled):
    """Completions with their rewards. Written by ``Score``; ``Refill`` makes one of the parts of several.

    The batch is without pixels, which nothing reads any more.

    Attributes:
        dropped: groups that were sampled for this micro-batch and replaced by others (``Refill``), without media.
        refills: prompts that were drawn to replace others of it (``Refill``), without media.
        penalty: the KL that is taken off the rewards (``KLInReward``). None: nothing is.
    """

    rewards: RewardBatch
    dropped: tuple[Scored, ...] = ()
    refills: tuple[PromptBatch, ...] = ()
    penalty: KLPenalty | None = None

    @property
    def compared_rewards(self) -> RewardBatch:
        """The rewards that completions are compared by within their group: those less the KL penalty."""
        if self.penalty is None:
            return self.rewards
        total = self.rewards.total
        return replace(self.rewards, total=(total.double() - self.penalty.amounts).to(total.dtype))


@dataclass(frozen=True, kw_only=True)
class Experience(Scored):
    """Completions with their advantages: what a micro-batch is trained on. Written by ``Compare``.

    A micro-batch without prompts has one stand-in completion of one token, which does not count. Its forward and
    backward are those that other processes wait for, and its share of the loss is 0.

    Attributes:
        advantages: N.
        loss_mask: N x T bool, the tokens that the loss takes.
        sampler_logprobs: N x T, of an engine with weights of its own. None: the policy's own weights sampled.
    """

    advantages: Tensor
    loss_mask: Tensor
    sampler_logprobs: Tensor | None = None

    @property
    def completions(self) -> int:
        """Completions that count, also those whose tokens do not."""
        return len(self.advantages) if len(self.batch) else 0


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores of the N completions of a micro-batch, N x T. Written by ``Teacher.scores``.

    Attributes:
        logprobs, top: under its own prompts. ``top`` is the number of its likeliest token.
        weights: from 0 to 1, how much a token is taught (``distill_on vision``). None: all the same.
        states: K x H hidden states of its K tokens, for the exact KL (``distill_kl full``). None without.
    """

    logprobs: Tensor
    top: Tensor
    weights: Tensor | None = None
    states: Tensor | None = None


@dataclass(frozen=True)
class FixedLogprobs:
    """The log-probs of a micro-batch that stay while the policy is trained on it, N x T. Written by ``Logprobs``.

    The first iteration computes them, and later iterations (``num_iterations``) reuse them.

    Attributes:
        old: of the policy before it is trained on the completions.
        old_is_sampler: ``old`` are the log-probs that older weights sampled the tokens with: the ratio is not 1.
        reference: None without a reference.
        teacher: None without a teacher. The only part that a later iteration may renew: a teacher can move.
        taught: the advantages that the teacher gives the tokens, added to those of the rewards. None: it gives none.
    """

    old: Tensor
    old_is_sampler: bool = False
    reference: Tensor | None = None
    teacher: TeacherScores | None = None
    taught: Tensor | None = None


@dataclass(frozen=True)
class TrainStep:
    """One optimizer step. Written by ``Count``.

    Attributes:
        experiences: one for each micro-batch of this process, in their order.
        counts: over all micro-batches and processes. Losses divide by them.
        entropy_floor: the policy term takes the tokens that were sampled at this entropy or a higher one, in nats
            (``top_entropy_quantile``). None: it takes all.
        iteration: steps that were made on these experiences before, below ``num_iterations`` (arXiv:2402.03300,
            algorithm 1).
        fixed: of each micro-batch, once its first iteration has computed them.
    """

    experiences: tuple[Experience, ...]
    counts: StepCounts
    entropy_floor: float | None = None
    iteration: int = 0
    fixed: tuple[FixedLogprobs | None, ...] = ()

    def with_fixed(self, number: int, fixed: FixedLogprobs) -> TrainStep:
        """The step with the fixed log-probs of the micro-batch ``number``."""
        known = list(self.fixed or [None] * len(self.experiences))
        known[number] = fixed
        return replace(self, fixed=tuple(known))

    def fixed_of(self, number: int) -> FixedLogprobs | None:
        """The fixed log-probs of the micro-batch ``number``. None: its completions are fresh."""
        return self.fixed[number] if self.fixed else None

    def next_iteration(self, batches: Sequence[PromptBatch]) -> TrainStep:
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

    def policy_mask(self, experience: Experience) -> Tensor | None:
        """N x T bool, the tokens that the policy term takes. None: those of ``loss_mask``."""
        entropies = experience.rollout.entropies
        if self.entropy_floor is None or entropies is None:
            return None
        return experience.loss_mask & (entropies >= self.entropy_floor)

    def loss_inputs(self, experience: Experience, policy: Likelihood, fixed: FixedLogprobs) -> LossInputs:
        """The inputs of the loss of a micro-batch.

        Args:
            policy: log-probs and entropies of the policy, with gradient.
        """
        advantages = experience.advantages  # N
        if fixed.taught is not None:
            advantages = advantages[:, None] + fixed.taught  # N x T
        divergences = policy.divergences
        if divergences is not None and fixed.teacher is not None and fixed.teacher.weights is not None:
            divergences = divergences * fixed.teacher.weights
        return LossInputs(
            logprobs=policy.logprobs,
            old_logprobs=fixed.old,
            ref_logprobs=fixed.reference,
            advantages=advantages,
            mask=experience.loss_mask,
            entropies=policy.entropies,
            sampler_logprobs=experience.sampler_logprobs,
            policy_mask=self.policy_mask(experience),
            divergences=divergences,
        )


def stand_in(device: torch.device) -> tuple[PromptInputs, RolloutBatch]:
    """A prompt and a completion of one token each, for a micro-batch without prompts. See ``Experience``."""
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    sampled = torch.ones_like(token, dtype=torch.bool)
    rollout = RolloutBatch(token, sampled, texts=[""], finish_reasons=["stop"], ended_by=[""])
    return PromptInputs.of_text(token), rollout
