"""The command: ``python qwenvl/train/train_grpo.py --model_name_or_path ... --dataset_use ... --output_dir ...``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    # Run as a file: Python puts this folder first on the path; what is meant is the one that holds the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from qwenvl.config.command_line import FILES_AND_FLAGS, read_command, without_dry_run
from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.help import USUAL, wants_help
from qwenvl.failure import tells_errors_once
from qwenvl.train.display.console import ends_at_ctrl_c, say
from qwenvl.train.run.signals import ends_at_signals

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from qwenvl.config.grpo_config import GRPOConfig


COMMAND = "qwenvl train"
PURPOSE = "Train Qwen-VL by GRPO."


def main(argv: list[str] | None = None, callbacks: list[TrainerCallback] | None = None) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags.

    Args:
        callbacks: more callbacks of transformers.
    """
    with tells_errors_once(), ends_at_ctrl_c(COMMAND), ends_at_signals(COMMAND):
        start(sys.argv[1:] if argv is None else argv, callbacks)


def start(argv: list[str], callbacks: list[TrainerCallback] | None = None) -> None:
    """Reads the settings, looks for the data, and runs what they describe, alone in its folder."""
    if wants_help(argv, f"{COMMAND} {FILES_AND_FLAGS}", PURPOSE, FLAG_GROUPS, USUAL):
        return
    argv, dry = without_dry_run(argv)
    args = read_command(COMMAND, argv, begins=True)
    from qwenvl.train.run.command import alone_in_its_folder

    with alone_in_its_folder(COMMAND, args, bool(dry)):
        run(args, dry, callbacks)


def run(args: GRPOConfig, dry: str, callbacks: list[TrainerCallback] | None = None) -> None:
    """Trains, evaluates and saves, or says why there is nothing to do."""
    from qwenvl.train.display.dry_run import dry_run
    from qwenvl.train.display.summary import collected_warnings, findings_of, next_steps, run_summary
    from qwenvl.train.grpo_trainer import GRPOTrainer
    from qwenvl.train.run.command import beginning_of, carry_out, told_of_settings

    with told_of_settings(COMMAND), collected_warnings() as early:
        beginning = beginning_of(COMMAND, args)
        if beginning.finished:
            return
        if dry:
            plan = dry_run(args, dry)
            if args.process_index == 0:
                print(plan)
            return
        trainer = GRPOTrainer(args=args, callbacks=callbacks)
    warnings = [*carry_out(COMMAND, trainer, beginning), *early]
    if trainer.is_world_process_zero():
        found = findings_of(args.output_dir)
        say(run_summary(args.output_dir, warnings, found, next_steps(args, found)))


if __name__ == "__main__":
    main()
