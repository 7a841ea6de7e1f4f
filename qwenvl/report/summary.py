"""The same facts for scripts and coding agents: ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from qwenvl.report.curves import trend
from qwenvl.report.findings import warnings
from qwenvl.report.groups import DROPPED, EQUAL, SUSPECT, TRUNCATED, History, Row, hardest, histories, most_improved
from qwenvl.report.run import Evaluated, Run, differing_settings
from qwenvl.report.sections import finite, is_phase

TRENDS = (
    *("reward/total", "reward/std", "group/zero_std_frac", "kl", "entropy", "grad_norm"),
    *("completion/length_mean", "completion/truncated_frac", "target/loss"),
)


def summary(runs: Sequence[Run], rows: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """What ``summary.json`` holds. ``docs/report.md`` says what each name means.

    Args:
        rows: the groups of each run.
    """
    each = [run_summary(run, groups) for run, groups in zip(runs, rows, strict=True)]
    return {"runs": each, "differing_settings": differing_settings(runs)}


def run_summary(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
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
        "warnings": [asdict(each) for each in warnings(run, rows)],
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


def _evaluation(points: Sequence[Evaluated]) -> dict[str, Any]:
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
