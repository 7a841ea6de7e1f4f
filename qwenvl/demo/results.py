"""What came out of the demo: scores read back from the run folder, the best a blind model could do, a table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.demo.clips import PAIRS, STEPS
from qwenvl.runlog import Rollout, read_rollouts
from qwenvl.runlog.evaluation import read_evaluation


@dataclass(frozen=True)
class Score:
    """Rewards of one evaluation, means over ``n`` clips.

    Attributes:
        total, total_ci95: weighted sum of format and accuracy, and half the width of its 95 % interval.
        accuracy, accuracy_ci95: named steps that are shown / named or shown.
        exact: share of the clips whose steps were named exactly.
    """

    total: float
    total_ci95: float
    accuracy: float
    accuracy_ci95: float
    exact: float
    n: int

    def above(self, other: Score) -> bool:
        """Whether the 95 % intervals of the totals leave no doubt that this one is higher."""
        return self.total - self.total_ci95 > other.total + other.total_ci95


def read_scores(evaluation: str | Path, labels: Mapping[tuple[str, str], str]) -> dict[str, Score]:
    """The scores of an evaluation's folder.

    Args:
        labels: what a model under a control is called.
    """
    found = {(each["model"], each["control"]): each for each in read_evaluation(evaluation)["numbers"]}
    scores = {}
    for key, label in labels.items():
        total, accuracy = (found[key]["scores"][name] for name in ("total", "accuracy"))
        scores[label] = Score(
            total=total["mean"],
            total_ci95=_half_width(total),
            accuracy=accuracy["mean"],
            accuracy_ci95=_half_width(accuracy),
            exact=found[key]["scores"]["passes"]["mean"],
            n=found[key]["records"],
        )
    return scores


def in_words(evaluation: str | Path) -> str:
    """What GRPO brought and what the video is worth to the trained model, both on the same clips."""
    facts = read_evaluation(evaluation)
    [gain] = [each for each in facts["differences"] if each["control"] == "none"]
    drops = {each["control"]: each for each in facts["drops"] if each["model"] == gain["after"]}
    return (
        f"On the same clips GRPO brought {_interval(gain)} IoU. The trained model needs its video: a blank one in its "
        f"place costs {_interval(drops['blank'])}, another clip {_interval(drops['other_clip'])}."
    )


def _interval(each: Mapping[str, Any]) -> str:
    mean, low, high = (each["scores"]["accuracy"][name] for name in ("mean", "low", "high"))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _half_width(interval: Mapping[str, float]) -> float:
    return (interval["high"] - interval["low"]) / 2


def best_blind_accuracy() -> tuple[float, tuple[int, ...]]:
    """The highest mean accuracy of naming the same steps for every clip, and these steps.

    Example:
        >>> best_blind_accuracy()[1]
        (1, 2, 3, 4, 6)
    """
    numbers = range(1, len(STEPS) + 1)
    guesses = (guess for size in numbers for guess in itertools.combinations(numbers, size))

    def accuracy(guess: tuple[int, ...]) -> float:
        return sum(len({*guess} & {*pair}) / len({*guess} | {*pair}) for pair in PAIRS) / len(PAIRS)

    return max((accuracy(guess), guess) for guess in guesses)


def table(scores: Mapping[str, Score], format_weight: float, accuracy_weight: float) -> str:
    """One line for each score, and one for a model that does not look."""
    blind, guess = best_blind_accuracy()
    rows = [("", "total reward", "steps (IoU)", "both steps right")]
    for name, score in scores.items():
        total = f"{score.total:.2f} ± {score.total_ci95:.2f}"
        rows.append((name, total, f"{score.accuracy:.2f} ± {score.accuracy_ci95:.2f}", f"{score.exact:.0%}"))
    rows.append(("best without looking*", f"{format_weight + accuracy_weight * blind:.2f}", f"{blind:.2f}", "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    n = next(iter(scores.values())).n
    lines += [
        "",
        f"{n} held-out clips, greedy, 95 % intervals; total = {format_weight:g} format + {accuracy_weight:g} IoU",
        f"* the right form and steps {', '.join(map(str, guess))}, whatever is shown: no fixed answer scores higher",
    ]
    return "\n".join(lines)


def example(run: str | Path, last_step: int) -> tuple[Rollout, Rollout] | None:
    """What was said of one held-out clip before and after: the first that was wrong and then right."""
    before = {each.record_id: each for each in read_rollouts(run, step=0, split="eval")}
    for after in read_rollouts(run, step=last_step, split="eval"):
        if after.rewards["accuracy"] == 1 and before[after.record_id].rewards["accuracy"] != 1:
            return before[after.record_id], after
    return None
