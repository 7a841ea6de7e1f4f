"""Warnings of a run with their remedies, and the facts of ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from qwenvl.health.rules import Finding, findings
from qwenvl.report.curves import finite, is_phase, trend
from qwenvl.report.groups import (
    DROPPED,
    EQUAL,
    SUSPECT,
    TRUNCATED,
    GroupRow,
    History,
    hardest,
    histories,
    most_improved,
)
from qwenvl.report.run import EvaluationPoint, Run, differing_settings

MOST_SUSPECT = 0.2  # share of groups in which reward hacking is suspected


def warnings(run: Run, rows: Sequence[GroupRow]) -> list[Finding]:
    """All warnings of a run: those of the rules that the run itself warns by, at its last row, and those of the report.

    Args:
        rows: the groups of the run.
    """
    falls = _falls(run)
    found = [falls, _worse(run), _left_out(run), _skipped(run), _suspect(rows)]
    ruled = [each for each in findings(run.history(), ended=True) if falls is None or each.code != "reward_flat"]
    return [*_not_finite(run), *ruled, *(each for each in found if each is not None)]


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


def _suspect(rows: Sequence[GroupRow]) -> Finding | None:
    trained = sorted((row for row in rows if row.split == "train"), key=lambda row: row.step)
    last = trained[-max(1, len(trained) // 5) :]
    share = fmean(bool(row.marks & SUSPECT) for row in last) if last else 0.0
    if share <= MOST_SUSPECT:
        return None
    message = f"reward hacking is suspected in {share:.0%} of the last {len(last)} groups"
    return Finding("suspected_hacking", message, "read them in the browser of groups, and weigh the format less")


TRENDS = (
    *("reward/total", "reward/std", "group/zero_std_frac", "kl", "entropy", "grad_norm"),
    *("completion/length_mean", "completion/truncated_frac", "target/loss"),
)


def summary(runs: Sequence[Run], rows: Sequence[Sequence[GroupRow]]) -> dict[str, Any]:
    """What ``summary.json`` holds. ``docs/report.md`` says what each name means.

    Args:
        rows: the groups of each run.
    """
    each = [run_summary(run, groups) for run, groups in zip(runs, rows, strict=True)]
    return {"runs": each, "differing_settings": differing_settings(runs)}


def run_summary(run: Run, rows: Sequence[GroupRow]) -> dict[str, Any]:
    """The part of ``summary.json`` about one run."""
    sampled = [row for row in rows if row.split == "train"]
    trained = [row for row in sampled if not row.marks & DROPPED]
    seen = histories(rows)
    names = [*TRENDS[:1], *(name for name in run.metrics() if name.startswith("reward/")), *TRENDS]
    phases = {name: fmean(value for _, value in run.values(name)) for name in run.metrics() if is_phase(name)}
    return {
        "run": run.name,
        "steps": run.steps,
        "finished": run.finished,
        "evaluations": {name: _evaluation(points) for name, points in run.evaluations().items()},
        "trends": {name: _trend(run, name) for name in dict.fromkeys(names) if run.values(name)},
        "warnings": [
            {"code": each.code, "message": each.message, "advice": each.advice} for each in warnings(run, rows)
        ],
        "groups": {
            "trained": len(trained),
            "dropped": len(sampled) - len(trained),
            "completions": sum(row.size for row in trained),
            "equal": sum(bool(row.marks & EQUAL) for row in trained),
            "truncated": sum(bool(row.marks & TRUNCATED) for row in trained),
            "suspected": sum(bool(row.marks & SUSPECT) for row in trained),
        },
        "seconds_per_step": {name: finite([value])[0] for name, value in phases.items()},
        "hardest": [_history(each) for each in hardest(seen)],
        "most_improved": [_history(each) for each in most_improved(seen)],
    }


def _evaluation(points: Sequence[EvaluationPoint]) -> dict[str, Any]:
    best = max(points, key=lambda each: each.reward)
    return {name: asdict(point) for name, point in (("first", points[0]), ("last", points[-1]), ("best", best))}


def _trend(run: Run, metric: str) -> dict[str, Any] | None:
    found = trend([value for _, value in run.values(metric)])
    if found is None:
        return None
    first, last, change, ci95 = finite([found.first, found.last, found.change, found.ci95])
    return {"first": first, "last": last, "change": change, "ci95": ci95, "verdict": found.verdict}


def _history(history: History) -> dict[str, Any]:
    mean, first, last = finite([fmean(history.means), history.means[0], history.means[-1]])
    groups = len(history.means)
    return {
        "record": history.record, "where": history.where, "groups": groups, "mean": mean, "first": first, "last": last
    }  # fmt: skip
