"""A run folder as the report reads it: settings, rows of numbers, and the curves of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal, NamedTuple

from qwenvl.run_log.health import LogEntry, history_of
from qwenvl.run_log.log import RunLogError, read_config, read_metrics

EVALUATED = "_total_reward"  # suffix of the mean reward of an evaluation, after the evaluation's name
TELL_NOTHING = {"run", "runs", "out", "output", "results"}  # names of folders


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        name: unique in the report.
        settings, versions: of ``run.json``.
        finished: the last step of a run that has ended, else None.
        rows: the lines of ``metrics.jsonl``, in order.
        launch: ``command``, ``started`` and ``hardware``, of ``run.json``.
        set_by_user: the names of the settings that were given. None: the run does not say.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    finished: int | None
    rows: Sequence[Mapping[str, float]]
    launch: Mapping[str, str] = field(default_factory=dict)
    set_by_user: Sequence[str] | None = None

    @property
    def steps(self) -> int:
        """The last step that has a row."""
        return int(max((row["step"] for row in self.rows), default=0))

    def values(self, metric: str) -> list[tuple[int, float]]:
        """Step and value of each row that has the metric."""
        return [(int(row["step"]), row[metric]) for row in self.rows if metric in row]

    def metrics(self) -> list[str]:
        """The names of all metrics, in the order they first occur."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def history(self) -> list[LogEntry]:
        """The rows of optimizer steps for the rules of ``health.py``. One process is assumed if none are logged."""
        setting = self.settings.get
        prompts = setting("per_device_train_batch_size", 1) * setting("gradient_accumulation_steps", 1)
        rows = [row for row in self.rows if "loss" in row]
        return history_of(rows, prompts * (setting("processes") or 1), setting("num_iterations") or 1)

    def evaluations(self) -> dict[str, list[dict[str, Any]]]:
        """The points of each evaluation by its name: ``step``, mean ``reward``, ``ci95`` and ``n`` (prompts).

        ``ci95`` is half the width of the 95 % interval. It and ``n`` are None where the run did not log them. Where a
        step was evaluated twice, the later row counts.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for name in self.metrics():
            if name.endswith(EVALUATED):
                by_step = {int(row["step"]): row for row in self.rows if name in row}
                found[name.removesuffix(EVALUATED)] = [
                    {
                        "step": step,
                        "reward": row[name],
                        "ci95": row.get(f"{name}_ci95"),
                        "n": None if (n := row.get(f"{name}_n")) is None else int(n),
                    }
                    for step, row in sorted(by_step.items())
                ]
        return found


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Read run folders.

    The name of each is its folder's, with as many parent folders as make it unique, and at least one for a folder
    called ``run`` or the like.

    Raises:
        RunLogError: a folder is not of a run, is given twice, or has a damaged file.
    """
    paths = [Path(folder).resolve() for folder in folders]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise RunLogError(f"{min(twice)}: given twice; each run is shown once")
    runs = []
    for path, name in zip(paths, _names(paths), strict=True):
        content = read_config(path)
        versions = content.get("versions") or {}
        ended = content.get("finished", content.get("trained"))
        runs.append(
            Run(
                name=name,
                folder=path,
                settings=content["config"],
                versions=versions,
                finished=ended,
                rows=read_metrics(path),
                launch=content.get("launch", {}),
                set_by_user=content.get("set_by_user"),
            )
        )
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    parts = 2 if {path.name for path in paths} & TELL_NOTHING else 1
    while True:
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        parts += 1


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings in which runs differ, by name, a value for each run. None where a run has no such setting.

    Paths of the run's own output are left out: they always differ.

    Example:
        >>> differing_settings([first, second])
        {'learning_rate': [1e-06, 5e-06]}
    """
    names = dict.fromkeys(name for run in runs for name in run.settings)
    own = {"output_dir", "logging_dir", "run_name"}
    values = {name: [run.settings.get(name) for run in runs] for name in names if name not in own}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


# ---- curves: a metric over steps, thinned, and the sections of curves that the report shows

MOST_POINTS = 600  # of a curve on the page, which has no more pixels


class Trend(NamedTuple):
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


class Shown(NamedTuple):
    """The section, title and unit of a metric, and a line of help."""

    section: str
    title: str
    unit: str = ""
    help: str = ""


SHOWN = {
    "reward/total": Shown("learning", "total reward", "reward", "should rise"),
    "reward/max": Shown("learning", "best reward", "reward", "the highest of any completion"),
    "reward/std": Shown("learning", "reward spread within groups", "standard deviation", "what there is to learn from"),
    "group/zero_std_frac": Shown("learning", "groups with equal rewards", "share of groups", "at 1 nothing is learned"),
    "group/count": Shown("data", "groups of an entry", "groups", "over all processes"),
    "group/unique_frac": Shown("learning", "different completions", "share of a group", "near 0 nothing new is tried"),
    "look/looked_frac": Shown("learning", "completions that look", "share of completions", "at 0 the tools are idle"),
    "look/calls": Shown("learning", "looks of a completion", "calls"),
    "look/reward_with": Shown("learning", "reward with a look", "reward", "of groups that also have some without"),
    "look/reward_without": Shown("learning", "reward without a look", "reward", "of the same groups"),
    "look/evidence_iou": Shown("learning", "looks at the evidence", "IoU in time", "of completions without a look: 0"),
    "look/error_frac": Shown("data", "calls that were refused", "share of calls", "the model reads why"),
    "look/tokens": Shown("data", "what tools append to a completion", "tokens"),
    "look/seconds": Shown("fast", "time of a call", "seconds"),
    "penalty/total": Shown("learning", "total reward minus the KL penalty", "reward", "what groups are compared by"),
    "penalty/kl": Shown("stable", "KL of a completion to the reference", "nats"),
    "filter/kept_frac": Shown("learning", "groups kept by the filter", "share of groups", "those whose rewards differ"),
    "target/loss": Shown("learning", "loss of the warm-up", "nats per token"),
    "kl": Shown("stable", "KL to the reference", "nats per token", "should stay below a few tenths"),
    "teacher/kl": Shown("learning", "KL to the teacher", "nats per token", "should fall, from above 0"),
    "teacher/agree_frac": Shown("learning", "top token as the teacher's", "share of tokens", "should rise"),
    "teacher/clipped_frac": Shown("stable", "teacher and policy too far apart", "share of tokens", "near 0 is good"),
    "teacher/vision_frac": Shown("stable", "decided by the pictures, for the teacher", "share of a token"),
    "entropy": Shown("stable", "entropy", "nats per token", "a fall to 0 ends exploration"),
    "grad_norm": Shown("stable", "gradient norm", "norm", "before clipping"),
    "loss": Shown("stable", "loss", "loss", "near 0 on fresh completions: watch the reward"),
    "loss/policy": Shown("stable", "policy term of the loss", "loss"),
    "loss/kl": Shown("stable", "KL term of the loss", "loss"),
    "ratio/mean": Shown("stable", "importance ratio", "ratio"),
    "async/staleness": Shown("stable", "age of the completions", "optimizer steps", "since they were sampled"),
    "async/wait_s": Shown("fast", "wait for completions sampled ahead", "seconds per step"),
    "sampling/tokens_per_forward": Shown(
        "fast", "tokens of a completion per forward", "tokens", "1 without drafts that are right"
    ),
    "sampling/accepted_frac": Shown("fast", "right tokens of drafts", "share of drafted tokens"),
    "learning_rate": Shown("stable", "learning rate", "learning rate"),
    "parity/mean": Shown("stable", "sampler against trainer, mean", "nats", "difference of the log-probs of a token"),
    "parity/max": Shown("stable", "sampler against trainer, largest", "nats"),
    "completion/length_mean": Shown("data", "completion length, mean", "tokens"),
    "completion/length_max": Shown("data", "completion length, longest", "tokens"),
    "completion/truncated_frac": Shown(
        "data", "truncated completions", "share of completions", "above a few percent is too much"
    ),
    "completion/thinking_mean": Shown("data", "length of the thinking part, mean", "tokens", "0 without one"),
    "completion/thinking_cut_frac": Shown(
        "data", "truncated inside the thinking part", "share of completions", "they never reach an answer"
    ),
    "prompt/tokens": Shown("data", "prompt length", "tokens"),
    "prompt/frames": Shown("data", "frames of a prompt", "frames"),
}
"""Metrics in the order of the page. Others follow them, in the section of their first word."""
ALWAYS = {"reward/total", "kl", "completion/length_mean"}  # not folded away even if they never change

BY_WORD = {
    **dict.fromkeys(("reward", "group", "filter", "dataset", "target"), "learning"),
    **dict.fromkeys(("loss", "ratio", "parity", "kl", "nonfinite"), "stable"),
    **dict.fromkeys(("time", "memory", "sampling"), "fast"),
    **dict.fromkeys(("completion", "prompt", "data", "epoch", "num_input_tokens_seen"), "data"),
}
UNITS = (("reward/", "reward"), ("time/", "seconds"), ("loss", "loss"))  # by prefix
UNIT_ENDINGS = (("_per_second", "per second"), ("_runtime", "seconds"), ("_s", "seconds"), ("_frac", "share"))
AT_THE_END = ("train_", "total_flos")  # prefixes of the Trainer's own line at the end of training
NOT_CURVES = {"step", "epoch", "num_input_tokens_seen", WHOLE_STEP}


def shown(metric: str) -> Shown:
    """The section, title, unit and help of a metric.

    Example:
        >>> shown("reward/format")
        Shown(section='learning', title='reward: format', unit='reward', help='')
    """
    if metric in SHOWN:
        return SHOWN[metric]
    word, _, rest = metric.partition("/")
    title = metric.replace("_", " ") if not rest else f"{word.replace('_', ' ')}: {rest}"
    units = [unit for end, unit in UNIT_ENDINGS if metric.endswith(end)]
    units += [unit for start, unit in UNITS if metric.startswith(start)]
    section = BY_WORD.get(word, "stable")
    if metric.startswith("eval_"):
        section = "fast" if metric.endswith(("_runtime", "_per_second")) else "learning"
    return Shown(section, title, (*units, "value")[0])


def charts(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The charts of each section, each with a curve for every run that has the metric, as the page reads them.

    A chart has ``metric, title, unit, help, main`` and ``curves``: ``run`` (its number), ``steps``, ``values`` and
    ``each`` (how many rows went into a point). An evaluation also has ``ci95``. Numbers that are not finite are null.
    """
    sections: dict[str, list[dict[str, Any]]] = {name: [] for name in SECTIONS}
    sections["learning"] = _evaluations(runs)
    for metric in _curves(runs):
        how = shown(metric)
        curves: list[dict[str, Any]] = []
        for number, run in enumerate(runs):
            if found := run.values(metric):
                steps, values, each = thinned([step for step, _ in found], [value for _, value in found])
                curves.append({"run": number, "steps": steps, "values": finite(values), "each": each})
        moves = any(value != curve["values"][0] for curve in curves for value in curve["values"])
        main = metric in ALWAYS or (moves and (metric in SHOWN or metric.startswith("reward/")))
        chart = {"metric": metric, "title": how.title, "unit": how.unit, "help": how.help, "main": main}
        sections[how.section].append(chart | {"curves": curves})
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


def _evaluations(runs: Sequence[Run]) -> list[dict[str, Any]]:
    charts = []
    for name in dict.fromkeys(name for run in runs for name in run.evaluations()):
        curves: list[dict[str, Any]] = []
        for number, run in enumerate(runs):
            if points := run.evaluations().get(name):
                steps = [each["step"] for each in points]
                means, widths = (finite([each[name] for each in points]) for name in ("reward", "ci95"))
                curves.append({"run": number, "steps": steps, "values": means, "ci95": widths, "each": 1})
        moves = name == "eval" or any(len(curve["steps"]) > 1 for curve in curves)
        title = "held-out reward" if name == "eval" else f"held-out reward: {name}"
        chart = {"metric": f"{name}{EVALUATED}", "title": title, "unit": "reward"}
        charts.append(chart | {"help": "mean with its 95 % interval", "main": moves, "curves": curves})
    return charts


def clocks(runs: Sequence[Run]) -> list[dict[str, Any] | None]:
    """The hours of training of each run by step: ``steps`` and ``hours``. None for a run without seconds of a step.

    The seconds of a step are the sum of its phases. Runs of earlier versions log the whole step too.
    """
    found: list[dict[str, Any] | None] = []
    for run in runs:
        steps, hours, last = [0], [0.0], 0
        for step, seconds in run.values(WHOLE_STEP) or seconds_of_steps(run):
            steps.append(step)
            hours.append(hours[-1] + (step - last) * seconds / 3600)
            last = step
        steps, hours, _ = thinned(steps, hours)
        found.append({"steps": steps, "hours": finite(hours)} if last else None)
    return found


def seconds_of_steps(run: Run) -> list[tuple[int, float]]:
    """Step and sum of the phases of each row that has any."""
    names = [name for name in run.metrics() if is_phase(name)]
    rows = [row for row in run.rows if any(name in row for name in names)]
    return [(int(row["step"]), sum(row.get(name, 0.0) for name in names)) for row in rows]


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
