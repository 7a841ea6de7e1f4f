"""What came out of the demo: scores read back from the run folder, the best a blind model could do, a table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.demo.clips import PAIRS, STEPS
from qwenvl.runlog import Rollout, read_evaluation, read_rollouts


@dataclass(frozen=True)
class Score:
    """Mean rewards of one evaluation."""

    total: float  # weighted sum of format and accuracy
    total_ci95: float  # half the width of its 95 % interval
    accuracy: float  # named steps that are shown / named or shown
    accuracy_ci95: float
    exact: float  # share of the clips whose steps were named exactly
    n: int  # clips
    comparable: bool = True  # False for a control under which more than 10 % of the completions have no answer

    def above(self, other: Score) -> bool:
        """Whether the 95 % intervals of the totals leave no doubt that this one is higher."""
        return self.total - self.total_ci95 > other.total + other.total_ci95


def read_scores(evaluation: str | Path, labels: Mapping[tuple[str, str], str]) -> dict[str, Score]:
    """The scores of an evaluation's folder under the ``labels`` of (model, control)."""
    facts = read_evaluation(evaluation)
    found = {(each["model"], each["control"]): each for each in facts["numbers"]}
    broken = {(each["model"], each["control"]) for each in facts["drops"] if not each["comparable"]}
    half = lambda interval: (interval["high"] - interval["low"]) / 2
    scores = {}
    for key, label in labels.items():
        total, accuracy, passes = (found[key]["scores"][name] for name in ("total", "accuracy", "passes"))
        means = (total["mean"], half(total), accuracy["mean"], half(accuracy), passes["mean"])
        scores[label] = Score(*means, n=found[key]["records"], comparable=key not in broken)
    return scores


def in_words(evaluation: str | Path) -> str:
    """What GRPO brought and what the video is worth to the trained model, both on the same clips."""
    facts = read_evaluation(evaluation)
    [gain] = [each for each in facts["differences"] if each["control"] == "none"]
    drops = {each["control"]: each for each in facts["drops"] if each["model"] == gain["after"]}
    return (
        f"On the same clips GRPO brought {_interval(gain)} IoU. What the trained model loses without its video: a "
        f"blank one in its place {_cost(drops['blank'])}, another clip {_cost(drops['other_clip'])}."
    )


def _cost(drop: Mapping[str, Any]) -> str:
    if drop["comparable"]:
        return f"costs {_interval(drop)}"
    answered = drop["answered"]
    among = f"costs {_interval(answered)}" if "accuracy" in answered["scores"] else "leaves nothing to compare"
    return (
        f"can't be compared ({drop['no_answer']['mean']:.0%} of the completions have no answer; among the "
        f"{answered['records']} clips with one it {among})"
    )


def _interval(each: Mapping[str, Any]) -> str:
    mean, low, high = (each["scores"]["accuracy"][name] for name in ("mean", "low", "high"))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


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
        label = name if score.comparable else f"{name}**"
        rows.append((label, total, f"{score.accuracy:.2f} ± {score.accuracy_ci95:.2f}", f"{score.exact:.0%}"))
    rows.append(("best without looking*", f"{format_weight + accuracy_weight * blind:.2f}", f"{blind:.2f}", "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    n = next(iter(scores.values())).n
    lines += [
        "",
        f"{n} held-out clips, greedy, 95 % intervals; total = {format_weight:g} format + {accuracy_weight:g} IoU",
        f"* the right form and steps {', '.join(map(str, guess))}, whatever is shown: no fixed answer scores higher",
    ]
    if not all(score.comparable for score in scores.values()):
        lines.append("** not comparable: over 10% of the completions have no answer, so the score is one of the form")
    return "\n".join(lines)


def example(run: str | Path, last_step: int) -> tuple[Rollout, Rollout] | None:
    """What was said of one held-out clip before and after: the first that was wrong and then right."""
    before = {each.record_id: each for each in read_rollouts(run, step=0, split="eval")}
    for after in read_rollouts(run, step=last_step, split="eval"):
        if after.rewards["accuracy"] == 1 and before[after.record_id].rewards["accuracy"] != 1:
            return before[after.record_id], after
    return None
