"""What is wrong with a run, as far as its numbers tell: each warning with what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from qwenvl.report.curves import trend
from qwenvl.report.groups import SUSPECT, Row
from qwenvl.report.run import Run

MOST_EQUAL = 0.9  # share of groups with equal rewards
MOST_TRUNCATED = 0.25  # share of completions cut at the limit
HIGH_KL = 0.5
LEFT_ENTROPY = 0.2  # of that of the first steps
MOST_SUSPECT = 0.2  # share of groups in which reward hacking is suspected


@dataclass(frozen=True)
class Finding:
    """One warning: a word for scripts, what was seen, and what to try."""

    code: str
    message: str
    advice: str


def warnings(run: Run, rows: Sequence[Row]) -> list[Finding]:
    """All warnings of a run. "The last steps" are the last fifth of the rows that have the number.

    Args:
        rows: the groups of the run.
    """
    found = [_equal(run), _falls(run), _kl(run), _entropy(run), _truncated(run), _worse(run)]
    found += [_left_out(run), _skipped(run), _suspect(rows)]
    return [*_not_finite(run), *(each for each in found if each is not None)]


def last_mean(run: Run, metric: str) -> float | None:
    """The mean of the last fifth of a metric, None where the run has none."""
    found = trend([value for _, value in run.values(metric)])
    return None if found is None else found.last


def _not_finite(run: Run) -> list[Finding]:
    for metric in ("loss", "grad_norm", "kl"):
        for step, value in run.values(metric):
            if not math.isfinite(value):
                advice = "lower --learning_rate or --max_grad_norm"
                return [Finding("not_finite", f"{metric} is {value} at step {step}", advice)]
    return []


def _equal(run: Run) -> Finding | None:
    share = last_mean(run, "group/zero_std_frac")
    if share is None or share <= MOST_EQUAL:
        return None
    reward = last_mean(run, "reward/total")
    told = "" if reward is None else f" (mean reward {reward:.3g})"
    advice = (
        "where nothing is right, take easier records or a reward with finer steps; where all is right, harder records; "
        "where completions are too alike, a higher --generation_temperature or a larger --grpo_sample_size"
    )
    message = f"{share:.0%} of the groups of the last steps have equal rewards{told}: they teach nothing"
    return Finding("equal_rewards", message, advice)


def _falls(run: Run) -> Finding | None:
    found = trend([value for _, value in run.values("reward/total")])
    if found is None or found.verdict != "falls":
        return None
    message = f"the reward fell from {found.first:.3g} to {found.last:.3g} (± {found.ci95:.2g})"
    return Finding("reward_falls", message, "lower --learning_rate, or raise --grpo_beta")


def _kl(run: Run) -> Finding | None:
    last, reward = last_mean(run, "kl"), trend([value for _, value in run.values("reward/total")])
    if last is None or last <= HIGH_KL or (reward is not None and reward.verdict == "rises"):
        return None
    message = f"KL is {last:.3g} in the last steps and the reward does not rise: the policy drifts for nothing"
    return Finding("kl_drifts", message, "lower --learning_rate, or raise --grpo_beta")


def _entropy(run: Run) -> Finding | None:
    found, reward = (trend([value for _, value in run.values(name)]) for name in ("entropy", "reward/total"))
    if found is None or found.last >= LEFT_ENTROPY * found.first or (reward is not None and reward.verdict == "rises"):
        return None
    message = f"the entropy fell from {found.first:.3g} to {found.last:.3g} and the reward does not rise"
    return Finding("entropy_collapsed", message, "lower --learning_rate, or raise --generation_temperature")


def _truncated(run: Run) -> Finding | None:
    share = last_mean(run, "completion/truncated_frac")
    if share is None or share <= MOST_TRUNCATED:
        return None
    message = f"{share:.0%} of the completions of the last steps are cut before their end"
    return Finding("truncated", message, "a larger --generation_max_length, or a prompt that asks for less")


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
