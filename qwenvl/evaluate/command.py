"""What ``qwenvl probe``, ``evaluate`` and ``try`` share: their help, and how a command begins and fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import TypeVar

from qwenvl.config.flags import FLAG_GROUPS, FlagParser
from qwenvl.config.own_options import TrainerOptions
from qwenvl.evaluate.settings import (
    READ_BY_EVALUATION,
    READ_BY_PROBE,
    READ_BY_TRY,
    EvaluateOptions,
    ProbeOptions,
    TryOptions,
    names_of,
)
from qwenvl.failure import tell, tells_errors_once
from qwenvl.option import Options
from qwenvl.train.display.console import ends_at_ctrl_c, say

Request = TypeVar("Request")

USAGE = {
    "probe": "qwenvl probe MODEL DATA [--samples 8] [--limit 200] [--flag of training value ...]\n"
    "       qwenvl probe run.yaml",
    "evaluate": "qwenvl evaluate MODEL [MODEL2 ...] DATA [--controls all] [--samples 8] [--flag of training value ...]",
    "try": 'qwenvl try MODEL [CLIP or IMAGE ...] "question" [-n 4] [--solution TEXT] [--flag of training value ...]',
}
_HELP: dict[str, tuple[str, type[Options], set[str], str, str]] = {
    "probe": (
        "a probe",
        ProbeOptions,
        READ_BY_PROBE,
        "Ask a checkpoint about records before it is trained on them: does it ever answer right, do its answers "
        "differ, are they whole? Rewards compare the completions of a group, so a model that answers a question always "
        "right or always wrong learns nothing from it. DATA is what --dataset_use takes. MODEL is a checkpoint, an "
        "adapter's folder or a name on the hub.",
        "Settings of training that a probe does not read are refused as flags and passed over in a file. A completion "
        "passes where the reward --pass_by is at least --pass_at.",
    ),
    "evaluate": (
        "an evaluation",
        EvaluateOptions,
        READ_BY_EVALUATION,
        "Ask models about records that they did not learn from, with the frames, prompts, parsers and rewards of "
        "training. MODEL is the folder of a run, a checkpoint or an adapter, or a name on the hub. DATA is what "
        "--dataset_use takes, without weights. Two models are compared record by record.",
        "The settings of the run that the last such MODEL comes from are taken, and those of --config FILE in their "
        "place. Flags override both. A completion passes where the reward --pass_by is at least --pass_at.",
    ),
    "try": (
        "a question",
        TryOptions,
        READ_BY_TRY,
        "Ask a model about clips and images, and see what it saw: the frames with their times, the prompt as it is "
        "read, the answers, and with --solution their rewards. Frames, prompts, sampling and rewards are those of "
        "training. MODEL is a checkpoint, an adapter's folder, a run's folder or a name on the hub. The question may "
        "be a file that holds it. Where it has no <video> or <image> tags, each clip and image comes before it on a "
        "line of its own.",
        "What no flag sets is as in the run that trained the model, where that is known, else the default of training.",
    ),
}


def help_text(command: str) -> str:
    """The ``--help`` of ``qwenvl probe``, ``evaluate`` or ``try``."""
    title, own, read, description, epilog = _HELP[command]
    parser = FlagParser(usage=USAGE[command], add_help=False, description=description, epilog=epilog)
    parser.add_options(own, group=parser.add_argument_group(title))
    groups = [group for group in FLAG_GROUPS if group is not TrainerOptions]
    for group in groups:
        if (names := names_of(group)) & read:
            title = f"as in training: {str(group.__doc__).rstrip('.').lower()}"
            parser.add_options(group, names - read, parser.add_argument_group(title))
    others = sorted(read - names_of(*groups))
    parser.add_argument_group("of the Trainer", " ".join(f"--{name}" for name in others))
    return parser.format_help()


def run_command(
    name: str,
    argv: Sequence[str] | None,
    request_of: Callable[[Sequence[str]], Request],
    run: Callable[[Request], str],
) -> int:
    """Read the command line, run the command and print its result. Standard output has nothing but the result.

    Args:
        name: ``probe``, ``evaluate`` or ``try``.
        run: returns the text to print, "" for none.

    Returns:
        The exit status: 0, or 2 for a bad command line. Bad data ends the process with 1.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text(name))
        return 0
    command = f"qwenvl {name}"
    with tells_errors_once(), ends_at_ctrl_c(command):
        say(f"{command}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
        from qwenvl.train.run.failures import told_in_one_line
        from qwenvl.train.run.lock import RunFolderError

        with told_in_one_line(command, None), told_to_the_user(command, (*DATA_ERRORS, RunFolderError)):
            with redirect_stdout(sys.stderr):
                try:
                    request = request_of(argv)
                except DATA_ERRORS:
                    raise
                except (ValueError, FileNotFoundError) as error:
                    tell(f"usage: {USAGE[name]}\nerror: {error}")
                    return 2
                shown = run(request)
            if shown:
                print(shown)
    return 0
