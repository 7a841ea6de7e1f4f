"""What became of a run, in a few lines at its end."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.health.rules import warned_of
from qwenvl.runlog import read_metrics
from qwenvl.train.display.console import say
from qwenvl.train.display.progress import evaluated, with_interval


class RunSummary(TrainerCallback):
    """Prints the summary when training ends. The command takes it out, and prints its own after evaluating."""

    def __init__(self):
        self._collecting = ExitStack()
        self._warnings: list[str] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """Collects warnings from here on."""
        self._collecting.close()  # of a run that failed
        self._warnings = self._collecting.enter_context(collected_warnings())

    def on_train_end(self, args, state, control, **kwargs):
        """Prints."""
        self._collecting.close()
        if state.is_world_process_zero:
            say(run_summary(args.output_dir, self._warnings))


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """A list to which each warning of this library is added within, beside where it goes anyway."""
    collected: list[str] = []
    handler = logging.Handler(logging.WARNING)
    library = logging.getLogger("qwenvl")
    # A logger without any handler prints its warnings. With this one it would keep them.
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


def run_summary(folder: str | Path, warnings: Sequence[str], next_step: str | None = None) -> str:
    """What became of a run: its folder, rewards or loss, evaluations and warnings, and what to do next.

    Args:
        folder: the run folder, written by rank 0.
        warnings: that were given while it ran.
        next_step: a command, or words.
    """
    rows = read_metrics(folder)
    lines = {}
    for short, name in (("reward", "reward/total"), ("loss", "target/loss")):
        if trained := [row for row in rows if name in row]:
            some = max(1, len(trained) // 10)
            first, last = (sum(row[name] for row in part) / some for part in (trained[:some], trained[-some:]))
            when = f"steps {trained[0]['step']} to" if some > 1 else "step"
            then = f"steps {trained[-some]['step']} to" if some > 1 else "step"
            lines[short] = f"{first:.3f} at {when} {trained[some - 1]['step']}, "
            lines[short] += f"{last:.3f} at {then} {trained[-1]['step']}"
    for name in dict.fromkeys(name for row in rows for name in evaluated(row)):
        found = [row for row in rows if name in row]
        ends = found if len(found) < 2 else (found[0], found[-1])
        shown = [f"{with_interval(name, row)} at step {row['step']}" for row in ends]
        lines[name.removesuffix("_total_reward")] = ", ".join(shown)
    lines["warnings"] = "none" if not warnings else f"{len(warnings)}, the first: {_shortened(warnings[0])}"
    if "loss" not in lines:  # a warm-up has no completions
        command = shlex.join(["qwenvl", "report", str(folder)])
        lines["look"] = f"{command}   (curves, and every completion with its frames)"
    if next_step is not None:
        lines["next"] = next_step
    steps = max((row["step"] for row in rows), default=0)
    width = max(map(len, lines)) + 2
    return "\n".join([f"{folder}: {steps} steps", *(f"  {name:<{width}}{line}" for name, line in lines.items())])


def next_step(args: GRPOConfig, argv: Sequence[str], warnings: Sequence[str]) -> str:
    """What to type after a run: train on, or what the first warning of ``RULES`` asks for.

    That is the run anew with other flags, or a look at the data.

    Args:
        argv: of the command that ended.
        warnings: that were given while it ran.
    """
    folder = str(args.output_dir).rstrip("/")
    rule = warned_of(warnings)
    if rule is not None and rule.flags is not None:
        command = ["qwenvl", "train", *argv, *rule.flags(args), "--output_dir", folder + "-2"]
        return f"{shlex.join(command)}   (again: {rule.name})"
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
