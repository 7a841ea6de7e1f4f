"""The options of the objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option, was_set

LossType = Literal["grpo", "bnpo", "dapo", "dr_grpo", "gspo", "luspo", "cispo", "sapo", "vespo", "reward_weighted"]
"""The rows of ``LOSSES`` in ``qwenvl.grpo.loss``, which needs torch. A test holds the two to each other."""

AdvantageEstimator = Literal["grpo", "rloo", "reinforce_plus_plus", "gdpo"]
"""The rows of ``ESTIMATORS`` in ``qwenvl.grpo.advantages``, held to it likewise."""

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""``none``, and the rows of ``CORRECTIONS`` in ``qwenvl.grpo.weighting``."""

CLIPPED_LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "gspo", "luspo")
CLIP_OPTIONS = ("grpo_epsilon", "grpo_epsilon_high", "grpo_delta", "dual_clip")
"""What the limit ``clip`` reads, and the losses that have it."""


@dataclass
class TermOptions(Options):
    """Which tokens the loss takes, with what weight, and the entropy bonus: what any objective can have besides."""

    mask_truncated_completions: bool = option(
        False,
        "Tokens of completions that were cut at --generation_max_length do not count in the loss. The completions "
        "still count where a loss divides by their number.",
    )
    top_entropy_quantile: float = option(
        1.0,
        "The policy term takes only this share of the step's tokens, those that were sampled from the distributions "
        "of highest entropy, above 0 to 1; 0.2 is usual, 1 takes all. What a loss divides by stays.",
        above=0,
        most=1,
    )
    entropy_coef: float = option(
        0.0,
        "Weight of the entropy bonus: the mean entropy of the counted tokens, in nats, times this is taken off the "
        "loss, at least 0; 0.001 to 0.01 is usual. More: completions stay different for longer.",
        least=0,
    )
    entropy_target: float | None = option(
        None,
        "Entropy in nats, above 0. Where the sampled tokens have at most this on average, the weight of the bonus "
        "grows by --entropy_coef_step, and where they have more it shrinks and the bonus is left out. --entropy_coef "
        "is where the weight begins.",
        unset="the weight stays",
        above=0,
    )
    entropy_coef_step: float = option(
        0.005,
        "How far the weight of the entropy bonus moves each time completions are sampled, above 0. Needs "
        "--entropy_target.",
        above=0,
    )
    off_policy_mask_threshold: float | None = option(
        None,
        "Leave completions with a negative advantage out of the policy term where the policy has moved away from them: "
        "where their mean log-prob per token has fallen by more than this many nats since they were sampled, above 0. "
        "Needs --num_iterations above 1.",
        unset="none is left out",
        above=0,
    )
    importance_correction: Correction | None = option(
        None,
        "Weigh the policy term by how much likelier a token is to the policy than to the engine that sampled it, where "
        "the engine has weights of its own. token: each token by itself. sequence: the product over a completion. "
        "truncate: weights are held within the bounds. mask: what is out of bounds is left out.",
        unset="none, with --async_rollouts token_truncate",
    )
    importance_correction_max: float = option(
        3.0, "Largest weight of --importance_correction, above 0. Less: less noise, more bias.", above=0
    )
    importance_correction_min: float | None = option(
        None, "Smallest weight of --importance_correction, above 0.", unset="no such bound", above=0
    )

    @property
    def reads_sampled_entropies(self) -> bool:
        """Whether the engine has to give the entropies of the distributions that it samples from."""
        return self.top_entropy_quantile < 1 or self.entropy_target is not None

    @property
    def correction(self) -> Correction:
        """The importance correction that the objective has."""
        return self.importance_correction or "none"

    def problems(self) -> Iterator[str]:
        if self.entropy_target is not None and not self.entropy_coef:
            yield (
                "--entropy_target has no effect without --entropy_coef, the weight of the bonus that it moves: add it "
                "(0.001, say) or leave both out"
            )
        if self.entropy_target is None and was_set(self, "entropy_coef_step"):
            yield "--entropy_coef_step has no effect without --entropy_target: the weight stays as it is"
        if self.correction == "none":
            for name in ("importance_correction_max", "importance_correction_min"):
                if was_set(self, name):
                    yield f"--{name} has no effect without --importance_correction, whose weights it bounds"
        elif (self.importance_correction_min or 0) >= self.importance_correction_max:
            yield (
                f"--importance_correction_min must be below --importance_correction_max, "
                f"{self.importance_correction_max:g}, got {self.importance_correction_min:g}"
            )


@dataclass
class ObjectiveOptions(TermOptions):
    """Advantages and loss."""

    grpo_alpha: float = option(0.5, "Weight of the policy-gradient term, above 0.", above=0)
    grpo_beta: float = option(
        0.1,
        "Weight of the KL term that holds the policy near the reference, at least 0. 0: no reference is kept.",
        least=0,
    )
    num_iterations: int = option(
        1,
        "Optimizer steps on the same completions, at least 1; from the second on the importance ratio is clipped. An "
        "epoch has that many times the steps. More: less sampling for as many steps, by a policy further behind.",
        least=1,
    )
    grpo_epsilon: float | None = option(
        None,
        "How far the importance ratio may fall below 1 before an advantage pushes it no further, above 0 and below 1. "
        "Less: steps on the same completions change less. Needs --num_iterations above 1.",
        unset="that of the loss, 0.2, for gspo and luspo 0.0003",
        above=0,
        below=1,
    )
    grpo_epsilon_high: float | None = option(
        None,
        "How far the ratio may rise above 1, above 0. More than --grpo_epsilon: rare tokens may become likely sooner. "
        "Needs --num_iterations above 1.",
        unset="that of the loss, 0.28 for dapo, 0.0004 for gspo and luspo, else that of --grpo_epsilon",
        above=0,
    )
    grpo_delta: float | None = option(
        None,
        "Largest ratio that weighs a token of a completion with a negative advantage, above 1 + --grpo_epsilon_high "
        "(two-sided clipping). Less: such tokens are pushed down less. Needs --num_iterations above 1.",
        unset="no such bound",
        above=1,
    )
    dual_clip: float | None = option(
        None,
        "Most that a token of a completion with a negative advantage costs, in its advantages, above 1; 3 is usual. "
        "Where it acts the token has no gradient. Needs --num_iterations above 1.",
        unset="no such bound",
        above=1,
    )
    cispo_bound: float | None = option(
        None,
        "Largest weight of a token under --loss_type cispo, above 0: the bound itself, not what it exceeds 1 by. Needs "
        "--num_iterations above 1.",
        unset="5",
        above=0,
    )
    importance_sampling_level: Literal["token", "sequence", "sequence_token"] | None = option(
        None,
        "What has an importance ratio. token: each token. sequence: the completion, the geometric mean of its tokens'. "
        "sequence_token: that value, with the gradient of each token. Needs --num_iterations above 1.",
        unset="that of the loss: sequence for gspo and luspo, else token",
    )
    advantage_estimator: AdvantageEstimator = option(
        "grpo",
        "How a completion's reward becomes its advantage. grpo: minus its group's mean, divided as --scale_rewards "
        "says. rloo: minus the mean of the others of its group. reinforce_plus_plus: minus its group's mean, divided "
        "by the spread of these over the step. gdpo: each reward function is brought to mean 0 and spread 1 in each "
        "group, then weighed and summed, then divided by the spread over the step.",
    )
    scale_rewards: Literal["group", "batch", "none"] = option(
        "group",
        "What a reward minus its group's mean is divided by. group: the group's standard deviation. batch: that of "
        "all rewards of the step. none: nothing.",
    )
    loss_type: LossType = option(
        "grpo",
        "The objective, by the name of its paper; docs/training.md has the formulas. Each brings the settings of its "
        "paper, which flags override. Objectives differ in what has an importance ratio, in how it is limited and in "
        "how tokens are averaged. grpo: over each completion's tokens, then over completions. dr_grpo: their sum "
        "divided by completions x --generation_max_length. dapo: over all tokens of the step.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = option(
        "k3",
        "Estimator of the KL divergence from d = reference - policy log-prob. k1: -d. k2: d^2 / 2. "
        "k3: exp(d) - d - 1, never negative and of low variance.",
    )
    kl_in_reward: bool = option(
        False,
        "Take the KL off the reward in the place of a term of the loss (REINFORCE++): before advantages are made, each "
        "completion's reward is lowered by --grpo_beta x the sum over its tokens of policy - reference log-prob.",
    )
    kl_unbiased: bool = option(
        False,
        "Multiply the KL of a token by its importance ratio, so that its gradient stays unbiased for completions of an "
        "older policy. Needs --num_iterations above 1.",
    )

    @property
    def ratio_is_one(self) -> bool:
        """Whether the importance ratio is 1 by definition, since each step has completions of the policy itself."""
        return self.num_iterations == 1

    def problems(self) -> Iterator[str]:
        for name in (*CLIP_OPTIONS, "cispo_bound", "importance_sampling_level", "kl_unbiased"):
            if was_set(self, name) and (reason := self._without_effect(name)):
                yield f"--{name} has no effect with {reason}; leave one of the two out"
        if self.advantage_estimator != "grpo" and was_set(self, "scale_rewards"):
            brings = "has no scale" if self.advantage_estimator == "rloo" else "brings its own scale"
            yield f"--scale_rewards has no effect with --advantage_estimator {self.advantage_estimator}, which {brings}"
        if self.kl_in_reward and self.advantage_estimator == "gdpo":
            yield (
                "--kl_in_reward cannot be used with --advantage_estimator gdpo, which normalises each reward function "
                "by itself: the KL is none of them"
            )
        for name in ("kl_estimator", "kl_unbiased"):
            if self.kl_in_reward and was_set(self, name):
                yield f"--{name} has no effect with --kl_in_reward: the loss has no KL term then, and the reward has k1"
        if self.loss_type == "vespo" and self.importance_correction not in (None, "none"):
            yield "--importance_correction has no effect with --loss_type vespo: it weighs whole completions by itself"
        if self.grpo_beta == 0:
            for name in ("kl_estimator", "kl_unbiased", "kl_in_reward"):
                if was_set(self, name):
                    yield f"--{name} has no effect with --grpo_beta 0: there is no KL term"

    def _without_effect(self, name: str) -> str | None:
        if self.ratio_is_one:
            return "--num_iterations 1: the ratio is 1 then"
        if name in CLIP_OPTIONS and self.loss_type not in CLIPPED_LOSSES:
            return f"--loss_type {self.loss_type}: it does not clip the ratio"
        if name == "cispo_bound" and self.loss_type != "cispo":
            return f"--loss_type {self.loss_type}: only cispo reads it"
        if name == "importance_sampling_level" and self.loss_type == "vespo":
            return "--loss_type vespo: its ratio is that of the whole completion"
        if name == "importance_sampling_level" and self.loss_type == "reward_weighted" and not self.kl_unbiased:
            return "--loss_type reward_weighted: it has no ratio"
        return None


@dataclass
class FilterOptions(Options):
    """Dynamic sampling: groups that teach nothing are replaced."""

    filter_groups: bool = option(
        False,
        "Replace groups whose rewards are all equal, which have no gradient, by groups of other prompts, drawn at "
        "random, until the step is full (dynamic sampling, arXiv:2503.14476). Costs sampling; prompts are read by the "
        "training process itself.",
    )
    filter_by: str | None = option(
        None,
        "Reward whose values are all equal in a group that is replaced: the name of a reward function, or total. A "
        "group to which that function does not apply goes by its total.",
        unset="total",
    )
    max_resample_rounds: int = option(
        3,
        "Most rounds of replacing in an optimizer step, at least 1. A round samples as many groups as are still to be "
        "replaced, on all processes at once.",
        least=1,
    )
    on_unfilled_step: Literal["train", "stop"] = option(
        "train",
        "What to do where groups with equal rewards are left after the last round. train: train on the step with them; "
        "their advantages are 0. stop: end the run.",
    )

    def problems(self) -> Iterator[str]:
        for name in ("filter_by", "max_resample_rounds", "on_unfilled_step"):
            if not self.filter_groups and was_set(self, name):
                yield f"--{name} has no effect without --filter_groups"
