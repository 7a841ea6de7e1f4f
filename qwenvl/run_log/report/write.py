"""The folder of a report: pages, ``summary.json``, warnings. The same runs give a folder the same files again."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qwenvl.run_log.health import Finding
from qwenvl.run_log.report.difference import TRAIN, HeldOutDifference, held_out_differences
from qwenvl.run_log.report.page_data import PageData, as_json, write_if_other
from qwenvl.run_log.report.pages import (
    DROPPED,
    EQUAL,
    SUSPECT,
    TRUNCATED,
    GroupRow,
    Strip,
    write_groups,
)
from qwenvl.run_log.report.timelines import Reading
from qwenvl.run_log.run import (
    AT_THE_END,
    SECTIONS,
    Run,
    charts,
    clocks,
    differing_settings,
    each_once,
    finite,
    phases,
    seconds_of_phases,
    trend,
)
from qwenvl.run_log.warnings import warnings_of
from qwenvl.types import EVALUATED_LOSS

if TYPE_CHECKING:
    from PIL.Image import Image

HERE = Path(__file__).parent  # base.html, which pages extend, and macros.html
APP = HERE / "app"
# In the order that they need each other.
SCRIPTS = ("core.js", "timeline.js", "charts.js", "filter.js", "group.js", "list.js", "browser.js")
STYLE = "report.css"
TILES = (
    ("reward/total", "reward in training"),
    ("kl", "KL"),
    ("completion/length_mean", "tokens a completion"),
    ("target/loss", "loss of the warm-up"),
)


class ReportError(ValueError):
    """A report can't be written where it should be."""


Picture = dict[str, Any]
"""The file of a strip: its ``columns`` and ``rows`` of pictures, and the ``ratio`` of width and height of one of them.
Without a file: ``problem``, the reason."""


@dataclass(frozen=True)
class Written:
    """A report that was written.

    Attributes:
        page: the file to open.
        summary: the content of ``summary.json``.
        strips: the pictures that the page would show, the newest first.
    """

    page: Path
    summary: Mapping[str, Any]
    strips: list[Strip]

    @property
    def folder(self) -> Path:
        """The folder of the report."""
        return self.page.parent


def write_report(
    runs: Sequence[Run], folder: str | Path, read: Reading, defaults: Mapping[str, Any] | None = None
) -> Written:
    """Write ``index.html``, ``summary.json``, the page's scripts and its data into a folder.

    Pictures of an earlier report stay. ``write_pictures`` adds others.

    Args:
        read: reads answers and solutions.
        defaults: of the settings, by name. The page lists those that differ.

    Raises:
        ReportError: the folder holds something that is no report.
        RunLogError: a file of a run is damaged.

    Example:
        >>> write_report(read_runs(["runs/sop"]), "runs/sop/report", read).page
        PosixPath('runs/sop/report/index.html')
    """
    folder = Path(folder)
    begin_report(folder)
    data = PageData.of(folder)
    groups: list[list[GroupRow]] = []  # of each run
    strips: list[list[Strip]] = []
    for number, run in enumerate(runs):
        rows_of_run, strips_of_run = write_groups(run, number, data, read)
        groups.append(rows_of_run)
        strips.append(strips_of_run)
    for old in data.folder.glob("run-*"):
        number_of_run = old.name.removeprefix("run-")
        if number_of_run.isdecimal() and int(number_of_run) >= len(runs):
            shutil.rmtree(old)
    curves = {
        "runs": [run.name for run in runs],
        "sections": charts(runs),
        "phases": phases(runs),
        "clocks": clocks(runs),
    }
    data.write("curves.js", f"report.curves({as_json(curves)})")
    differences = list(held_out_differences([run.name for run in runs], groups))
    facts = summary(runs, groups, differences)
    write_if_other(folder / "summary.json", json.dumps(facts, indent=1, default=repr, allow_nan=False) + "\n")
    named = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    page = write_index(
        folder,
        "index.html",
        SCRIPTS,
        title=f"Report of {named}",
        runs=facts["runs"],
        differences=differences,
        facts=facts_of(runs),
        settings=changed_settings(runs, defaults or {}),
        sections=SECTIONS,
        tiles=TILES,
        evaluations=each_once(run["evaluations"] for run in facts["runs"]),
        metrics=set(each_once(run["trends"] for run in facts["runs"])),
    )
    # One strip of each run in turn, so that every run has pictures where --pictures allows fewer than there are.
    in_turn: list[Strip] = []
    for turn in zip_longest(*strips):
        in_turn += [strip for strip in turn if strip is not None]
    return Written(page=page, summary=facts, strips=list(dict.fromkeys(in_turn)))


def write_index(folder: Path, template: str, scripts: Sequence[str], **values: Any) -> Path:
    """Write ``index.html``, its scripts and style, and an empty list of pictures if there is none. Return the page."""
    if not (folder / "data" / "pictures.js").exists():
        write_pictures(folder, {})
    for name in (*scripts, STYLE):
        write_if_other(folder / "app" / name, (APP / name).read_text(encoding="utf-8"))
    key = PageData.of(folder).key
    write_if_other(folder / "index.html", render(HERE / template, scripts=scripts, key=key, **values))
    return folder / "index.html"


def begin_report(folder: Path) -> None:
    """Make the folder of a report, or take that of an earlier one.

    The list of pictures is the first file of a report, and tells it from a folder of the user's own.

    Raises:
        ReportError: the path is not a folder, or a folder with files that are not of a report.
    """
    check_no_links(folder)
    if (folder / "data" / "pictures.js").is_file():
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReportError(f"{folder}: holds something that is no report; give another folder with --out")
    write_pictures(folder, {})


def check_no_links(folder: Path) -> None:
    """Raise ReportError where files of a page would be written or deleted in another place than its folder."""
    data = folder / "data"
    for part in (data, *data.glob("run-*"), *(folder / name for name in ("app", "pictures", "clips"))):
        if part.is_symlink():  # a folder of a page may come from somebody else
            raise ReportError(f"{part}: is a link to another place; remove it, or write to another folder")


def write_pictures(folder: Path, pictures: Mapping[str, Picture]) -> None:
    """Write the list of strips in the folder ``pictures``, by their keys, with the reasons why others are missing."""
    PageData.of(folder).write("pictures.js", f"report.pictures({as_json(dict(sorted(pictures.items())))})")


def facts_of(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """The model, the data, the command, the hardware and the versions: each by name, a text for each run."""
    facts = [_facts_of_run(run) for run in runs]
    known = [name for name in facts[0] if any(each[name] for each in facts)]
    return [(name, [_text(each[name]) for each in facts]) for name in known]


def _facts_of_run(run: Run) -> dict[str, Any]:
    return {
        "model": run.settings.get("start_from_weights") or run.settings.get("model_name_or_path"),
        "training data": run.settings.get("dataset_use"),
        "held-out data": run.settings.get("eval_dataset_use"),
        "folder": str(run.folder),
        "steps": f"{run.steps:,}" if run.finished is not None else f"{run.steps:,}, not finished",
        "started": run.launch.get("started"),
        "command": run.launch.get("command"),
        "hardware": run.launch.get("hardware"),
        "processes": run.settings.get("processes"),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }


def changed_settings(runs: Sequence[Run], defaults: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The settings that were set or that differ between runs: flag, default, and the text of each run's value.

    A setting that resolved itself on a machine, such as the number of workers, is not listed. Runs of earlier versions
    do not say what was set: of these it is what differs from its default.
    """
    shown_above = {"model_name_or_path", "start_from_weights", "dataset_use", "eval_dataset_use", "output_dir"}
    names = set(differing_settings(runs))
    for run in runs:
        given = run.settings if run.set_by_user is None else run.set_by_user
        for name in given:
            if name in defaults and run.settings.get(name) != defaults[name]:
                names.add(name)
    rows = []
    for name in sorted(names - shown_above - {"processes"}):
        flag = f"--{name}" if name in defaults else name
        rows.append((flag, _text(defaults.get(name)), [_text(run.settings.get(name)) for run in runs]))
    return rows


def _text(value: Any) -> str:
    """A setting as the page shows it."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)


def render(template: Path, **values: Any) -> str:
    """Fill a Jinja template. It may extend ``base.html`` and import from ``macros.html``. The page needs no network.

    Args:
        template: the file. Templates beside it can be included by name.
        values: by the names in the template. Text is escaped.

    Raises:
        jinja2.UndefinedError: a value is missing.

    Example:
        >>> render(Path("preview.html"), title="My records", rows=[])
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, HERE]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)


def data_url(picture: Image) -> str:
    """A picture as JPEG in the text of an ``src`` attribute."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


# ---- warnings of a run with their remedies, and the facts of ``summary.json``

MOST_SUSPECT = 0.2  # share of groups in which reward hacking is suspected


def warnings(run: Run, rows: Sequence[GroupRow]) -> list[Finding]:
    """All warnings of a run: of its rows, and of its completions.

    Args:
        rows: the groups of the run.
    """
    return [*warnings_of(run), *_suspected(rows)]


def _suspected(rows: Sequence[GroupRow]) -> Iterator[Finding]:
    """The last fifth of the groups, if reward hacking is suspected in many of them."""
    trained = sorted((row for row in rows if row.split == TRAIN), key=lambda row: row.step)
    if not trained:
        return
    last_rows = trained[-max(1, len(trained) // 5) :]
    share = fmean(bool(row.marks & SUSPECT) for row in last_rows)
    if share > MOST_SUSPECT:
        message = f"reward hacking is suspected in {share:.0%} of the last {len(last_rows)} groups"
        yield Finding("suspected_hacking", message, "read them in the browser of groups, and weigh the format less")


COUNTED_MARKS = {"equal": EQUAL, "truncated": TRUNCATED, "suspected": SUSPECT}
TRENDS = (
    "reward/total",
    "reward/std",
    "group/zero_std_frac",
    "kl",
    "entropy",
    "grad_norm",
    "completion/length_mean",
    "completion/truncated_frac",
    "target/loss",
    "completion/thinking_mean",
    "completion/thinking_cut_frac",
)
"""Metrics with a trend in ``summary.json``. After the first of them stand all rewards."""


def summary(
    runs: Sequence[Run], rows: Sequence[Sequence[GroupRow]], differences: Sequence[HeldOutDifference]
) -> dict[str, Any]:
    """The content of ``summary.json``. ``docs/evaluation.md`` explains each name.

    Args:
        rows: the groups of each run.
        differences: of the runs on held-out records.
    """
    return {
        "runs": [run_summary(run, groups) for run, groups in zip(runs, rows, strict=True)],
        "held_out_differences": [asdict(each) for each in differences],
        "differing_settings": differing_settings(runs),
    }


def run_summary(run: Run, rows: Sequence[GroupRow]) -> dict[str, Any]:
    """The part of ``summary.json`` about one run."""
    sampled = [row for row in rows if row.split == TRAIN]
    trained = [row for row in sampled if not row.marks & DROPPED]
    groups = {
        "trained": len(trained),
        "dropped": len(sampled) - len(trained),
        "completions": sum(row.size for row in trained),
    }
    for name, mark in COUNTED_MARKS.items():
        groups[name] = sum(bool(row.marks & mark) for row in trained)
    rewards = [name for name in run.metrics() if name.startswith("reward/")]
    # A name that stands twice keeps its first place.
    with_trend = dict.fromkeys([TRENDS[0], *rewards, *TRENDS])
    evaluations = {}
    for name, points in run.evaluations().items():
        best = max(points, key=lambda point: point.reward)
        evaluations[name] = {"first": asdict(points[0]), "last": asdict(points[-1]), "best": asdict(best)}
    losses = [name for name in run.metrics() if name.endswith(EVALUATED_LOSS) and not name.startswith(AT_THE_END)]
    return {
        "run": run.name,
        "steps": run.steps,
        "finished": run.finished,
        "evaluations": evaluations,
        "trends": {name: _trend(run, name) for name in (*with_trend, *losses) if run.values(name)},
        "warnings": [
            {"code": each.code, "message": each.message, "advice": each.advice} for each in warnings(run, rows)
        ],
        "groups": groups,
        "seconds_per_step": seconds_of_phases(run),
    }


def _trend(run: Run, metric: str) -> dict[str, Any] | None:
    """The trend of a metric as the summary has it. None where it never has a finite value."""
    found = trend([value for _, value in run.values(metric)])
    if found is None:
        return None
    first, last, change, ci95 = finite([found.first, found.last, found.change, found.ci95])
    return {"first": first, "last": last, "change": change, "ci95": ci95, "verdict": found.verdict}
