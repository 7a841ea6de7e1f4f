"""The objective that the options choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qwenvl.grpo.loss import LOSSES, Objective
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.grpo.weighting import Weighting


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
    row = LOSSES[options.loss_type]
    given: dict[str, Any] = {
        "epsilon": options.grpo_epsilon,
        "epsilon_high": options.grpo_epsilon_high,
        "delta": options.grpo_delta,
        "dual_clip": options.dual_clip,
        "cispo": options.cispo_bound,
    }
    bounds = replace(row.bounds, **{name: value for name, value in given.items() if value is not None})
    if bounds.delta is not None and bounds.delta <= bounds.highest:
        raise ValueError(
            f"--grpo_delta must be above 1 + --grpo_epsilon_high, {bounds.highest:g}, got {bounds.delta:g}: the ratio "
            "is limited there already"
        )
    return replace(
        row,
        ratio=options.importance_sampling_level or row.ratio,
        bounds=bounds,
        alpha=options.grpo_alpha,
        beta=0.0 if options.kl_in_reward else options.grpo_beta,
        kl_estimator=options.kl_estimator,
        kl_unbiased=options.kl_unbiased,
        weighting=Weighting(
            options.correction,
            options.importance_correction_min,
            options.importance_correction_max,
            options.off_policy_mask_threshold,
        ),
        entropy_coef=options.entropy_coef or None,
        max_completion_length=max_completion_length,
    )
