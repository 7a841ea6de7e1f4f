"""The command: ``python qwenvl/train/train_grpo.py --model_name_or_path ... --dataset_use ... --output_dir ...``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    # Run as a file: Python puts this folder first on the path; what is meant is the one that holds the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from qwenvl.config.command_line import parse_args
from qwenvl.train.display.console import say

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.train.grpo_trainer import GRPOTrainer


COMMAND = "qwenvl train"


def main(argv: list[str] | None = None) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags."""
    try:
        start(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # before there was a run
        say(f"{COMMAND}: stopped by Ctrl-C")
        raise SystemExit(130) from None


def start(argv: list[str]) -> None:
    """Reads the settings, looks for the data, and runs what they describe, alone in its folder."""
    if not {"-h", "--help"} & set(argv):
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
    dry = "--dry_run" in argv
    args = parse_args([argument for argument in argv if argument != "--dry_run"])
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.data.records.catalog import resolve_datasets

    with told_to_the_user(COMMAND):  # before a model is loaded, which may take minutes
        for names in filter(None, (args.dataset_use, args.eval_dataset_use)):
            resolve_datasets(names, args.dataset_catalog)
    # After the flags are known to be good: these imports take seconds.
    from qwenvl.train.run.failures import told_in_one_line
    from qwenvl.train.run.lock import RunLockedError, locked

    with (
        told_in_one_line(COMMAND, args.output_dir),
        told_to_the_user(COMMAND, (RunLockedError,)),
        nullcontext() if dry else locked(args.output_dir, args.process_index),
    ):
        run(args, argv, dry)


def run(args: GRPOConfig, argv: list[str], dry: bool) -> None:
    """Trains, evaluates and saves, or says why there is nothing to do."""
    from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
    from qwenvl.runlog import RunLogError
    from qwenvl.train.callbacks import require_trackers
    from qwenvl.train.display.dry_run import dry_run
    from qwenvl.train.display.summary import RunSummary, collected_warnings, next_step, run_summary
    from qwenvl.train.grpo_trainer import GRPOTrainer
    from qwenvl.train.run.beginning import begin
    from qwenvl.train.run.failures import bar_closed
    from qwenvl.train.run.resumed import SettingsError

    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        beginning = begin(args)
        if beginning.finished:
            say(f"{COMMAND}: {beginning.finished}")
            return
        require_trackers(args.report_to)
        if dry:
            plan = dry_run(args)
            if args.process_index == 0:
                print(plan)
            return
        trainer = GRPOTrainer(args=args)
    trainer.remove_callback(RunSummary)  # the command's own comes after the evaluation
    with (
        told_to_the_user(COMMAND, (*DATA_ERRORS, SettingsError, RunLogError)),
        bar_closed(trainer),
        collected_warnings() as warnings,
    ):
        trainer.train(resume_from_checkpoint=beginning.checkpoint)
        if trainer.eval_dataset is not None and not evaluated_last(trainer):
            trainer.evaluate()
    trainer.save_model()
    trainer.journal.runlog.finish(trainer.state.global_step)
    trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
    if trainer.is_world_process_zero():
        say(run_summary(args.output_dir, warnings, next_step(args, argv, warnings)))


def evaluated_last(trainer: GRPOTrainer) -> bool:
    """Whether the weights that are to be saved were evaluated after their last step already.

    ``eval_strategy`` did so, or an earlier process that died before it saved its model.
    """
    from qwenvl.runlog import read_metrics

    rows = trainer.state.log_history
    if not trainer.steps_trained:
        rows = read_metrics(trainer.args.output_dir)
    done = any(row["step"] == trainer.state.global_step and "eval_total_reward" in row for row in rows)
    return done and not trainer.args.load_best_model_at_end  # which took the place of those evaluated


if __name__ == "__main__":
    main()
