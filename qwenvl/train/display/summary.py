"""The summary of a run, a few lines at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.failure import beginning, counted
from qwenvl.health import RULES, Finding
from qwenvl.report.curves import trend
from qwenvl.report.findings import warnings
from qwenvl.report.run import read_runs
from qwenvl.runlog import read_metrics
from qwenvl.train.display.console import evaluated, with_interval


def findings_of(folder: str | Path) -> list[Finding]:
    """The warnings of the report of a run, except those on its completions."""
    return warnings(read_runs([folder])[0], [])


def run_summary(folder: str | Path, found: Sequence[Finding], next_steps: Sequence[str] = ()) -> str:
    """The folder of a run, its rewards or loss, evaluations and warnings, and what to do next.

    Args:
        folder: the run folder, written by rank 0.
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
    first = beginning(" ".join(found[0].message.split()), 100) if found else ""
    lines.append(("warnings", f"{len(found)}, the first: {first}" if found else "none"))
    if "loss" not in dict(lines):  # a warm-up has no completions
        command = shlex.join(["qwenvl", "report", str(folder)])
        lines.append(("look", f"{command}   (curves, and every completion with its frames)"))
    lines += zip(["next", *[""] * len(next_steps)], next_steps, strict=False)
    steps = int(max((row["step"] for row in rows), default=0))
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join([f"{folder}: {counted(steps, 'step')}", *(f"  {name:<{width}}{line}" for name, line in lines)])


def next_steps(args: GRPOConfig, found: Sequence[Finding]) -> list[str]:
    """The commands to type after a run, with words on each.

    After a warm-up it is training by rewards. Else a look at the data where one of ``RULES`` holds, an evaluation, and
    for an adapter its merge.

    Args:
        found: the findings of its report.
    """
    folder, base, data = str(args.output_dir).rstrip("/"), str(args.model_name_or_path), str(args.dataset_use)
    if isinstance(args, WarmupConfig):
        train = ["train", "--model_name_or_path", folder, "--dataset_use", data, "--output_dir", f"{folder}-grpo"]
        return [f"{shlex.join(['qwenvl', *train])}   (with the same flags for frames and prompts)"]
    commands = []
    if {each.code for each in found} & {rule.code for rule in RULES}:
        catalog = ["--dataset_catalog", str(args.dataset_catalog)] if args.dataset_catalog else []
        commands.append((["preview", data, "--n", "8", "--model", base, *catalog], "what does the model see?"))
    held_out = args.eval_dataset_use or "HELD_OUT.json"
    commands.append((["evaluate", base, folder, held_out, "--controls", "all"], "is it better? does it use the video?"))
    if args.lora_enable:
        commands.append((["merge", folder, "--out", f"{folder}-merged"], "whole weights, for other programs"))
    return [f"{shlex.join(['qwenvl', *words])}   ({why})" for words, why in commands]
