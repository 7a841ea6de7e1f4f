"""The log-probs that a micro-batch is trained with: the policy's, and those that stay while it is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import EntropyUse, Extras, Likelihood
from qwenvl.model.reference import Reference
from qwenvl.step.likelihood import CompletionLikelihood
from qwenvl.step.parity import ParityCheck
from qwenvl.step.probe import Probe
from qwenvl.step.sample import SampleNow
from qwenvl.step.teacher import Teacher
from qwenvl.step.types import Experience, FixedLogprobs, StepContext, TeacherScores


@dataclass(frozen=True)
class Logprobs:
    """The forwards of a micro-batch in training: teacher, policy, reference.

    Attributes:
        likelihood: log-probs of completions under policy and reference.
        reference: of the KL term of the loss. None: the loss has none.
        teacher: None without a teacher.
        parity: compares the policy's log-probs with those of the sampler.
        sample: the stage that samples, whose engine is compared.
        ratio_from_sampler: the ratio of completions that were sampled ahead reaches back to the weights that sampled
            them, in place of a correction.
    """

    likelihood: CompletionLikelihood
    reference: Reference | None
    teacher: Teacher | None
    parity: ParityCheck
    sample: SampleNow
    ratio_from_sampler: bool

    def __call__(
        self,
        model: nn.Module,
        experience: Experience,
        known: FixedLogprobs | None,
        entropy: EntropyUse,
        step: StepContext,
    ) -> tuple[Likelihood, FixedLogprobs]:
        """The policy's log-probs with gradient, and the fixed ones, which are computed once.

        Args:
            model: the policy as the Trainer calls it.
            known: the fixed ones of an earlier iteration. None: the completions are fresh.

        Raises:
            ParityError: sampler and trainer disagree about the same tokens (``check_parity``).
        """
        scores = None
        extras = None
        if self.teacher is not None:
            scores = self.teacher.scores(experience, known, step)
            extras = self.teacher.extras(model, scores, fresh=known is None)
        with step.meter.time("time/logp_s"):
            policy = self.of_policy(model, experience, entropy, extras)
            if known is None:
                fixed = self._fixed(experience, policy, scores, step)
            else:
                fixed = replace(known, teacher=scores)
        return policy, fixed

    def of_policy(
        self,
        model: nn.Module,
        experience: Experience,
        entropy: EntropyUse = "none",
        extras: Extras | None = None,
    ) -> Likelihood:
        """N x T log-probs and entropies of a model on the policy's prompts, with gradient in grad mode."""
        return self.likelihood.of_rollout(
            model, experience.prompts, experience.rollout, entropy=entropy, extras=extras
        )

    def of_reference(self, experience: Experience) -> Tensor | None:
        """N x T log-probs of the reference. None without a KL term. With ``kl_in_reward`` they are known already."""
        if experience.penalty is not None:
            return experience.penalty.ref_logprobs.to(experience.loss_mask.device)
        if self.reference is None:
            return None
        with self.reference.model() as reference:
            return self.of_policy(reference, experience).logprobs

    def _fixed(
        self, experience: Experience, policy: Likelihood, scores: TeacherScores | None, step: StepContext
    ) -> FixedLogprobs:
        """The fixed log-probs of fresh completions, given the policy before it is trained on them."""
        rollout = experience.rollout
        before_training = policy.logprobs.detach()
        old = before_training
        from_sampler = False
        if self.ratio_from_sampler and experience.staleness > 0 and rollout.logprobs is not None:
            old = rollout.logprobs
            from_sampler = True
        reference = self.of_reference(experience)
        exact = partial(self.likelihood.exact_logprobs, step.policy, experience.prompts, rollout)
        self.parity.check(step.finished_steps, experience, before_training, exact)
        if step.finished_steps == 0:
            self.parity.probe(experience.prompts, partial(self._probe, step.policy, experience.prompts))
        taught = None
        if self.teacher is not None and scores is not None:
            taught = self.teacher.advantages(experience, scores, policy, old, step.meter)
        return FixedLogprobs(
            old=old, old_is_sampler=from_sampler, reference=reference, teacher=scores, taught=taught
        )

    def _probe(self, policy: nn.Module, prompts: PromptInputs, rows: list[int]) -> Probe | None:
        """A few tokens behind some prompts of a micro-batch, see ``CompletionLikelihood.probe``."""
        return self.likelihood.probe(policy, prompts.select(rows), self.sample.engine, self.sample.params)
