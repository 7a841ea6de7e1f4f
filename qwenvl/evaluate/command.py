"""What the commands that ask models share: their help, and how a command begins and fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence, Set
from contextlib import redirect_stdout
from typing import Any, TypeVar

from qwenvl.config.flags import FlagParser
from qwenvl.evaluate.settings import (
    READ_BY_EVALUATION,
    READ_BY_PROBE,
    READ_BY_TRY,
    EvaluateOptions,
    ProbeOptions,
    TryOptions,
)
from qwenvl.failure import tell, tells_errors_once
from qwenvl.train.display.console import ends_at_ctrl_c, say

Request = TypeVar("Request")

MODEL = "MODEL is a checkpoint, an adapter's folder, a run's folder or a name on the hub"


About = tuple[str, type[Any], Set[str], str]
"""The usage of a command, its own options, the flags of training that it reads, and what it does."""

ABOUT: dict[str, About] = {
    "probe": (
        "qwenvl probe MODEL DATA [--samples 8] [--limit 200] [--flag of training value ...]\n"
        "       qwenvl probe run.yaml",
        ProbeOptions,
        READ_BY_PROBE - {"model_name_or_path", "dataset_use"},
        "Sample completions for the prompts of a training run before its first step: are some right, do they differ, "
        f"are they whole? A group whose completions are all right or all wrong teaches nothing. {MODEL}. DATA is what "
        "--dataset_use takes. A completion passes where the reward --pass_by is at least --pass_at.",
    ),
    "evaluate": (
        "qwenvl evaluate MODEL [MODEL2 ...] DATA [--controls all] [--samples 8] [--flag of training value ...]",
        EvaluateOptions,
        READ_BY_EVALUATION,
        "Evaluate models on held-out records, with the frames, prompts, parsers and rewards of training. "
        f"{MODEL}. DATA is what --dataset_use takes, without weights. Further models are compared with the first "
        "record by record. Settings are those of the run that the last MODEL comes from, or of --config FILE; flags "
        "override both. A completion passes where the reward --pass_by is at least --pass_at.",
    ),
    "try": (
        'qwenvl try MODEL [CLIP or IMAGE ...] "question" [-n 4] [--solution TEXT] [--flag of training value ...]',
        TryOptions,
        READ_BY_TRY,
        "Answer a question about clips and images: the times of the frames, the prompt as the model reads it, the "
        f"answers, and with --solution their rewards. {MODEL}. The question is a text or a file that holds it; each "
        "clip and image comes before it unless it has <video> or <image> tags. Settings are those of the run that "
        "trained the model, if that is known.",
    ),
}


def help_text(about: About) -> str:
    """The ``--help`` of a command."""
    usage, own, read, description = about
    parser = FlagParser(usage=usage, add_help=False, description=description)
    parser.add_options(own, group=parser.add_argument_group("options"))
    names = " ".join(f"--{name}" for name in sorted(read))
    parser.add_argument_group("flags of training, which qwenvl train --help explains", names)
    return parser.format_help()


def run_command(
    name: str,
    argv: Sequence[str] | None,
    request_of: Callable[[Sequence[str]], Request],
    run: Callable[[Request], str],
    about: About | None = None,
) -> int:
    """Read the command line, run the command and print its result. Standard output has nothing but the result.

    Args:
        name: of the command.
        run: returns the text to print, "" for none.
        about: of a command that is not in ``ABOUT``.

    Returns:
        The exit status: 0, or 2 for a bad command line. Bad data ends the process with 1.
    """
    argv, about = list(sys.argv[1:] if argv is None else argv), about or ABOUT[name]
    if {"-h", "--help"} & set(argv):
        print(help_text(about))
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
                    tell(f"usage: {about[0]}\nerror: {error}")
                    return 2
                shown = run(request)
            if shown:
                print(shown)
    return 0
