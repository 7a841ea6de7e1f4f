"""The command: ``python qwenvl/train/train_grpo.py --model_name_or_path ... --dataset_use ... --output_dir ...``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    # Run as a file: Python puts this folder first on the path; what is meant is the one that holds the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from qwenvl.config.command_line import parse_args
from qwenvl.train.console import say

if TYPE_CHECKING:
    from qwenvl.train.grpo_trainer import GRPOTrainer


def main(argv: list[str] | None = None) -> None:
    """Trains, evaluates if there is data for it, saves model and processor; see ``--help`` for the flags."""
    argv = sys.argv[1:] if argv is None else argv
    if not {"-h", "--help"} & set(argv):
        say("qwenvl train: loading PyTorch and transformers")  # which takes seconds
    dry = "--dry_run" in argv
    args = parse_args([argument for argument in argv if argument != "--dry_run"])
    from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
    from qwenvl.data.records.catalog import resolve_datasets

    with told_to_the_user("qwenvl train"):  # before a model is loaded, which may take minutes
        for names in filter(None, (args.dataset_use, args.eval_dataset_use)):
            resolve_datasets(names, args.dataset_catalog)
    # After the flags are known to be good: these imports take seconds.
    from qwenvl.train.callbacks import SettingsError, require_trackers
    from qwenvl.train.checkpoints import find_checkpoint, require_no_checkpoints, require_same_tuning
    from qwenvl.train.dry_run import dry_run
    from qwenvl.train.grpo_trainer import GRPOTrainer
    from qwenvl.train.summary import RunSummary, collected_warnings, next_step, run_summary

    with told_to_the_user("qwenvl train", (ValueError, OSError, ImportError)):  # names, files, flags, packages
        checkpoint = find_checkpoint(args.resume_from_checkpoint, args.output_dir)
        if checkpoint is None:
            require_no_checkpoints(args.output_dir)
        else:
            require_same_tuning(checkpoint, args.lora_enable)
        require_trackers(args.report_to)
        if dry:
            plan = dry_run(args)
            if args.process_index == 0:
                print(plan)
            return
        trainer = GRPOTrainer(args=args)
    trainer.remove_callback(RunSummary)  # the command's own comes after the evaluation
    with told_to_the_user("qwenvl train", (*DATA_ERRORS, SettingsError)), collected_warnings() as warnings:
        trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.eval_dataset is not None and not evaluated_last(trainer):
            trainer.evaluate()
    trainer.save_model()
    trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
    if trainer.is_world_process_zero():
        say(run_summary(args.output_dir, warnings, next_step(args, argv, warnings)))


def evaluated_last(trainer: GRPOTrainer) -> bool:
    """Whether the weights that are to be saved were evaluated after their last step already, by ``eval_strategy``."""
    state = trainer.state
    done = any(row["step"] == state.global_step and "eval_total_reward" in row for row in state.log_history)
    return done and not trainer.args.load_best_model_at_end  # which took the place of those evaluated


if __name__ == "__main__":
    main()
