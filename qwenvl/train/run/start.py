"""Begins a command that trains: its help, its settings, the signals that end it, and then the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qwenvl.config.command_line import FILES_AND_FLAGS, read_command, without_dry_run
from qwenvl.config.flags import USUAL, USUAL_OF_A_WARMUP, wants_help
from qwenvl.config.settings import FLAG_GROUPS, WARMUP_GROUPS
from qwenvl.console import ends_at_ctrl_c
from qwenvl.failure import tells_errors_once
from qwenvl.option import Options
from qwenvl.train.run.signals import ends_at_signals

if TYPE_CHECKING:
    from transformers import TrainerCallback


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
        command: the name of the command, with which messages begin.
        purpose: the text of its help.
        groups: its options by topic.
        usual: the flags of its short help, each with a line of text.
        argv: its arguments. None: those of the process.
        says_next: end with the commands to type next.
    """
    argv = sys.argv[1:] if argv is None else argv
    with tells_errors_once(), ends_at_ctrl_c(command), ends_at_signals(command):
        if wants_help(argv, f"{command} {FILES_AND_FLAGS}", purpose, groups, usual):
            return
        argv, dry = without_dry_run(argv)
        args = read_command(command, argv, begins=True)
        # It loads torch, which neither --help nor a wrong command line waits for.
        from qwenvl.train.run.whole_run import run

        run(command, args, dry, callbacks, says_next)


def start_training(argv: list[str] | None = None, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train by GRPO with the settings of a command line. See ``start``."""
    start(
        "qwenvl train",
        purpose="Train Qwen-VL by GRPO.",
        groups=FLAG_GROUPS,
        usual=USUAL,
        argv=argv,
        callbacks=callbacks,
    )


WARMUP = (
    "Teach Qwen-VL by cross-entropy to give the records' solutions, or the best completions of a run, before GRPO.\n"
    "Settings that only training by rewards reads are refused as flags, and passed over in a file."
)


def start_warmup(argv: list[str] | None = None, says_next: bool = True) -> None:
    """Train by cross-entropy with the settings of a command line. See ``start``."""
    start(
        "qwenvl warmup",
        purpose=WARMUP,
        groups=WARMUP_GROUPS,
        usual={**USUAL_OF_A_WARMUP, **USUAL},
        argv=argv,
        says_next=says_next,
    )
