"""A metric over steps, smoothed and thinned, and the sections of curves that the report shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal

from qwenvl.report.run import EVALUATED, Run

MOST_POINTS = 600  # of a curve on the page, which has no more pixels


@dataclass(frozen=True)
class Trend:
    """The change of a metric from the first fifth of its values to the last fifth.

    Attributes:
        first, last: the means of the two fifths.
        change: their difference.
        ci95: half the width of the 95 % interval of ``change``, as if the values were independent.
        verdict: ``rises`` or ``falls`` where the interval excludes 0, else ``flat``. ``short`` below ten values.
    """

    first: float
    last: float
    change: float
    ci95: float
    verdict: Literal["rises", "falls", "flat", "short"]


def smoothed(values: Sequence[float], half_life: float) -> list[float]:
    """The exponential mean of the values so far, without the bias to the first one.

    A value ``half_life`` entries back weighs half as much as the newest. The weights are divided by their sum, so the
    mean of equal values is that value from the first entry on. NaN and infinity are skipped.

    Example:
        >>> smoothed([1.0, 0.0, 1.0], half_life=1)
        [1.0, 0.3333333333333333, 0.7142857142857143]
    """
    keep = 0.5 ** (1 / half_life)
    total = weight = 0.0
    means = []
    for value in values:
        if math.isfinite(value):
            total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight if weight else math.nan)
    return means


def half_life_of(length: int) -> float:
    """The half-life for smoothing a curve of ``length`` values: a thirtieth of it, at least 1.

    Example:
        >>> half_life_of(300), half_life_of(12)
        (10.0, 1.0)
    """
    return max(1.0, length / 30)


def thinned(
    steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[int], list[float], int]:
    """At most ``most`` points: the means of neighbours, each at the last of their steps, and how many go into one.

    Example:
        >>> thinned([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3)
        ([2, 4, 5], [2.0, 6.0, 9.0], 2)
    """
    size = max(1, math.ceil(len(steps) / most))
    starts = range(0, len(steps), size)
    means = [fmean(values[start : start + size]) for start in starts]
    return [steps[min(start + size, len(steps)) - 1] for start in starts], means, size


def trend(values: Sequence[float]) -> Trend | None:
    """Compare the first fifth of the finite values with the last. None where there is no value.

    Example:
        >>> trend([0.0, 0.1] * 5 + [1.0, 1.1] * 5).verdict
        'rises'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    some = max(1, len(finite) // 5)
    first, last = finite[:some], finite[-some:]
    change = fmean(last) - fmean(first)
    if some < 2:
        return Trend(fmean(first), fmean(last), change, math.nan, "short")
    ci95 = 1.96 * math.sqrt(variance(first) / some + variance(last) / some)
    verdict: Literal["rises", "falls", "flat"] = "flat" if abs(change) <= ci95 else "rises" if change > 0 else "falls"
    return Trend(fmean(first), fmean(last), change, ci95, verdict)


SECTIONS = {
    "learning": "Is it learning?",
    "stable": "Is it stable?",
    "fast": "Is it fast?",
    "data": "What did it read and write?",
}

PHASE = "time/"  # prefix of the seconds of a step by phase, whose suffix is _s
WHOLE_STEP = "time/step_s"


@dataclass(frozen=True)
class Shown:
    """The section and title of a metric, a line of help, and whether it is noisy, so that its curve is smoothed."""

    section: str
    title: str
    help: str = ""
    noisy: bool = True


SHOWN = {
    "reward/total": Shown("learning", "total reward", "should rise"),
    "reward/max": Shown("learning", "best reward", "the highest that a completion had"),
    "reward/std": Shown("learning", "reward spread within groups", "what there is to learn from"),
    "group/zero_std_frac": Shown("learning", "groups with equal rewards", "near 1 nothing is learned"),
    "group/unique_frac": Shown("learning", "different completions in a group", "near 0 nothing new is tried"),
    "penalty/total": Shown("learning", "total reward with the KL taken off", "what is compared"),
    "penalty/kl": Shown("stable", "KL of a completion to the reference", "nats"),
    "filter/kept_frac": Shown("learning", "groups kept by the filter", "those whose rewards differ"),
    "target/loss": Shown("learning", "loss of the warm-up", "nats for a token of the targets"),
    "kl": Shown("stable", "KL to the reference", "should stay below a few tenths"),
    "entropy": Shown("stable", "entropy", "a fall to 0 ends exploration"),
    "grad_norm": Shown("stable", "gradient norm", "before clipping"),
    "loss": Shown("stable", "loss", "near 0 on fresh completions: watch the reward"),
    "loss/policy": Shown("stable", "policy term of the loss"),
    "loss/kl": Shown("stable", "KL term of the loss"),
    "ratio/mean": Shown("stable", "importance ratio"),
    "async/staleness": Shown("stable", "age of the completions", "optimizer steps since the weights that sampled them"),
    "async/wait_s": Shown("fast", "wait for completions sampled ahead", "seconds of a step"),
    "learning_rate": Shown("stable", "learning rate", noisy=False),
    "parity/mean": Shown("stable", "sampler against trainer, mean", "difference of log-probs of the same tokens"),
    "parity/max": Shown("stable", "sampler against trainer, largest"),
    "completion/length_mean": Shown("data", "completion length, mean", "tokens"),
    "completion/length_max": Shown("data", "completion length, longest", "tokens"),
    "completion/truncated_frac": Shown("data", "completions cut at the limit", "above a few percent is too much"),
    "prompt/tokens": Shown("data", "prompt tokens"),
    "prompt/frames": Shown("data", "frames for each prompt"),
}
"""Metrics in the order of the page. Others follow them, in the section of their first word."""
ALWAYS = {"reward/total", "kl", "completion/length_mean"}  # not folded away even if they never change

BY_WORD = {
    **dict.fromkeys(("reward", "group", "filter", "dataset", "target"), "learning"),
    **dict.fromkeys(("loss", "ratio", "parity", "kl", "nonfinite"), "stable"),
    **dict.fromkeys(("time", "memory"), "fast"),
    **dict.fromkeys(("completion", "prompt", "data", "epoch", "num_input_tokens_seen"), "data"),
}
OF_EVALUATION = "eval_"  # prefix of its metrics
PACE = ("_runtime", "_per_second")  # suffixes of its speed metrics
AT_THE_END = ("train_", "total_flos")  # prefixes of the Trainer's own line at the end of training
NOT_CURVES = {"step", "epoch", "num_input_tokens_seen", WHOLE_STEP}


def shown(metric: str) -> Shown:
    """The section, title and help of a metric.

    Example:
        >>> shown("reward/format")
        Shown(section='learning', title='reward: format', help='')
    """
    if metric in SHOWN:
        return SHOWN[metric]
    word, _, rest = metric.partition("/")
    title = metric.replace("_", " ") if not rest else f"{word.replace('_', ' ')}: {rest}"
    if metric.startswith(OF_EVALUATION):
        return Shown("fast" if metric.endswith(PACE) else "learning", title)
    return Shown(BY_WORD.get(word, "stable"), title)


def charts(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The charts of each section, each with a curve for every run that has the metric, as the page reads them.

    A chart has ``metric, title, help, main`` and ``curves``: ``run`` (its number), ``steps``, ``raw``, ``smooth`` and
    ``each`` (how many rows went into a point). An evaluation has ``points`` instead of ``raw`` and ``smooth``:
    ``mean`` and ``ci95``. Numbers that are not finite are null.
    """
    sections: dict[str, list[dict[str, Any]]] = {name: [] for name in SECTIONS}
    sections["learning"] = _evaluations(runs)
    for metric in _curves(runs):
        how = shown(metric)
        curves = [curve for number, run in enumerate(runs) if (curve := _curve(number, run, metric))]
        moves = any(value != curve["raw"][0] for curve in curves for value in curve["raw"])
        main = metric in ALWAYS or (moves and (metric in SHOWN or metric.startswith("reward/")))
        chart = {"metric": metric, "title": how.title, "help": how.help, "main": main, "curves": curves}
        sections[how.section].append(chart)
    return sections


def _curves(runs: Sequence[Run]) -> list[str]:
    found = dict.fromkeys(name for run in runs for name in run.metrics())
    evaluated = tuple(f"{name}_" for run in runs for name in run.evaluations())
    kept = [
        name
        for name in found
        if name not in NOT_CURVES and not name.startswith((*AT_THE_END, *evaluated)) and not is_phase(name)
    ]
    first = ["reward/total", *(name for name in kept if name.startswith("reward/"))]
    order = {name: place for place, name in enumerate(dict.fromkeys([*first, *SHOWN]))}
    return sorted(kept, key=lambda name: order.get(name, len(order)))


def is_phase(metric: str) -> bool:
    """Whether a metric is the seconds of one phase of a step."""
    return metric.startswith(PHASE) and metric.endswith("_s") and metric != WHOLE_STEP


def _curve(number: int, run: Run, metric: str) -> dict[str, Any] | None:
    found = run.values(metric)
    if not found:
        return None
    steps, values = [step for step, _ in found], [value for _, value in found]
    noisy = metric not in SHOWN or SHOWN[metric].noisy
    smooth = smoothed(values, half_life_of(len(values))) if noisy else values
    places, raw, each = thinned(steps, values)
    bold = smooth[each - 1 :: each] + ([smooth[-1]] if len(smooth) % each else [])
    return {"run": number, "steps": places, "raw": finite(raw), "smooth": finite(bold), "each": each}


def _evaluations(runs: Sequence[Run]) -> list[dict[str, Any]]:
    charts = []
    for name in dict.fromkeys(name for run in runs for name in run.evaluations()):
        curves: list[dict[str, Any]] = []
        for number, run in enumerate(runs):
            if points := run.evaluations().get(name):
                steps = [each.step for each in points]
                means, widths = finite([each.reward for each in points]), finite([each.ci95 for each in points])
                curves.append({"run": number, "steps": steps, "points": {"mean": means, "ci95": widths}})
        moves = name == "eval" or any(len(curve["steps"]) > 1 for curve in curves)
        title = "held-out reward" if name == "eval" else f"held-out reward: {name}"
        help = "mean total reward with its 95 % interval"
        metric = f"{name}{EVALUATED}"
        charts.append({"metric": metric, "title": title, "help": help, "main": moves, "curves": curves})
    return charts


def phases(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Seconds of a step by phase for each run: ``run, steps, names, values`` (a list for each name), and ``means``."""
    found = []
    for number, run in enumerate(runs):
        names = [name for name in run.metrics() if is_phase(name)]
        rows = [row for row in run.rows if any(name in row for name in names)]
        if not rows:
            continue
        steps = [int(row["step"]) for row in rows]
        curves = [thinned(steps, [row.get(name, 0.0) for row in rows]) for name in names]
        means = [sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names]
        short = [name.removeprefix(PHASE).removesuffix("_s") for name in names]
        values = [finite(values) for _, values, _ in curves]
        found.append({"run": number, "steps": curves[0][0], "names": short, "values": values, "means": finite(means)})
    return found


def finite(values: Sequence[float | None]) -> list[float | None]:
    """Each number with six digits, which is more than a screen shows. None for NaN and infinity."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.6g}") for value in values]
