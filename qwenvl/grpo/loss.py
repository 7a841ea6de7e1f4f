"""The policy loss, from log-probabilities alone: a table of objectives, each of which names rows of three tables.

An objective answers three questions. ``RATIOS``: how far has the policy moved on a token since it was sampled?
``LIMITS``: how much of that may the loss use? ``AVERAGES``: how do tokens become one number?
A new objective is a row of ``LOSSES`` and at most one small function in ``surrogates``. To be a flag's choice, it needs
its row among the ``LOSS_ROWS`` of ``options``, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qwenvl.grpo.options import CorrectionArguments, ObjectiveOptions
from qwenvl.grpo.surrogates import LIMITS, RATIOS, LossInputs, RatioBounds, Weighting, at_least_float32, kl_estimate
from qwenvl.option import row_of


@dataclass
class LossOutput:
    """A scalar loss with gradient and flat metrics, all plain floats.

    The loss is the share of its optimizer step that a micro-batch has. Those of all micro-batches of all processes sum
    to the loss of the step.
    """

    loss: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True)
class StepCounts:
    """The counts that the losses of an optimizer step divide by, over all its micro-batches and processes.

    Attributes:
        completions, tokens: numbers of completions and of completion tokens that count in the loss.
        micro_batches: micro-batches with prompts. Empty ones, which fill up a short step, do not count.
        passes: all micro-batches, each with a forward and a backward pass.
        entropy: mean over these tokens of the entropy at sampling time, in nats. None where no option reads it.
    """

    completions: int
    tokens: int
    micro_batches: int = 1
    passes: int = 1
    entropy: float | None = None


def over_completions(per_token: Tensor, mask: Tensor, counts: StepCounts, max_length: int) -> Tensor:
    """The mean over each completion's |o| tokens, then over completions (arXiv:2402.03300, equation 3).

    A completion without tokens contributes 0 and counts as a completion.
    """
    return (per_token.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / max(counts.completions, 1)


def over_max_length(per_token: Tensor, mask: Tensor, counts: StepCounts, max_length: int) -> Tensor:
    """The sum over tokens / (completions x max_length): length is no advantage (Dr. GRPO, arXiv:2503.20783)."""
    return per_token.sum() / (max(counts.completions, 1) * max_length)


def over_tokens(per_token: Tensor, mask: Tensor, counts: StepCounts, max_length: int) -> Tensor:
    """The mean over all tokens of the step (DAPO, arXiv:2503.14476)."""
    return per_token.sum() / max(counts.tokens, 1)


def over_micro_batch_tokens(per_token: Tensor, mask: Tensor, counts: StepCounts, max_length: int) -> Tensor:
    """The mean over the tokens of each micro-batch, then over micro-batches. It depends on how a step is split."""
    return per_token.sum() / mask.sum().clamp(min=1) / max(counts.micro_batches, 1)


def over_completion_sums(per_token: Tensor, mask: Tensor, counts: StepCounts, max_length: int) -> Tensor:
    """The sum over each completion's tokens, then the mean over completions (LUSPO)."""
    return per_token.sum() / max(counts.completions, 1)


AVERAGES: dict[str, Callable[[Tensor, Tensor, StepCounts, int], Tensor]] = {
    "completions": over_completions,
    "max_length": over_max_length,
    "tokens": over_tokens,
    "micro_batch_tokens": over_micro_batch_tokens,
    "completion_sums": over_completion_sums,
}
"""Each takes N x T values that are 0 where the mask is false, the mask, the counts of the step, and the most
tokens that a completion may have."""


@dataclass(frozen=True)
class Objective:
    """A loss: ``objective(inputs, counts)`` is what one micro-batch adds to the loss of its optimizer step.

    Per token it is -alpha * weight * limit(r, A) + beta * KL, averaged over the whole step (arXiv:2402.03300, equation
    3). Taken off it is the entropy bonus: ``entropy_coef`` times the mean entropy of the step's tokens, the same under
    each average, so that the weight means the same. Added is alpha * distill * KL(policy || teacher), averaged as the
    policy term: in expectation its gradient is that of advantages distill * (teacher - policy log-prob). The losses of
    all micro-batches of all processes sum to the loss of the step, however the step is split. The average
    ``micro_batch_tokens`` is the exception.

    Attributes:
        ratio, limit, average: rows of ``RATIOS``, ``LIMITS`` and ``AVERAGES``.
        bounds: what the limit reads.
        alpha, beta: weights of the policy term and of the KL term, by default those of ``--grpo_alpha``, which says
            why, and ``--grpo_beta``.
        kl_estimator: a row of ``KL_ESTIMATORS``.
        kl_unbiased: multiply the KL of a token by its ratio, so that its gradient stays unbiased for completions of an
            older policy (DeepSeek-V3.2, arXiv:2512.02556).
        weighting: the weight of each token in the policy term.
        entropy_coef: weight of the entropy bonus. 0: no bonus.
        entropy_coef_moves: ``entropy_target`` changes the weight, so it is logged in every step, also where it is 0.
        distill: weight of the exact KL to a teacher (``distill_kl full``).
        max_completion_length: ``generation_max_length``, which the average ``max_length`` divides by.
        about: what is special in it and when to take it, for the docs.

    Example:
        >>> objective = replace(LOSSES["dr_grpo"], beta=0.0, max_completion_length=512)
        >>> output = objective(inputs, StepCounts(completions=8, tokens=900))
    """

    ratio: str
    limit: str
    average: str
    bounds: RatioBounds = field(default_factory=RatioBounds)
    alpha: float = 0.5
    beta: float = 0.1
    kl_estimator: str = "k3"
    kl_unbiased: bool = False
    weighting: Weighting = field(default_factory=Weighting)
    entropy_coef: float = 0.0
    entropy_coef_moves: bool = False
    distill: float = 0.0
    max_completion_length: int | None = None
    about: str = ""

    def __call__(self, inputs: LossInputs, counts: StepCounts) -> LossOutput:
        """The share of the step's loss that these N completions have.

        Returns:
            The scalar loss, and metrics. ``loss/policy``, ``loss/kl``, ``loss/distill`` and ``loss/entropy`` are its
            parts and sum to it.
            Shares and means over the tokens of this micro-batch: ``ratio/mean``, ``ratio/clipped_low_frac`` and the
            like (tokens that the limit leaves without policy gradient, or bounds), what the weighting logs, with a
            reference ``kl``, and with entropies ``entropy``.
            The loss is NaN where a token that counts has a log-prob that is not finite.

        Raises:
            ValueError: shapes disagree, or what is needed is missing.
        """
        _check(inputs, self)
        mask = inputs.mask
        # A masked position may hold -inf, and 0 * inf is NaN forwards and backwards: replace first, compute afterwards.
        inputs = _counted(inputs)
        metrics: dict[str, float] = {}
        by_token: dict[str, Tensor] = {}  # N x T values, whose means over the tokens are logged

        # Policy term: -alpha * weight * limit(r, A).
        ratio = RATIOS[self.ratio](inputs)
        gain, limited = LIMITS[self.limit](inputs, ratio, self.bounds)
        weights, weighed = self.weighting(inputs)
        by_token["ratio/mean"] = ratio.detach()
        for name, where in limited.items():
            by_token[f"ratio/{name}_frac"] = where
        by_token |= weighed
        if inputs.policy_mask is not None:
            weights = weights * inputs.policy_mask
            by_token["top_entropy/frac"] = inputs.policy_mask
        policy_loss = self._average(-self.alpha * weights * gain, mask, counts)
        metrics["loss/policy"] = policy_loss.item()
        loss = policy_loss

        # KL term: + beta * KL(policy || reference). With a beta of 0 the KL is only logged.
        if inputs.ref_logprobs is not None:
            kl = kl_estimate(inputs.logprobs, inputs.ref_logprobs, self.kl_estimator)
            kl_loss = self.beta * self._average(kl * ratio if self.kl_unbiased else kl, mask, counts)
            metrics["loss/kl"] = kl_loss.item()
            by_token["kl"] = kl.detach()
            if self.beta:
                loss = loss + kl_loss

        # Teacher: + alpha * distill * KL(policy || teacher).
        if inputs.divergences is not None and self.distill:
            distilled = self.alpha * self.distill * self._average(inputs.divergences, mask, counts)
            metrics["loss/distill"] = distilled.item()
            loss = loss + distilled

        # Entropy bonus: - entropy_coef * the mean entropy of the step's tokens, also where others have another average.
        if inputs.entropies is not None:
            by_token["entropy"] = inputs.entropies.detach()
            if self.entropy_coef or self.entropy_coef_moves:
                mean_entropy = (inputs.entropies * mask).sum() / max(counts.tokens, 1)
                bonus = -self.entropy_coef * mean_entropy
                metrics["loss/entropy"] = bonus.item()
                metrics["entropy_coef"] = self.entropy_coef
                if self.entropy_coef:
                    loss = loss + bonus

        tokens = max(int(mask.sum()), 1)
        for name, values in by_token.items():
            metrics[name] = (values * mask).sum().item() / tokens
        return LossOutput(loss, metrics)

    def _average(self, per_token: Tensor, mask: Tensor, counts: StepCounts) -> Tensor:
        max_length = self.max_completion_length or 1  # ``_check`` refuses an average that reads it where there is none
        return AVERAGES[self.average](per_token * mask, mask, counts, max_length)


LOSSES: dict[str, Objective] = {
    "grpo": Objective(
        "token", "clip", "completions", about="The loss of the paper. Each completion weighs the same, long or short."
    ),
    "bnpo": Objective(
        "token",
        "clip",
        "micro_batch_tokens",
        about="As dapo within a micro-batch, so it depends on how a step is split. To compare with other libraries.",
    ),
    "dapo": Objective(
        "token",
        "clip",
        "tokens",
        RatioBounds(epsilon_high=0.28),
        about="Each token weighs the same, and rare tokens may rise further. For long answers.",
    ),
    "dr_grpo": Objective(
        "token", "clip", "max_length", about="As dapo with a constant length. Take it with scale_rewards none."
    ),
    "gspo": Objective(
        "sequence",
        "clip",
        "completions",
        RatioBounds(epsilon=3e-4, epsilon_high=4e-4),
        about="One ratio for a completion: steadier for several steps on it, and for mixtures of experts.",
    ),
    "luspo": Objective(
        "sequence",
        "clip",
        "completion_sums",
        RatioBounds(epsilon=3e-4, epsilon_high=4e-4),
        about="gspo without its preference for short completions. A completion weighs as much as it has tokens.",
    ),
    "cispo": Objective(
        "token",
        "cispo",
        "tokens",
        about="Clips the weight of a token and not its gradient. Useful with num_iterations above 1.",
    ),
    "sapo": Objective("token", "sapo", "completions", about="A soft limit in the place of the clip."),
    "vespo": Objective(
        "token", "vespo", "tokens", about="A soft limit on the ratio of the whole completion. For old completions."
    ),
    "reward_weighted": Objective(
        "token", "none", "completions", about="The likelihood weighted by the advantage: no ratio, nothing is limited."
    ),
}
"""The objectives that ``loss_type`` names, with the settings of their papers."""


def objective_of(options: ObjectiveOptions, max_completion_length: int) -> Objective:
    """The row of ``LOSSES`` that the options name, with their weights, and their bounds in the place of the paper's.

    Args:
        max_completion_length: most tokens that a completion may have.

    Raises:
        ValueError: a bound that another one leaves without effect.

    Example:
        >>> objective_of(ObjectiveOptions(loss_type="dapo"), 512).bounds.highest
        1.28
    """
    loss = row_of(options, "loss_type")
    kl = row_of(options, "kl_estimator")
    correction = row_of(options, "importance_correction")
    assert loss is not None and kl is not None
    chosen = LOSSES[loss.name]
    arguments = vars(loss.arguments)
    given: dict[str, Any] = {
        "epsilon": options.grpo_epsilon,
        "epsilon_high": options.grpo_epsilon_high,
        "delta": arguments.get("delta"),
        "dual_clip": arguments.get("dual_clip"),
        "cispo": arguments.get("bound"),
    }
    were_set = {name: value for name, value in given.items() if value is not None}
    bounds = replace(chosen.bounds, **were_set)
    if bounds.delta is not None and bounds.delta <= bounds.highest:
        raise ValueError(
            f"--loss_type: delta must be above 1 + --grpo_epsilon_high, {bounds.highest:g}, got {bounds.delta:g}: the "
            "ratio is limited there already"
        )
    of_weights = correction.arguments if correction and correction.name != "none" else CorrectionArguments()
    return replace(
        chosen,
        ratio=arguments.get("ratio") or chosen.ratio,
        bounds=bounds,
        alpha=options.grpo_alpha,
        beta=0.0 if options.kl_in_reward else options.grpo_beta,
        kl_estimator=kl.name,
        kl_unbiased=kl.arguments.unbiased,
        weighting=Weighting(
            correction=options.correction,
            lowest=of_weights.min,
            highest=of_weights.max,
            off_policy_threshold=arguments["off_policy_mask"],
        ),
        entropy_coef=options.entropy_coef,
        entropy_coef_moves=options.entropy_target is not None,
        max_completion_length=max_completion_length,
    )


def _check(inputs: LossInputs, objective: Objective) -> None:
    shape = tuple(inputs.logprobs.shape)
    if len(shape) != 2 or tuple(inputs.advantages.shape) not in (shape[:1], shape):
        raise ValueError(f"expected logprobs N x T and advantages N, got {shape} and {tuple(inputs.advantages.shape)}")
    if inputs.mask.dtype != torch.bool:
        raise ValueError(f"mask: expected bool, got {inputs.mask.dtype}")
    for name in ("mask", "policy_mask", *_BY_TOKEN):
        values = getattr(inputs, name)
        if values is not None and tuple(values.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(values.shape)}")
    if objective.beta and inputs.ref_logprobs is None:
        raise _lacks("beta", objective.beta, "ref_logprobs")
    if objective.distill and inputs.divergences is None:
        raise _lacks("distill", objective.distill, "divergences")
    if objective.entropy_coef and inputs.entropies is None:
        raise _lacks("entropy_coef", objective.entropy_coef, "entropies")
    correction = objective.weighting.correction
    # Where no token counts there may have been no prompt, and no engine that was asked.
    if correction != "none" and inputs.sampler_logprobs is None and inputs.mask.any():
        raise _lacks("importance_correction", correction, "sampler_logprobs")
    if objective.average == "max_length" and not objective.max_completion_length:
        raise ValueError("dr_grpo needs max_completion_length, at least 1 token")


def _lacks(setting: str, value: float | str, name: str) -> ValueError:
    return ValueError(f"{setting} is {value} and needs {name}, of which there are none: change {setting}")


_BY_TOKEN = ("logprobs", "old_logprobs", "ref_logprobs", "entropies", "sampler_logprobs", "divergences")


def _counted(inputs: LossInputs) -> LossInputs:
    """The inputs with 0 where the mask is false, NaN in the place of any other infinity, and advantages N x 1 or N x T.

    Limits could hide a log-prob of minus infinity. NaN they can't: it comes out as the loss.
    """

    def counted(values: Tensor) -> Tensor:
        masked = at_least_float32(values).masked_fill(~inputs.mask, 0.0)
        return masked.masked_fill(~torch.isfinite(masked), torch.nan)

    changed = {}
    for name in _BY_TOKEN:
        values = getattr(inputs, name)
        if values is not None:
            changed[name] = counted(values)
    changed["old_logprobs"] = changed["old_logprobs"].detach()
    advantages = inputs.advantages.detach().to(changed["logprobs"].dtype)
    changed["advantages"] = advantages.unsqueeze(1) if advantages.dim() == 1 else counted(advantages)
    return replace(inputs, **changed)
