"""What ``--report_to`` shows: the Trainer's own numbers and ours, by the sections of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from transformers import Trainer
from transformers.integrations import (
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
    integration_utils,
)

from qwenvl.option import was_set
from qwenvl.report.curves import AT_THE_END, shown

PROJECT = "qwenvl"


def require_trackers(names: Iterable[str]) -> None:
    """Refuse ``report_to`` a tracker whose package is missing, before a model is loaded.

    Raises:
        ImportError: naming them.
    """
    # Packages of azure_ml and flyte are not among those that transformers lists as available.
    checked = integration_utils.INTEGRATION_TO_CALLBACK.keys() - {"azure_ml", "flyte"}
    if missing := " ".join(sorted(checked & set(names) - set(get_available_reporting_integrations()))):
        raise ImportError(
            f"--report_to {missing}: its package is not installed; pip install {missing}, or leave the flag out: "
            "metrics.jsonl in the run folder has the same numbers"
        )


def install_trackers(trainer: Trainer) -> None:
    """Make the trackers of ``report_to`` show numbers by section.

    A run without a name is named by its folder and the time, so that an evaluation after training finds it again. The
    default project of trackio is ``qwenvl``.
    """
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    trackers = [each for each in trainer.callback_handler.callbacks if kinds and isinstance(each, kinds)]
    if not trackers:
        return
    if not was_set(trainer.args, "project"):  # the Trainer's default is "huggingface"
        trainer.args.project = PROJECT
    if trainer.args.run_name is None:
        trainer.args.run_name = f"{Path(trainer.args.output_dir).resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"
    for tracker in trackers:
        setattr(tracker, "on_log", _by_section(tracker.on_log))  # noqa: B010


def by_section(logs: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a log entry, with the sections of the report in front of their names.

    The Trainer's totals at the end of training keep their names.

    Example:
        >>> by_section({"reward/total": 0.5, "kl": 0.1, "time/sample_s": 8.0, "prompt/frames": 6.0})
        {'learning/reward/total': 0.5, 'stable/kl': 0.1, 'fast/time/sample_s': 8.0, 'data/prompt/frames': 6.0}
    """
    placed = {}
    for name, value in logs.items():
        section = shown(name).section
        placed[name if name.startswith((*AT_THE_END, f"{section}/")) else f"{section}/{name}"] = value
    return placed


def _by_section(on_log: Callable[..., None]) -> Callable[..., None]:
    def log(args, state, control, logs=None, **kwargs):
        with unchanged_names():
            on_log(args, state, control, logs=by_section(logs), **kwargs)

    return log


@contextmanager
def unchanged_names() -> Iterator[None]:
    """The Trainer's trackers write names as they are, without "train/" or "eval/" in front."""
    rewrite = integration_utils.rewrite_logs
    integration_utils.rewrite_logs = dict
    try:
        yield
    finally:
        integration_utils.rewrite_logs = rewrite
