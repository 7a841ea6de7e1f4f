"""The summary of a run, a few lines at its end."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import beginning, counted
from qwenvl.health import RULES, Finding
from qwenvl.report.findings import warnings
from qwenvl.report.run import read_runs, trend
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
    folder: str | Path, logged: Sequence[str], found: Sequence[Finding], next_steps: Sequence[str] = ()
) -> str:
    """The folder of a run, its rewards or loss, evaluations and warnings, and what to do next.

    Args:
        folder: the run folder, written by rank 0.
        logged: warnings that were logged during the run. Those of ``RULES`` are skipped: ``found`` has them.
        found: the findings of its report.
        next_steps: commands.
    """
    rows = read_metrics(folder)
    lines = []
    for short, name in (("reward", "reward/total"), ("loss", "target/loss")):
        if (moved := trend([row[name] for row in rows if name in row])) is not None:
            means = f"{moved.first:.3f} at first, {moved.last:.3f} at last   (means of the first and last fifth)"
            lines.append((short, means))
    for name in dict.fromkeys(name for row in rows for name in evaluated(row)):
        points = [row for row in rows if name in row]
        ends = points if len(points) < 2 else (points[0], points[-1])
        shown = [f"{with_interval(name, row)} at step {row['step']}" for row in ends]
        lines.append((name.removesuffix("_total_reward"), ", ".join(shown)))
    codes, remedies = {rule.code for rule in RULES}, tuple(rule.remedy for rule in RULES)
    warned = [each.message for each in found if each.code in codes]
    warned += [each for each in logged if not each.endswith(remedies)]
    first = beginning(" ".join(warned[0].split()), 100) if warned else ""
    lines.append(("warnings", f"{len(warned)}, the first: {first}" if warned else "none"))
    if "loss" not in dict(lines):  # a warm-up has no completions
        command = shlex.join(["qwenvl", "report", str(folder)])
        lines.append(("look", f"{command}   (curves, and every completion with its frames)"))
    lines += zip(["next", *[""] * len(next_steps)], next_steps, strict=False)
    steps = int(max((row["step"] for row in rows), default=0))
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join([f"{folder}: {counted(steps, 'step')}", *(f"  {name:<{width}}{line}" for name, line in lines)])


def next_steps(args: GRPOConfig, argv: Sequence[str], found: Sequence[Finding]) -> list[str]:
    """The commands to type after a run, with words on each.

    The first is the remedy of the first of ``RULES`` that holds at its end, the run with other flags or a look at the
    data, or else to train on. Then come an evaluation, and for an adapter its merge.

    Args:
        argv: of the command that ended.
        found: the findings of its report.
    """
    folder, base = str(args.output_dir).rstrip("/"), str(args.model_name_or_path)
    codes = [each.code for each in found]
    rule = next((rule for rule in RULES if rule.code in codes), None)
    commands = []
    if rule is not None and rule.flags is not None:
        flags = [*rule.flags(args), "--output_dir", f"{folder}-2"]
        commands.append((["train", *with_flags(argv, flags)], f"again: {rule.code.replace('_', ' ')}"))
    elif rule is not None:
        catalog = ["--dataset_catalog", str(args.dataset_catalog)] if args.dataset_catalog else []
        preview = ["preview", str(args.dataset_use), "--n", "8", "--model", base, *catalog]
        commands.append((preview, "what does the model see?"))
    elif not args.lora_enable:
        flags = ["--model_name_or_path", folder, "--output_dir", f"{folder}-2"]
        if args.start_from_weights:
            flags += ["--start_from_weights", folder]
        if args.resume != "never":
            flags += ["--resume", "never"]
        if args.resume_from_checkpoint:
            flags += ["--resume_from_checkpoint", "False"]
        commands.append((["train", *with_flags(argv, flags)], "train on from the result"))
    data = args.eval_dataset_use or "HELD_OUT.json"
    commands.append((["evaluate", base, folder, data, "--controls", "all"], "is it better? does it use the video?"))
    if args.lora_enable:
        commands.append((["merge", folder, "--out", f"{folder}-merged"], "whole weights, for other programs"))
    return [f"{shlex.join(['qwenvl', *words])}   ({why})" for words, why in commands]


def with_flags(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line with other values of some flags.

    Args:
        flags: each flag and its value.

    Example:
        >>> with_flags(["run.yaml", "--max-steps=9", "--seed", "1"], ["--max_steps", "5"])
        ['run.yaml', '--seed', '1', '--max_steps', '5']
    """
    kept: list[str] = []
    value_follows = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if word.startswith("--") and name.replace("-", "_").replace("__", "--", 1) in flags[::2]:
            value_follows = not equals
        elif value_follows and not word.startswith("--"):
            value_follows = False
        else:
            kept.append(word)
    return [*kept, *flags]
