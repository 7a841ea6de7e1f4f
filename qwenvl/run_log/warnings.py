"""The warnings of a whole run, with their remedies: of its rules, and of its curves from the first step to the last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qwenvl.run_log.health import Finding, findings
from qwenvl.run_log.run import Run, trend

COUNTED = {
    "data/bad_samples": Finding(
        "left_out",
        "samples were left out because they could not be read",
        "qwenvl data check names each with its reason",
    ),
    "nonfinite/skipped_steps": Finding(
        "skipped_steps",
        "steps changed no weight because their loss or gradients were not finite",
        "the warnings that the run printed name what was not finite; lower --learning_rate if there are many",
    ),
}
"""Metrics whose sum should be 0, each with its finding."""


def warnings_of(run: Run) -> list[Finding]:
    """The warnings of a run by its rows: of the rules by which the run itself warns, at its last row, and of trends.

    Of a run that goes on, or was killed, they are those that it has printed so far.
    """
    found = []
    not_finite = _not_finite(run)
    if not_finite is not None:
        found.append(not_finite)
    of_trends = list(_of_trends(run))
    falls = any(each.code == "reward_falls" for each in of_trends)
    for each in findings(run.history(), ended=run.finished is not None):
        if not (falls and each.code == "reward_flat"):  # a reward that falls has not risen either
            found.append(each)
    return found + of_trends


def _not_finite(run: Run) -> Finding | None:
    """The first number of training that is NaN or infinite: its loss, else its gradient norm, else its KL."""
    for metric in ("loss", "grad_norm", "kl"):
        for step, value in run.values(metric):
            if not math.isfinite(value):
                message = f"{metric} is {value} at step {step}"
                return Finding("not_finite", message, "lower --learning_rate or --max_grad_norm")
    return None


def _of_trends(run: Run) -> Iterator[Finding]:
    """The warnings of curves: a reward that falls, an evaluation that was better before, counts that should be 0."""
    moved = trend([value for _, value in run.values("reward/total")])
    if moved is not None and moved.verdict == "falls":
        message = f"the reward fell from {moved.first:.3g} to {moved.last:.3g} (± {moved.ci95:.2g})"
        yield Finding("reward_falls", message, "lower --learning_rate, or raise --grpo_beta")
    for name, points in run.evaluations().items():
        best = max(points, key=lambda point: point.reward)
        last = points[-1]
        if best.ci95 is None or last.ci95 is None:
            continue
        if last.reward + last.ci95 < best.reward - best.ci95:
            message = (
                f"{name} is {last.reward:.3g} at step {last.step} and was {best.reward:.3g} at step {best.step}"
            )
            yield Finding("evaluation_worse", message, f"take the checkpoint of step {best.step}, or stop earlier")
    for metric, finding in COUNTED.items():
        count = sum(value for _, value in run.values(metric))
        if count:
            yield replace(finding, message=f"{count:.0f} {finding.message}")
