"""What ``--report_to`` sends to trackers: the numbers in four sections, and a table at each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks, integration_utils

from qwenvl.option import was_set
from qwenvl.report.curves import AT_THE_END, shown
from qwenvl.train.log.journal import Journal
from qwenvl.train.trackers.seen import Patches, SeenAnswers
from qwenvl.train.trackers.tables import TABLES

PROJECT = "qwenvl"


def by_section(logs: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a log entry, each with its section before its name. The sections are those of the report.

    What the Trainer says at the end of training keeps its name: trackers show it apart.

    Example:
        >>> by_section({"reward/total": 0.5, "kl": 0.1, "time/sample_s": 8.0, "prompt/frames": 6.0})
        {'learning/reward/total': 0.5, 'stable/kl': 0.1, 'fast/time/sample_s': 8.0, 'data/prompt/frames': 6.0}
    """
    return {_placed(name): value for name, value in logs.items()}


def _placed(name: str) -> str:
    section = shown(name).section
    return name if name.startswith((*AT_THE_END, f"{section}/")) else f"{section}/{name}"


@contextmanager
def names_kept() -> Iterator[None]:
    """Within, the Trainer's trackers write names as they are. They put "train/" or "eval/" before them otherwise."""
    renamed = integration_utils.rewrite_logs
    integration_utils.rewrite_logs = dict
    try:
        yield
    finally:
        integration_utils.rewrite_logs = renamed


class Sectioned:
    """The ``on_log`` of a tracker, with names by section.

    An evaluation after training goes to the run of the training. MLflow would begin another one.
    """

    def __init__(self, tracker: TrainerCallback):
        self._tracker = tracker
        self._log: Callable[..., None] = tracker.on_log
        self._run: str | None = None  # of MLflow

    def __call__(self, args, state, control, logs=None, **kwargs) -> None:
        with self.in_its_run(), names_kept():
            self._log(args, state, control, logs=by_section(logs), **kwargs)
        mlflow = getattr(self._tracker, "_ml_flow", None)
        if mlflow is not None and self._run is None and mlflow.active_run() is not None:
            self._run = mlflow.active_run().info.run_id

    def in_its_run(self) -> AbstractContextManager[Any]:
        """What is written within goes to the run of the training."""
        mlflow = getattr(self._tracker, "_ml_flow", None)
        if mlflow is None or self._run is None or mlflow.active_run() is not None:
            return nullcontext()
        return mlflow.start_run(run_id=self._run)


class EvaluationTables(TrainerCallback):
    """Writes a table of answers to each tracker that has one, after each evaluation. Of the first process alone.

    Args:
        seen: the answers.
        trackers: with what each of them logs by.
    """

    def __init__(self, seen: SeenAnswers, trackers: Mapping[TrainerCallback, Sectioned]):
        self._seen, self._trackers = seen, trackers

    def on_evaluate(self, args, state, control, **kwargs):
        """The tables of the evaluation that has just ended."""
        for split, answers in self._seen.take().items():
            for tracker, log in self._trackers.items():
                table = TABLES.get(type(tracker).__name__)
                if table is not None and answers and state.is_world_process_zero:
                    name = f"{shown('completion/').section}/{split}_completions"
                    with log.in_its_run():
                        table(tracker, name, state.global_step, answers)


def install_trackers(trainer: Trainer, journal: Journal) -> None:
    """Has the trackers of ``report_to`` show numbers by section and answers as tables.

    A run without a name is named by its folder and the time, so that an evaluation after training finds it again. The
    project of trackio is ``qwenvl`` where none is named.
    """
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    trackers = [each for each in trainer.callback_handler.callbacks if kinds and isinstance(each, kinds)]
    if not trackers:
        return
    if not was_set(trainer.args, "project"):  # else it would be "huggingface"
        trainer.args.project = PROJECT
    if trainer.args.run_name is None:
        trainer.args.run_name = f"{Path(trainer.args.output_dir).resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"
    sectioned = {tracker: Sectioned(tracker) for tracker in trackers}
    for tracker, log in sectioned.items():
        setattr(tracker, "on_log", log)  # noqa: B010
    if any(type(tracker).__name__ in TABLES for tracker in trackers) and trainer.is_world_process_zero():
        journal.seen_answers = SeenAnswers(Patches.of(trainer.data_collator.processor))
        trainer.add_callback(EvaluationTables(journal.seen_answers, sectioned))
