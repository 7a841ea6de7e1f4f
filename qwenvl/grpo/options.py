"""The options of the objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option, was_set


@dataclass
class ObjectiveOptions(Options):
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
    grpo_epsilon: float = option(
        0.2,
        "How far the importance ratio of a token may fall below 1 before its advantage pushes it no further, above 0 "
        "and below 1. Less: steps on the same completions change less. Needs --num_iterations above 1.",
        above=0,
        below=1,
    )
    grpo_epsilon_high: float | None = option(
        None,
        "How far the ratio may rise above 1, above 0. More than --grpo_epsilon: rare tokens may become likely sooner. "
        "Needs --num_iterations above 1.",
        unset="the one of --grpo_epsilon",
        above=0,
    )
    scale_rewards: Literal["group", "batch", "none"] = option(
        "group",
        "What a reward minus its group's mean is divided by. group: the group's standard deviation. batch: that of "
        "all rewards of the batch. none: nothing.",
    )
    loss_type: Literal["grpo", "dr_grpo"] = option(
        "grpo",
        "How token losses are averaged. grpo: over the tokens of each completion, then over completions. dr_grpo: "
        "their sum divided by completions x --generation_max_length, so that long completions are not favoured.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = option(
        "k3",
        "Estimator of the KL divergence from d = reference - policy log-prob. k1: -d. k2: d^2 / 2. "
        "k3: exp(d) - d - 1, never negative and of low variance.",
    )

    def problems(self) -> Iterator[str]:
        for name in ("grpo_epsilon", "grpo_epsilon_high"):
            if self.num_iterations == 1 and was_set(self, name):
                yield f"--{name} has no effect with --num_iterations 1: the ratio is 1 then; leave one of the two out"
        if self.grpo_beta == 0 and was_set(self, "kl_estimator"):
            yield "--kl_estimator has no effect with --grpo_beta 0: there is no KL term"
