"""The command: ``python qwenvl/train/train_grpo.py --model_name_or_path ... --dataset_use ... --output_dir ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    # Run as a file: Python puts this folder first on the path; what is meant is the one that holds the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from qwenvl.config.command_line import FILES_AND_FLAGS, read_command, without_dry_run
from qwenvl.config.flags import FLAG_GROUPS, USUAL, wants_help
from qwenvl.console import ends_at_ctrl_c
from qwenvl.failure import tells_errors_once
from qwenvl.option import Options
from qwenvl.train.run.signals import ends_at_signals

if TYPE_CHECKING:
    from transformers import TrainerCallback

COMMAND = "qwenvl train"
PURPOSE = "Train Qwen-VL by GRPO."


def main(argv: list[str] | None = None, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags.

    Args:
        callbacks: more callbacks of transformers.
    """
    start(COMMAND, PURPOSE, FLAG_GROUPS, USUAL, argv, callbacks)


def start(
    command: str,
    purpose: str,
    groups: Sequence[type[Options]],
    usual: dict[str, str],
    argv: list[str] | None,
    callbacks: Sequence[TrainerCallback] = (),
    says_next: bool = True,
) -> None:
    """Print the help, or read the settings of a command and run it.

    Args:
        says_next: end with the commands to type next.
    """
    argv = sys.argv[1:] if argv is None else argv
    with tells_errors_once(), ends_at_ctrl_c(command), ends_at_signals(command):
        if wants_help(argv, f"{command} {FILES_AND_FLAGS}", purpose, groups, usual):
            return
        argv, dry = without_dry_run(argv)
        args = read_command(command, argv, begins=True)
        from qwenvl.train.run.command import run

        run(command, args, dry, callbacks, says_next)


if __name__ == "__main__":
    main()
