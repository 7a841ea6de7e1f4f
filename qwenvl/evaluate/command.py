"""The common part of the commands that ask models: their help, their beginning and their failures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Protocol, TypeVar

from qwenvl.config.flags import FlagParser
from qwenvl.console import ends_at_ctrl_c, settle_output
from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
from qwenvl.evaluate.settings import names_of
from qwenvl.failure import tell, tells_errors_once
from qwenvl.option import Options
from qwenvl.own_code import OwnCodeError
from qwenvl.rewards import RewardError
from qwenvl.run_lock import RunFolderError
from qwenvl.run_log.log import RunLogError

Request = TypeVar("Request", covariant=True)


class RequestOf(Protocol[Request]):
    """Reads the command line of a command, and with ``begins`` checks what this machine has before torch is loaded."""

    def __call__(self, argv: Sequence[str], begins: bool = False) -> Request: ...


MODEL = "MODEL is a checkpoint, an adapter's folder, a run's folder or a name on the hub"
PASSES = "A completion passes where the reward --pass_by is at least --pass_at."


@dataclass(frozen=True)
class About:
    """The description of a command, for its ``--help``.

    Attributes:
        usage: the form of its command line.
        own: its own options.
        groups: the options of training that it reads.
        description: what it does.
    """

    usage: str
    own: type[Options]
    groups: Sequence[type[Options]]
    description: str


def help_text(about: About) -> str:
    """The ``--help`` of a command."""
    parser = FlagParser(usage=about.usage, add_help=False, description=about.description)
    parser.add_options(about.own, group=parser.add_argument_group("options"))
    names = " ".join(f"--{name}" for name in sorted(names_of(*about.groups)))
    parser.add_argument_group("flags of training, which qwenvl train --help explains", names)
    return parser.format_help()


def run_command(
    name: str,
    argv: Sequence[str] | None,
    request_of: RequestOf[Request],
    run: Callable[[Request], str],
    about: About,
) -> int:
    """Read the command line, run the command and print its result. Standard output has nothing but the result.

    Args:
        name: of the command.
        run: returns the text to print, "" for none.

    Returns:
        The exit status: 0, or 2 for a bad command line. Bad data ends the process with 1.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text(about))
        return 0
    command = f"qwenvl {name}"
    known = (*DATA_ERRORS, RewardError, OwnCodeError, RunLogError, RunFolderError)
    with tells_errors_once(), ends_at_ctrl_c(command), told_to_the_user(command, known), redirect_stdout(sys.stderr):
        try:
            request = request_of(argv, begins=True)
        except known:
            raise
        except (ValueError, OSError, ImportError) as error:
            tell(f"usage: {about.usage}\nerror: {error}")
            return 2
        # This loads torch, for which no wrong command line should wait.
        from qwenvl.step.failures import told_in_one_line

        settle_output()
        with told_in_one_line(command):
            shown = run(request)
    if shown:
        print(shown)
    return 0
