"""A run folder as the report reads it: settings and rows of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwenvl.health import LogEntry, history_of
from qwenvl.runlog import RunLogError, read_config, read_metrics

EVALUATED = "_total_reward"  # suffix of the mean reward of an evaluation, after the evaluation's name
TELL_NOTHING = {"run", "runs", "out", "output", "results"}  # names of folders


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the mean total reward after optimizer step ``step``.

    Attributes:
        ci95: half the width of its 95 % interval. None if the run did not log it.
        n: the number of prompts. None if the run did not log it.
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
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    finished: int | None
    rows: Sequence[Mapping[str, float]]
    launch: Mapping[str, str] = field(default_factory=dict)

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
        """The rows of optimizer steps for the rules of ``qwenvl.health``. One process is assumed if none are logged."""
        setting = self.settings.get
        prompts = setting("per_device_train_batch_size", 1) * setting("gradient_accumulation_steps", 1)
        rows = [row for row in self.rows if "loss" in row]
        return history_of(rows, prompts * (setting("processes") or 1), setting("num_iterations") or 1)

    def evaluations(self) -> dict[str, list[EvaluationPoint]]:
        """By the name of the evaluation. Where a step was evaluated twice, the later row counts."""
        found: dict[str, dict[int, EvaluationPoint]] = {}
        for name in self.metrics():
            if name.endswith(EVALUATED):
                by_step = found.setdefault(name.removesuffix(EVALUATED), {})
                for row in self.rows:
                    if name in row:
                        n = row.get(f"{name}_n")
                        by_step[int(row["step"])] = EvaluationPoint(
                            int(row["step"]), row[name], row.get(f"{name}_ci95"), None if n is None else int(n)
                        )
        return {name: [by_step[step] for step in sorted(by_step)] for name, by_step in found.items()}


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
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise RunLogError(f'{path / "run.json"}: expected an object with "config"; is {path} the folder of a run?')
        versions = content.get("versions") or {}
        ended = content.get("finished", content.get("trained"))
        launch = content.get("launch", {})
        runs.append(Run(name, path, content["config"], versions, ended, read_metrics(path), launch))
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
