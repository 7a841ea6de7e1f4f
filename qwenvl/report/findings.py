"""What is wrong with a run, as far as its numbers tell: each warning with what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from qwenvl.health.rules import RULES
from qwenvl.report.curves import trend
from qwenvl.report.groups import SUSPECT, Row
from qwenvl.report.run import Run

MOST_SUSPECT = 0.2  # share of groups in which reward hacking is suspected


@dataclass(frozen=True)
class Finding:
    """One warning: a word for scripts, what was seen, and what to try."""

    code: str
    message: str
    advice: str


def warnings(run: Run, rows: Sequence[Row]) -> list[Finding]:
    """All warnings of a run: those of the rules that the run itself warns by, at its last row, and those of the report.

    Args:
        rows: the groups of the run.
    """
    falls = _falls(run)
    found = [falls, _worse(run), _left_out(run), _skipped(run), _suspect(rows)]
    ruled = [each for each in _ruled(run) if falls is None or each.code != "reward_flat"]
    return [*_not_finite(run), *ruled, *(each for each in found if each is not None)]


def _ruled(run: Run) -> list[Finding]:
    """The rules of ``qwenvl.health`` that hold at the last row. Those for the end of a short run count too."""
    history, found = run.history(), []
    for rule in RULES:
        seen = rule.judge(history)
        if seen is None and rule.judge_at_end is not None:
            seen = rule.judge_at_end(history)
        if seen is not None:
            found.append(Finding(rule.code, seen, rule.remedy))
    return found


def _not_finite(run: Run) -> list[Finding]:
    for metric in ("loss", "grad_norm", "kl"):
        for step, value in run.values(metric):
            if not math.isfinite(value):
                advice = "lower --learning_rate or --max_grad_norm"
                return [Finding("not_finite", f"{metric} is {value} at step {step}", advice)]
    return []


def _falls(run: Run) -> Finding | None:
    found = trend([value for _, value in run.values("reward/total")])
    if found is None or found.verdict != "falls":
        return None
    message = f"the reward fell from {found.first:.3g} to {found.last:.3g} (± {found.ci95:.2g})"
    return Finding("reward_falls", message, "lower --learning_rate, or raise --grpo_beta")


def _worse(run: Run) -> Finding | None:
    for name, points in run.evaluations().items():
        best, last = max(points, key=lambda each: each.reward), points[-1]
        if best.ci95 is None or last.ci95 is None:
            continue
        if last.reward + last.ci95 < best.reward - best.ci95:
            message = f"{name} is {last.reward:.3g} at step {last.step} and was {best.reward:.3g} at step {best.step}"
            return Finding("evaluation_worse", message, f"take the checkpoint of step {best.step}, or stop earlier")
    return None


def _left_out(run: Run) -> Finding | None:
    count = sum(value for _, value in run.values("data/bad_samples"))
    if not count:
        return None
    message = f"{count:.0f} samples were left out because they could not be read"
    return Finding("left_out", message, "qwenvl data check names each with its reason")


def _skipped(run: Run) -> Finding | None:
    count = sum(value for _, value in run.values("nonfinite/skipped_steps"))
    if not count:
        return None
    message = f"{count:.0f} steps changed no weight because their loss or gradients were not finite"
    return Finding("skipped_steps", message, "the folder nonfinite of the run says what they were made of")


def _suspect(rows: Sequence[Row]) -> Finding | None:
    trained = sorted((row for row in rows if row.split == "train"), key=lambda row: row.step)
    last = trained[-max(1, len(trained) // 5) :]
    share = fmean(bool(row.marks & SUSPECT) for row in last) if last else 0.0
    if share <= MOST_SUSPECT:
        return None
    message = f"reward hacking is suspected in {share:.0%} of the last {len(last)} groups"
    return Finding("suspected_hacking", message, "read them in the browser of groups, and weigh the format less")
