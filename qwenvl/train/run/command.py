"""The commands that train, around their trainers: check, lock the folder, train, evaluate, save, sum up."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
from qwenvl.failure import beginning, counted
from qwenvl.health import RULES, Finding
from qwenvl.model.loading import MisfitError
from qwenvl.report.curves import trend
from qwenvl.report.findings import warnings
from qwenvl.report.run import read_runs
from qwenvl.rewards import RewardError
from qwenvl.runlog import RunLogError, read_metrics
from qwenvl.train.callbacks import require_trackers
from qwenvl.train.display.console import evaluated, say, with_interval
from qwenvl.train.display.dry_run import dry_run
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.run.failures import told_in_one_line
from qwenvl.train.run.lock import RunFolderError, locked
from qwenvl.train.run.resume import SettingsError, begin
from qwenvl.train.warmup.targets import shown_targets
from qwenvl.train.warmup.trainer import WarmupTrainer

OF_SETTINGS = (ValueError, OSError, ImportError)
"""Errors about names, files, flags or packages."""


def run(command: str, args: GRPOConfig, dry: str, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train, evaluate if there is data for it, and save the model, alone in the run folder. Errors are one line.

    Args:
        command: the beginning of error messages.
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        dry: the value of ``--dry_run``. With one nothing is written, and the folder is not locked.
    """
    with (
        told_in_one_line(command, args.output_dir),
        told_to_the_user(command, (RunFolderError,)),
        nullcontext() if dry else locked(args.output_dir, args.process_index),
    ):
        with told_to_the_user(command, OF_SETTINGS):
            beginning = begin(args)
            if beginning.finished:
                return say(f"{command}: {beginning.finished}")
            require_trackers(args.report_to)
            if dry:
                shown = dry_run(args, dry)
                return print(shown) if args.process_index == 0 else None
            trainer: PolicyTrainer
            if isinstance(args, WarmupConfig):
                trainer = WarmupTrainer(args=args, callbacks=list(callbacks))
                say("\n  ".join(["the first target:", *first_target(trainer)]))
            else:
                trainer = GRPOTrainer(args=args, callbacks=list(callbacks))
        with told_to_the_user(command, (*DATA_ERRORS, RewardError, SettingsError, MisfitError, RunLogError)):
            trainer.train(beginning)
            if trainer.eval_dataset is not None and not evaluated_last(trainer):
                trainer.evaluate()
        trainer.save_model()
        trainer.journal.runlog.finish(trainer.state.global_step)
        trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
        if trainer.is_world_process_zero():
            found = findings_of(args.output_dir)
            say(run_summary(args.output_dir, found, next_steps(args, found)))


def first_target(trainer: WarmupTrainer) -> list[str]:
    """The target of the first record, as the model reads it: what the run teaches.

    Raises:
        RecordError, BadMediaError: as in training.
    """
    shown = list(shown_targets(trainer.train_dataset, trainer.data_collator, 1))
    if not any("</think>" in line for line in shown):
        shown.append("without thinking: where rewards want a <think> block, give the records a `thinking`")
    return shown


def evaluated_last(trainer: PolicyTrainer) -> bool:
    """Whether the weights to be saved were evaluated after their last step already: by ``eval_strategy``, or by an
    earlier process that died before it saved its model."""
    rows = trainer.state.log_history
    if not trainer.steps_trained:
        rows = read_metrics(trainer.args.output_dir)
    done = any(row["step"] == trainer.state.global_step and trainer.eval_metric in row for row in rows)
    return done and not trainer.args.load_best_model_at_end  # which replaced the evaluated weights


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
