"""The options of the objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qwenvl.grpo.entropy import COEFFICIENT_STEP
from qwenvl.option import (
    NoArguments,
    Options,
    RowValue,
    name_of_row,
    nearest,
    no_effect,
    not_with,
    option,
    parse_row,
    row_of,
    set_among,
    was_set,
)

CLIPPED_LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "gspo", "luspo")
"""The losses with the limit ``clip``, which reads the two epsilons."""
SEQUENCE_LOSSES = ("gspo", "luspo")
"""The losses whose ratio is that of a completion, where no argument says otherwise."""

_NEEDS_OLDER = "Needs --num_iterations above 1 or (--async_rollouts above 0 and --importance_correction none)."
_NEEDS_CLIP = f"Needs --loss_type {' or '.join(CLIPPED_LOSSES)}."

_OFF_POLICY_MASK: Any = option(
    None,
    "Leave completions with a negative advantage out of the policy term where the policy has moved away from them: "
    "where their mean log-prob per token has fallen by more than this many nats since they were sampled, above 0. "
    "Where a teacher gives each token its advantage, those tokens are left out whose advantage is negative.",
    unset="none is left out",
    above=0,
)


@dataclass
class MaskArguments(Options):
    """The argument of every loss."""

    off_policy_mask: float | None = _OFF_POLICY_MASK


@dataclass
class RatioArguments(Options):
    """The arguments of a loss with an importance ratio."""

    off_policy_mask: float | None = _OFF_POLICY_MASK
    ratio: Literal["token", "sequence", "sequence_token"] | None = option(
        None,
        "What has an importance ratio. token: each token. sequence: the completion, the geometric mean of its "
        f"tokens'. sequence_token: that value, with the gradient of each token. {_NEEDS_OLDER}",
        unset=f"that of the loss: sequence for {' and '.join(SEQUENCE_LOSSES)}, else token",
    )


@dataclass
class ClipArguments(RatioArguments):
    """The arguments of a loss that clips the ratio."""

    delta: float | None = option(
        None,
        "Upper bound on the ratio of tokens with a negative advantage, above 1 + --grpo_epsilon_high (two-sided "
        f"clipping). Less: such tokens are pushed down less. {_NEEDS_OLDER}",
        unset="no such bound",
        above=1,
    )
    dual_clip: float | None = option(
        None,
        "Dual clip: upper bound on the loss of a token with a negative advantage, as a multiple of that advantage, "
        f"above 1; 3 is usual. A token at the bound has no gradient. {_NEEDS_OLDER}",
        unset="no such bound",
        above=1,
    )

    def problems(self) -> Iterator[str]:
        if self.delta is not None and self.dual_clip is not None:
            yield "delta and dual_clip bound the same, the ratio of tokens with a negative advantage: give one of them"


@dataclass
class CispoArguments(RatioArguments):
    """The arguments of cispo."""

    bound: float | None = option(
        None,
        "Upper bound on the weight of a token, above 0: the ratio is clipped at the bound itself, not at 1 + bound. "
        f"{_NEEDS_OLDER}",
        unset="5",
        above=0,
    )


LOSS_ROWS: Mapping[str | None, type[Options]] = {
    **dict.fromkeys(CLIPPED_LOSSES, ClipArguments),
    "cispo": CispoArguments,
    "sapo": RatioArguments,
    "vespo": MaskArguments,
    "reward_weighted": MaskArguments,
}
"""The arguments of the rows of ``LOSSES`` in ``qwenvl.grpo.loss``, which needs torch. A test holds the two to each
other, and to ``CLIPPED_LOSSES`` and ``SEQUENCE_LOSSES``."""


@dataclass
class EstimatorArguments(Options):
    """The arguments of an estimator that compares totals."""

    kl_in_reward: bool = option(
        False,
        "Take the KL off the reward in the place of a term of the loss (REINFORCE++): before advantages are computed, "
        "each completion's reward is lowered by --grpo_beta x the sum over its tokens of policy - reference log-prob. "
        "Needs --grpo_beta above 0.",
    )


ESTIMATOR_ROWS: Mapping[str | None, type[Options]] = {
    **dict.fromkeys(("grpo", "rloo", "reinforce_plus_plus"), EstimatorArguments),
    "gdpo": NoArguments,
}
"""The rows of ``ESTIMATORS`` in ``qwenvl.grpo.advantages``, held to it likewise."""


@dataclass
class KlArguments(Options):
    """The arguments of an estimator of the KL."""

    unbiased: bool = option(
        False,
        "Multiply the KL of a token by its importance ratio, so that its gradient stays unbiased for completions of "
        f"an older policy. {_NEEDS_OLDER}",
    )


@dataclass
class CorrectionArguments(Options):
    """The bounds of an importance correction."""

    # A token that the policy itself would have drawn has the weight 1, and is always trained on.
    max: float = option(3.0, "Largest weight, at least 1. Less: less noise, more bias.", least=1)
    min: float | None = option(
        None, "Smallest weight, above 0 and at most 1, and below max.", unset="no such bound", above=0, most=1
    )

    def problems(self) -> Iterator[str]:
        if self.min is not None and self.min >= self.max:
            yield f"min must be below max, {self.max:g}, got {self.min:g}"


CORRECTION_ROWS: Mapping[str | None, type[Options]] = {
    "none": NoArguments,
    **dict.fromkeys(("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"), CorrectionArguments),
}
"""``none``, and the rows of ``CORRECTIONS`` in ``qwenvl.grpo.surrogates``."""


@dataclass
class ObjectiveOptions(Options):
    """Advantages and loss."""

    grpo_alpha: float = option(
        0.5,
        "Weight of the policy-gradient term, above 0. The default pair, 0.5 and grpo_beta 0.1, is that of the recipe "
        "which this library was written for: a KL weight of 0.2 beside a policy term of 1.",
        above=0,
    )
    grpo_beta: float = option(
        0.1,
        "Weight of the KL term that holds the policy near the reference, at least 0. 0: no reference is kept.",
        least=0,
    )
    num_iterations: int = option(
        1,
        "Optimizer steps on the same completions, at least 1; from the second on the importance ratio is clipped. An "
        "epoch has that many times the steps. More: less sampling per step, and older completions.",
        least=1,
    )
    grpo_epsilon: float | None = option(
        None,
        "Lower clip bound, above 0 and below 1: the importance ratio is clipped at 1 - epsilon. Less: steps on the "
        f"same completions change less. {_NEEDS_OLDER} {_NEEDS_CLIP}",
        unset="that of the loss, 0.2, for gspo and luspo 0.0003",
        above=0,
        below=1,
    )
    grpo_epsilon_high: float | None = option(
        None,
        "Upper clip bound, above 0: the importance ratio is clipped at 1 + epsilon_high. More than --grpo_epsilon: "
        f"rare tokens may become likely sooner. {_NEEDS_OLDER} {_NEEDS_CLIP}",
        unset="that of the loss, 0.28 for dapo, 0.0004 for gspo and luspo, else that of --grpo_epsilon",
        above=0,
    )
    advantage_estimator: str = option(
        "grpo",
        "How a completion's reward becomes its advantage. grpo: minus its group's mean, divided as --scale_rewards "
        "says. rloo: minus the mean of the others of its group. reinforce_plus_plus: minus its group's mean, divided "
        "by the spread of these over the step. gdpo: each reward function is brought to mean 0 and spread 1 in each "
        "group, then weighed and summed, then divided by the spread over the step.",
        rows=ESTIMATOR_ROWS,
    )
    scale_rewards: Literal["group", "batch", "none"] = option(
        "group",
        "Divisor of a reward minus its group's mean. group: the group's standard deviation. batch: that of all "
        "rewards of the step. none: no division. Needs --advantage_estimator grpo.",
    )
    loss_type: str = option(
        "grpo",
        "The objective, by the name of its paper; docs/training.md has the formulas. Each brings the settings of its "
        "paper, which flags override. Objectives differ in what has an importance ratio, in how it is limited and in "
        "how tokens are averaged. grpo: over each completion's tokens, then over completions. dr_grpo: their sum "
        "divided by completions x --generation_max_length. dapo: over all tokens of the step.",
        rows=LOSS_ROWS,
    )
    kl_estimator: str = option(
        "k3",
        "Estimator of the KL divergence from d = reference - policy log-prob. k1: -d. k2: d^2 / 2. k3: exp(d) - d - "
        "1, never negative and of low variance. Needs --grpo_beta above 0.",
        rows=dict.fromkeys(("k1", "k2", "k3"), KlArguments),
    )
    mask_truncated_completions: bool = option(
        False,
        "Tokens of completions that were cut at --generation_max_length do not count in the loss. The completions "
        "still count where a loss divides by their number.",
    )
    top_entropy_quantile: float = option(
        1.0,
        "Share of the step's tokens in the policy term, above 0 to 1: those that were sampled from the distributions "
        "of highest entropy; 0.2 is usual, 1 takes all. The divisor of the loss does not change.",
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
        f"grows by {COEFFICIENT_STEP}, and where they have more it shrinks by as much and the bonus is left out. "
        "--entropy_coef is where the weight begins. Needs --entropy_coef above 0.",
        unset="the weight stays",
        above=0,
    )
    importance_correction: str | None = option(
        None,
        "Weight of the policy term: the probability of a token under the policy divided by that under the engine that "
        "sampled it, for engines with weights of their own. token: each token by itself. sequence: the product over a "
        "completion. truncate: weights are clipped to the bounds. mask: tokens or completions out of bounds are left "
        "out. Needs --loss_type other than vespo or --importance_correction none.",
        unset="none, with --async_rollouts token_truncate",
        rows=CORRECTION_ROWS,
    )

    @property
    def reads_sampled_entropies(self) -> bool:
        """Whether the engine has to give the entropies of the distributions that it samples from."""
        return self.top_entropy_quantile < 1 or self.entropy_target is not None

    @property
    def correction(self) -> str:
        """The name of the importance correction, a row of ``CORRECTIONS`` or ``none``."""
        return parse_row(self.importance_correction or "none", unnamed=True)[0]

    @property
    def estimator(self) -> str:
        """The name of the advantage estimator."""
        return parse_row(self.advantage_estimator, unnamed=True)[0]

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken off the rewards."""
        chosen = row_of(self, "advantage_estimator")
        return getattr(chosen and chosen.arguments, "kl_in_reward", False)

    def problems(self) -> Iterator[str]:
        if name_of_row(self, "loss_type") not in CLIPPED_LOSSES:
            clipped = f"--loss_type {' or '.join(CLIPPED_LOSSES)}"
            reason = "the others do not clip the ratio"
            for name in set_among(self, "grpo_epsilon", "grpo_epsilon_high"):
                yield no_effect(f"--{name}", without=clipped, reason=reason)
        if self.scale_rewards != "group" and self.estimator != "grpo":
            reason = "the other estimators have a scale of their own, or none"
            yield no_effect("--scale_rewards", without="--advantage_estimator grpo", reason=reason)
        if self.entropy_target is not None and not self.entropy_coef:
            reason = "that is the weight of the bonus, 0.001, say"
            yield no_effect("--entropy_target", without="--entropy_coef above 0", reason=reason)
        if self.correction != "none" and name_of_row(self, "loss_type") == "vespo":
            yield not_with("--importance_correction", "--loss_type vespo", "it weighs whole completions by itself")
        if not self.grpo_beta:
            if was_set(self, "kl_estimator"):
                reason = "there is no KL term otherwise"
                yield no_effect("--kl_estimator", without="--grpo_beta above 0", reason=reason)
            if self.kl_in_reward:
                subject = f"kl_in_reward of --advantage_estimator {self.estimator}"
                yield no_effect(subject, without="--grpo_beta above 0")
        if self.kl_in_reward and was_set(self, "kl_estimator"):
            yield (
                f"--kl_estimator has no effect with --advantage_estimator {self.advantage_estimator}: the loss has no "
                "KL term then, and the reward has k1; leave it out"
            )


@dataclass
class LoadedTeacher(Options):
    """The argument of a teacher that is another checkpoint."""

    offload: bool = option(
        False,
        "Keep it in CPU memory between its passes, one for each micro-batch. Not with --distill_kl full. Not with "
        "--use_cpu.",
    )


@dataclass
class FramesOfView(Options):
    """The argument of a view of other frames."""

    count: int | None = option(
        None, "Frames, at least 2, evenly spaced.", unset="32, of evidence what the run takes of its span", least=2
    )


@dataclass
class SampledKl(Options):
    """The argument of the KL by sampled tokens."""

    clip: float = option(5.0, "Largest difference of the two log-probs that counts, in nats, above 0.", above=0)


VIEW_ROWS: Mapping[str | None, type[Options]] = {
    **dict.fromkeys(("frames", "evidence"), FramesOfView),
    **dict.fromkeys(("solution", "feedback", None), NoArguments),
}
"""The rows of ``VIEWS`` in ``qwenvl.data.views``, and any function of one's own."""
RECORD_VIEWS = tuple(name for name in VIEW_ROWS if name and name != "feedback")
"""Those that read no completion, which are controls of ``qwenvl evaluate`` too."""


@dataclass
class TeacherOptions(Options):
    """A teacher, and what it sees."""

    teacher: str | None = option(
        None,
        "Model whose log-probs of the sampled tokens the policy learns from. reference: the one of the KL term, by "
        "default the model before training. self: the policy, where it sees more (--teacher_sees). Else a checkpoint "
        "of any size with the tokenizer and the prompts of the policy, a folder or hub name: a second model in memory.",
        unset="no teacher",
        rows={"reference": NoArguments, "self": NoArguments, None: LoadedTeacher},
    )
    teacher_sees: str | None = option(
        None,
        "What the teacher's prompt has beyond the policy's. frames: another number of frames, as frames(32). "
        "evidence: the span of the record's `evidence` in place of the clip. solution: its solution. feedback: what "
        "the rewards gave the completion, so that each has a prompt of its own. file.py:name: a function of your own, "
        "f(record) -> record, or f(record, completion, rewards) -> a sentence behind the question. Needs --teacher.",
        unset="the policy's prompt",
        rows=VIEW_ROWS,
    )

    @property
    def teacher_path(self) -> str | None:
        """The checkpoint of a teacher that is another model."""
        teacher = row_of(self, "teacher")
        return None if teacher is None or teacher.name in ("self", "reference") else teacher.name

    @property
    def offloads_teacher(self) -> bool:
        """Whether the teacher is kept in CPU memory between its passes."""
        teacher = row_of(self, "teacher")
        return teacher is not None and getattr(teacher.arguments, "offload", False)

    def problems(self) -> Iterator[str]:
        if self.teacher is None and self.teacher_sees is not None:
            yield no_effect("--teacher_sees", without="--teacher")
        if name_of_row(self, "teacher") == "self" and self.teacher_sees is None:
            yield "--teacher self has no effect where it sees what the policy sees: give --teacher_sees, as frames(32)"
        view = row_of(self, "teacher_sees")
        if view and view.name not in VIEW_ROWS and ":" not in view.name:
            yield f"--teacher_sees {view.name}: {nearest(view.name, [*filter(None, VIEW_ROWS)])}, or file.py:name"


@dataclass
class DistillOptions(TeacherOptions):
    """Learning from a teacher (on-policy distillation)."""

    distill_weight: float | None = option(
        None,
        "Weight of the teacher beside the advantages of the rewards, at least 0. 0: the two are only compared. Needs "
        "--teacher.",
        unset="1; where no flag names a reward, the teacher alone is learned from, and rewards are only logged",
        least=0,
    )
    distill_kl: str = option(
        "sampled",
        "Estimate of the KL of policy and teacher. sampled: a token has the advantage teacher - policy log-prob. "
        "full: the exact sum over the vocabulary, a term of the loss; less noise, one more product with the head. "
        "Needs --teacher. Not with --distill_weight 0.",
        rows={"sampled": SampledKl, "full": NoArguments},
    )
    distill_on: Literal["all", "vision"] = option(
        "all",
        "Tokens that are taught. vision: each by the share of its probability, by the teacher, that grey frames take "
        "away or add, so that tokens that no picture decides count little. Costs another pass of the teacher. Needs "
        "--teacher. Not with --distill_weight 0.",
    )

    @property
    def teacher_weight(self) -> float:
        """The weight of the teacher. 0 without one."""
        if self.teacher is None:
            return 0.0
        return 1.0 if self.distill_weight is None else self.distill_weight

    def problems(self) -> Iterator[str]:
        if self.teacher is None:
            for name in set_among(self, "distill_weight", "distill_kl", "distill_on"):
                yield no_effect(f"--{name}", without="--teacher")
        if self.distill_weight == 0:
            for name in set_among(self, "distill_kl", "distill_on"):
                yield not_with(f"--{name}", "--distill_weight 0", "the teacher is only compared with")
        if self.offloads_teacher and name_of_row(self, "distill_kl") == "full":
            subject = f"offload of --teacher {self.teacher_path}"
            yield not_with(subject, "--distill_kl full", "the policy's pass reads its head")
        loss = row_of(self, "loss_type") if hasattr(self, "loss_type") else None
        teaches_tokens = self.teacher_weight > 0 and name_of_row(self, "distill_kl") != "full"
        if loss is not None and teaches_tokens and _ratio_of(loss) == "sequence":
            yield (
                f"--loss_type {loss.name} has one ratio for a completion, and a teacher an advantage for each "
                "token: take another loss, or --distill_kl full"
            )


def _ratio_of(loss: RowValue) -> str:
    """What has an importance ratio in a loss: a token, or the completion."""
    own = "sequence" if loss.name in SEQUENCE_LOSSES else "token"
    return getattr(loss.arguments, "ratio", None) or own
