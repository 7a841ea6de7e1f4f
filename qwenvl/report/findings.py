"""Warnings of a run with their remedies, and the facts of ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from qwenvl.health import Finding, findings
from qwenvl.report.pages import DROPPED, EQUAL, SUSPECT, TRUNCATED, GroupRow
from qwenvl.report.run import Run, differing_settings, finite, is_phase, trend

MOST_SUSPECT = 0.2  # share of groups in which reward hacking is suspected


COUNTED = (
    (
        "data/bad_samples", "left_out", "samples were left out because they could not be read",
        "qwenvl data check names each with its reason",
    ),
    (
        "nonfinite/skipped_steps", "skipped_steps",
        "steps changed no weight because their loss or gradients were not finite",
        "the folder nonfinite of the run says what they were made of",
    ),
)  # fmt: skip
"""Metrics whose sum should be 0, each with the code, message and advice of its finding."""


def warnings(run: Run, rows: Sequence[GroupRow]) -> list[Finding]:
    """All warnings of a run: of the rules by which the run itself warns, at its last row, and those of the report.

    Args:
        rows: the groups of the run.
    """
    unfit = (
        Finding("not_finite", f"{metric} is {value} at step {step}", "lower --learning_rate or --max_grad_norm")
        for metric in ("loss", "grad_norm", "kl")
        for step, value in run.values(metric)
        if not math.isfinite(value)
    )
    own = list(_of_the_report(run, rows))
    falls = any(each.code == "reward_falls" for each in own)
    ruled = [each for each in findings(run.history(), ended=True) if not (falls and each.code == "reward_flat")]
    return [*islice(unfit, 1), *ruled, *own]


def _of_the_report(run: Run, rows: Sequence[GroupRow]) -> Iterator[Finding]:
    moved = trend([value for _, value in run.values("reward/total")])
    if moved is not None and moved.verdict == "falls":
        message = f"the reward fell from {moved.first:.3g} to {moved.last:.3g} (± {moved.ci95:.2g})"
        yield Finding("reward_falls", message, "lower --learning_rate, or raise --grpo_beta")
    for name, points in run.evaluations().items():
        best, last = max(points, key=lambda each: each["reward"]), points[-1]
        known = best["ci95"] is not None and last["ci95"] is not None
        if known and last["reward"] + last["ci95"] < best["reward"] - best["ci95"]:
            was = f"was {best['reward']:.3g} at step {best['step']}"
            message = f"{name} is {last['reward']:.3g} at step {last['step']} and {was}"
            yield Finding("evaluation_worse", message, f"take the checkpoint of step {best['step']}, or stop earlier")
            break
    for metric, code, message, advice in COUNTED:
        if count := sum(value for _, value in run.values(metric)):
            yield Finding(code, f"{count:.0f} {message}", advice)
    trained = sorted((row for row in rows if row["split"] == "train"), key=lambda row: row["step"])
    last_rows = trained[-max(1, len(trained) // 5) :]
    share = fmean(bool(row["marks"] & SUSPECT) for row in last_rows) if last_rows else 0.0
    if share > MOST_SUSPECT:
        message = f"reward hacking is suspected in {share:.0%} of the last {len(last_rows)} groups"
        yield Finding("suspected_hacking", message, "read them in the browser of groups, and weigh the format less")


COUNTED_MARKS = {"equal": EQUAL, "truncated": TRUNCATED, "suspected": SUSPECT}
TRENDS = (
    *("reward/total", "reward/std", "group/zero_std_frac", "kl", "entropy", "grad_norm"),
    *("completion/length_mean", "completion/truncated_frac", "target/loss"),
)


def summary(runs: Sequence[Run], rows: Sequence[Sequence[GroupRow]]) -> dict[str, Any]:
    """The content of ``summary.json``. ``docs/evaluation.md`` explains each name.

    Args:
        rows: the groups of each run.
    """
    each = [run_summary(run, groups) for run, groups in zip(runs, rows, strict=True)]
    return {"runs": each, "differing_settings": differing_settings(runs)}


def run_summary(run: Run, rows: Sequence[GroupRow]) -> dict[str, Any]:
    """The part of ``summary.json`` about one run."""
    sampled = [row for row in rows if row["split"] == "train"]
    trained = [row for row in sampled if not row["marks"] & DROPPED]
    names = [*TRENDS[:1], *(name for name in run.metrics() if name.startswith("reward/")), *TRENDS]
    phases = {name: fmean(value for _, value in run.values(name)) for name in run.metrics() if is_phase(name)}
    return {
        "run": run.name,
        "steps": run.steps,
        "finished": run.finished,
        "evaluations": {
            name: {"first": points[0], "last": points[-1], "best": max(points, key=lambda each: each["reward"])}
            for name, points in run.evaluations().items()
        },
        "trends": {name: _trend(run, name) for name in dict.fromkeys(names) if run.values(name)},
        "warnings": [
            {name: getattr(each, name) for name in ("code", "message", "advice")} for each in warnings(run, rows)
        ],
        "groups": {
            "trained": len(trained),
            "dropped": len(sampled) - len(trained),
            "completions": sum(row["size"] for row in trained),
            **{name: sum(bool(row["marks"] & mark) for row in trained) for name, mark in COUNTED_MARKS.items()},
        },
        "seconds_per_step": {name: finite([value])[0] for name, value in phases.items()},
    }


def _trend(run: Run, metric: str) -> dict[str, Any] | None:
    found = trend([value for _, value in run.values(metric)])
    if found is None:
        return None
    *numbers, verdict = found
    return dict(zip(found._fields, [*finite(numbers), verdict], strict=True))
