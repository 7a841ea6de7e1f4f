"""A run folder as the report reads it: settings, rows of numbers, and the curves of its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal, NamedTuple

from qwenvl.run_log.health import LogEntry, history_of
from qwenvl.run_log.log import RunLogError, read_config, read_metrics
from qwenvl.types import EVALUATED

TELL_NOTHING = {"run", "runs", "out", "output", "results"}  # names of folders


@dataclass(frozen=True)
class EvaluationPoint:
    """The mean total reward of an evaluation at one step.

    Attributes:
        ci95: half the width of the 95 % interval of ``reward``.
        n: number of prompts. It and ``ci95`` are None where the run did not log them, and ``ci95`` also where the
            prompts are those of one clip, which have no interval.
    """

    step: int
    reward: float
    ci95: float | None
    n: int | None


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
        return each_once(self.rows)

    def history(self) -> list[LogEntry]:
        """The rows of optimizer steps for the rules of ``health.py``. One process is assumed if none are logged."""
        setting = self.settings.get
        micro_batch = setting("per_device_train_batch_size", 1)
        accumulation = setting("gradient_accumulation_steps", 1)
        processes = setting("processes") or 1
        rows = [row for row in self.rows if "loss" in row]
        return history_of(
            rows, prompts=micro_batch * accumulation * processes, iterations=setting("num_iterations") or 1
        )

    def evaluations(self) -> dict[str, list[EvaluationPoint]]:
        """The points of each evaluation by its name. Where a step was evaluated twice, the later row counts.

        One whose value is not finite has no point.
        """
        found = {}
        for name in self.metrics():
            if name.endswith(EVALUATED):
                by_step = {int(row["step"]): row for row in self.rows if math.isfinite(row.get(name, math.nan))}
                points = [_point(step, row, name) for step, row in sorted(by_step.items())]
                if points:
                    found[name.removesuffix(EVALUATED)] = points
        return found


def each_once(collections: Iterable[Iterable[str]]) -> list[str]:
    """The items of all collections, each once, in the order in which they first occur.

    Example:
        >>> each_once([["a", "b"], ["c", "a"]])
        ['a', 'b', 'c']
    """
    items: dict[str, None] = {}
    for collection in collections:
        items |= dict.fromkeys(collection)
    return list(items)


def _point(step: int, row: Mapping[str, float], metric: str) -> EvaluationPoint:
    n = row.get(f"{metric}_n")
    ci95 = row.get(f"{metric}_ci95", math.nan)
    return EvaluationPoint(
        step=step,
        reward=row[metric],
        ci95=ci95 if math.isfinite(ci95) else None,
        n=None if n is None else int(n),  # metrics are logged as floats
    )


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Read run folders.

    The name of each is its folder's, with as many parent folders as make it unique, and at least one for a folder
    called ``run`` or the like.

    Raises:
        RunLogError: a folder is not of a run, is given twice, or has a damaged file.
    """
    paths = [Path(folder).resolve() for folder in folders]
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise RunLogError(f"{min(twice)}: given twice; each run is shown once")
    runs = []
    for path, name in zip(paths, _names(paths), strict=True):
        content = read_config(path)
        runs.append(
            Run(
                name=name,
                folder=path,
                settings=content["config"],
                versions=content.get("versions") or {},
                finished=content.get("finished", content.get("trained")),
                rows=read_metrics(path),
                launch=content.get("launch", {}),
                set_by_user=content.get("set_by_user"),
            )
        )
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths, of as many parts as make all of them different."""
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
    differing = {}
    for name in each_once(run.settings for run in runs):
        if name in ("output_dir", "logging_dir", "run_name"):
            continue
        values = [run.settings.get(name) for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = values
    return differing


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
    """At most ``most`` points of a curve: means of neighbours at the last of their steps, and how many go into one.

    Example:
        >>> thinned([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3)
        ([2, 4, 5], [2.0, 6.0, 9.0], 2)
    """
    size = max(1, math.ceil(len(steps) / most))
    last_steps = []
    means = []
    for start in range(0, len(steps), size):
        end = min(start + size, len(steps))
        last_steps.append(steps[end - 1])
        means.append(_mean(values[start:end]))
    return last_steps, means, size


def _mean(values: Sequence[float]) -> float:
    """The mean of some values. NaN where it is none, as of infinity and minus infinity."""
    try:
        return fmean(values)
    except ValueError:
        return math.nan


def trend(values: Sequence[float]) -> Trend | None:
    """Compare the first fifth of the finite values with the last. None where there is no value.

    Example:
        >>> trend([0.0, 0.1] * 5 + [1.0, 1.1] * 5).verdict
        'rises'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    fifth = max(1, len(finite) // 5)
    first = finite[:fifth]
    last = finite[-fifth:]
    change = fmean(last) - fmean(first)
    ci95 = math.nan  # one value has no variance
    verdict: Literal["rises", "falls", "flat", "short"] = "short"
    if fifth >= 2:
        ci95 = 1.96 * math.sqrt(variance(first) / fifth + variance(last) / fifth)
        if abs(change) <= ci95:
            verdict = "flat"
        else:
            verdict = "rises" if change > 0 else "falls"
    return Trend(first=fmean(first), last=fmean(last), change=change, ci95=ci95, verdict=verdict)


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
    "eval_loss": Shown("learning", "loss of held-out targets", "nats per token", "should fall as that of the warm-up"),
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
OF_TOTAL = {"reward/total", "reward/max", "reward/std"}
ALWAYS = {"reward/total", "kl", "completion/length_mean"}  # not folded away even if they never change

BY_WORD = {
    **dict.fromkeys(("reward", "group", "filter", "dataset", "target"), "learning"),
    **dict.fromkeys(("loss", "ratio", "parity", "kl", "nonfinite"), "stable"),
    **dict.fromkeys(("time", "memory", "sampling"), "fast"),
    **dict.fromkeys(("completion", "prompt", "data", "epoch", "num_input_tokens_seen"), "data"),
}
UNITS = (("reward/", "reward"), ("time/", "seconds"), ("loss", "loss"))  # by prefix
UNIT_ENDINGS = (
    ("_per_second", "per second"),
    ("_runtime", "seconds"),
    ("_s", "seconds"),
    ("_gb", "GB"),
    ("_frac", "share"),
)
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
    title = f"{word.replace('_', ' ')}: {rest}" if rest else metric.replace("_", " ")
    section = BY_WORD.get(word, "stable")
    if metric.startswith("eval_"):
        section = "fast" if metric.endswith(("_runtime", "_per_second")) else "learning"
    return Shown(section, title, _unit_of(metric))


def _unit_of(metric: str) -> str:
    """The unit that the name of a metric ends with, else the one that it begins with."""
    for ending, unit in UNIT_ENDINGS:
        if metric.endswith(ending):
            return unit
    for prefix, unit in UNITS:
        if metric.startswith(prefix):
            return unit
    return "value"


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
        moves = False
        for number, run in enumerate(runs):
            found = run.values(metric)
            if not found:
                continue
            steps, means, rows_of_a_point = thinned([step for step, _ in found], [value for _, value in found])
            values = finite(means)
            moves = moves or any(value != values[0] for value in values)
            curves.append({"run": number, "steps": steps, "values": values, "each": rows_of_a_point})
        chart = {
            "metric": metric,
            "title": how.title,
            "unit": how.unit,
            "help": how.help,
            "main": metric in ALWAYS or (moves and (metric in SHOWN or metric.startswith("reward/"))),
            "curves": curves,
        }
        sections[how.section].append(chart)
    return sections


def _curves(runs: Sequence[Run]) -> list[str]:
    """The metrics that have a chart, in the order of the page: rewards, then those of ``SHOWN``, then all others."""
    evaluations = each_once(run.evaluations() for run in runs)
    of_evaluations = [f"{name}_" for name in evaluations]  # prefixes of their metrics
    kept = []
    for name in each_once(run.metrics() for run in runs):
        elsewhere = name in NOT_CURVES or is_phase(name) or name.startswith((*AT_THE_END, *of_evaluations))
        if not elsewhere:
            kept.append(name)
    rewards = [name for name in kept if name.startswith("reward/")]
    order = list(dict.fromkeys(["reward/total", *rewards, *SHOWN]))
    places = {name: place for place, name in enumerate(order)}
    return sorted(kept, key=lambda name: places.get(name, len(places)))


def is_phase(metric: str) -> bool:
    """Whether a metric is the seconds of one phase of a step."""
    return metric.startswith(PHASE) and metric.endswith("_s") and metric != WHOLE_STEP


def is_component(metric: str) -> bool:
    """Whether a metric is the mean of one reward function, and not of the total reward."""
    return metric.startswith("reward/") and metric.count("/") == 1 and metric not in OF_TOTAL


def _evaluations(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The charts of the evaluations of the runs."""
    evaluations = [run.evaluations() for run in runs]
    charts = []
    for name in each_once(evaluations):
        curves = []
        several_points = False
        for number, of_run in enumerate(evaluations):
            points = of_run.get(name)
            if not points:
                continue
            several_points = several_points or len(points) > 1
            curve = {
                "run": number,
                "steps": [point.step for point in points],
                "values": finite([point.reward for point in points]),
                "ci95": finite([point.ci95 for point in points]),
                "each": 1,
            }
            curves.append(curve)
        chart = {
            "metric": f"{name}{EVALUATED}",
            "title": "held-out reward" if name == "eval" else f"held-out reward: {name}",
            "unit": "reward",
            "help": "mean with its 95 % interval",
            "main": name == "eval" or several_points,
            "curves": curves,
        }
        charts.append(chart)
    return charts


def clocks(runs: Sequence[Run]) -> list[dict[str, Any] | None]:
    """The hours of training of each run by step: ``steps`` and ``hours``. None for a run without seconds of a step.

    The seconds of a step are the sum of its phases. Runs of earlier versions log the whole step too.
    """
    found: list[dict[str, Any] | None] = []
    for run in runs:
        steps = [0]
        hours = [0.0]
        for step, seconds in run.values(WHOLE_STEP) or seconds_of_steps(run):
            # A row has the mean of the steps since the row before.
            hours.append(hours[-1] + (step - steps[-1]) * seconds / 3600)
            steps.append(step)
        if steps[-1] == 0:  # no row, or only one from before the first step
            found.append(None)
            continue
        steps, hours, _ = thinned(steps, hours)
        found.append({"steps": steps, "hours": finite(hours)})
    return found


def seconds_of_steps(run: Run) -> list[tuple[int, float]]:
    """Step and sum of the phases of each row that has any."""
    names, rows = _phase_rows(run)
    return [(int(row["step"]), sum(row.get(name, 0.0) for name in names)) for row in rows]


def _phase_rows(run: Run) -> tuple[list[str], list[Mapping[str, float]]]:
    """The metrics that are phases of a step, and the rows that have any of them."""
    names = [name for name in run.metrics() if is_phase(name)]
    rows = [row for row in run.rows if any(name in row for name in names)]
    return names, rows


def seconds_of_phases(run: Run) -> dict[str, float | None]:
    """The mean seconds of a step that each phase takes, by the name of its metric. A step without the phase has 0."""
    names, rows = _phase_rows(run)
    means = [sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names]
    return dict(zip(names, finite(means), strict=True))


def phases(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Seconds of a step by phase for each run: ``run, steps, names, values`` (a list for each name), and ``means``."""
    found = []
    for number, run in enumerate(runs):
        names, rows = _phase_rows(run)
        if not rows:
            continue
        all_steps = [int(row["step"]) for row in rows]
        steps: list[int] = []
        values = []
        for name in names:
            seconds = [row.get(name, 0.0) for row in rows]
            steps, points, _ = thinned(all_steps, seconds)  # the same steps for each name
            values.append(finite(points))
        found.append(
            {
                "run": number,
                "steps": steps,
                "names": [name.removeprefix(PHASE).removesuffix("_s") for name in names],
                "values": values,
                "means": list(seconds_of_phases(run).values()),
            }
        )
    return found


def finite(values: Sequence[float | None]) -> list[float | None]:
    """Each number with six digits, which is more than a screen shows. None for NaN and infinity."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.6g}") for value in values]
