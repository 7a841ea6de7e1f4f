"""The summary of a run, a few lines at its end."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.health import RULES, Finding
from qwenvl.report.curves import trend
from qwenvl.report.findings import warnings
from qwenvl.report.run import read_runs
from qwenvl.runlog import read_metrics
from qwenvl.train.display.console import say
from qwenvl.train.display.lines import evaluated, with_interval


class RunSummary(TrainerCallback):
    """Prints the summary when training ends. The command removes this callback, and prints its own after evaluating."""

    def __init__(self):
        self._collecting = ExitStack()
        self._warnings: list[str] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """Start to collect warnings."""
        self._collecting.close()  # of a run that failed
        self._warnings = self._collecting.enter_context(collected_warnings())

    def on_train_end(self, args, state, control, **kwargs):
        """Prints."""
        self._collecting.close()
        if state.is_world_process_zero:
            say(run_summary(args.output_dir, self._warnings, findings_of(args.output_dir)))


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """A list that also gets each warning of this library within."""
    collected: list[str] = []
    handler = logging.Handler(logging.WARNING)
    library = logging.getLogger("qwenvl")
    # A logger without any handler prints its warnings. With this handler it would not.
    printed = logging.lastResort if not library.hasHandlers() else None

    def emit(record: logging.LogRecord) -> None:
        collected.append(record.getMessage())
        if printed is not None:
            printed.handle(record)

    handler.emit = emit
    library.addHandler(handler)
    try:
        yield collected
    finally:
        library.removeHandler(handler)


def findings_of(folder: str | Path) -> list[Finding]:
    """The warnings of the report of a run, except those on its completions."""
    return warnings(read_runs([folder])[0], [])


def run_summary(
    folder: str | Path, logged: Sequence[str], found: Sequence[Finding], next_step: str | None = None
) -> str:
    """The folder of a run, its rewards or loss, evaluations and warnings, and what to do next.

    Args:
        folder: the run folder, written by rank 0.
        logged: warnings that were logged during the run. Those of ``RULES`` are skipped: ``found`` has them.
        found: the findings of its report.
        next_step: a command, or words.
    """
    rows = read_metrics(folder)
    lines = {}
    for short, name in (("reward", "reward/total"), ("loss", "target/loss")):
        if (moved := trend([row[name] for row in rows if name in row])) is not None:
            lines[short] = f"{moved.first:.3f} at first, {moved.last:.3f} at last   (means of the first and last fifth)"
    for name in dict.fromkeys(name for row in rows for name in evaluated(row)):
        points = [row for row in rows if name in row]
        ends = points if len(points) < 2 else (points[0], points[-1])
        shown = [f"{with_interval(name, row)} at step {row['step']}" for row in ends]
        lines[name.removesuffix("_total_reward")] = ", ".join(shown)
    codes, remedies = {rule.code for rule in RULES}, tuple(rule.remedy for rule in RULES)
    warned = [each.message for each in found if each.code in codes]
    warned += [each for each in logged if not each.endswith(remedies)]
    lines["warnings"] = "none" if not warned else f"{len(warned)}, the first: {_shortened(warned[0])}"
    if "loss" not in lines:  # a warm-up has no completions
        command = shlex.join(["qwenvl", "report", str(folder)])
        lines["look"] = f"{command}   (curves, and every completion with its frames)"
    if next_step is not None:
        lines["next"] = next_step
    steps = max((row["step"] for row in rows), default=0)
    width = max(map(len, lines)) + 2
    return "\n".join([f"{folder}: {steps} steps", *(f"  {name:<{width}}{line}" for name, line in lines.items())])


def next_step(args: GRPOConfig, argv: Sequence[str], found: Sequence[Finding]) -> str:
    """The command to type after a run: train on, or the remedy of the first of ``RULES`` that holds at its end.

    A remedy is the run with other flags, or a look at the data.

    Args:
        argv: of the command that ended.
        found: the findings of its report.
    """
    folder = str(args.output_dir).rstrip("/")
    codes = [each.code for each in found]
    rule = next((rule for rule in RULES if rule.code in codes), None)
    if rule is not None and rule.flags is not None:
        command = ["qwenvl", "train", *argv, *rule.flags(args), "--output_dir", folder + "-2"]
        return f"{shlex.join(command)}   (again: {rule.code.replace('_', ' ')})"
    if rule is not None:
        catalog = ["--dataset_catalog", str(args.dataset_catalog)] if args.dataset_catalog else []
        names = [str(args.dataset_use), "--n", "8", "--model", str(args.model_name_or_path)]
        return f"{shlex.join(['qwenvl', 'preview', *names, *catalog])}   (what does the model see?)"
    if args.lora_enable:
        return f"load the adapter in {args.output_dir} with peft, as docs/quickstart.md shows"
    more = ["--model_name_or_path", folder, "--output_dir", folder + "-2"]
    if args.start_from_weights:
        more += ["--start_from_weights", folder]
    if args.resume != "never":
        more += ["--resume", "never"]
    if args.resume_from_checkpoint:
        more += ["--resume_from_checkpoint", "False"]
    return shlex.join(["qwenvl", "train", *argv, *more]) + "   (train on from the result)"


def _shortened(warning: str) -> str:
    line = " ".join(warning.split())
    return line if len(line) <= 100 else line[:97] + "..."
