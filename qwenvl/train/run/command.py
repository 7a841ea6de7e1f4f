"""The commands that train, around their trainers: check, lock the folder, train, evaluate, save, sum up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
from qwenvl.model.loading import MisfitError
from qwenvl.rewards import RewardError
from qwenvl.runlog import RunLogError, read_metrics
from qwenvl.train.callbacks import require_trackers
from qwenvl.train.display.console import say
from qwenvl.train.display.dry_run import dry_run
from qwenvl.train.display.summary import findings_of, next_steps, run_summary
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
