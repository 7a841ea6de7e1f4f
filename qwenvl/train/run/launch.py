"""``python -m qwenvl.train.run.launch``: torchrun, which hands signals on and tells in a line which process failed.

torchrun gives its processes 30 seconds after a signal, and ends with an error itself. Here the processes of the run are
told instead: they finish their step, save a checkpoint and end with status 0, and so does this one. Before their first
step they end at once, which is no failure either. Where a process fails, it has told why. torchrun would add some fifty
lines of its own.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from qwenvl.train.run.idle import ASKED_TO_END, SIGNALS, told

COMMAND = "qwenvl train"
_handed_on: list[int] = []  # signals, in the order in which they came


def main(argv: Sequence[str] | None = None) -> None:
    """Starts processes as torchrun does, and takes its arguments. Ends with the status of the first one that failed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in (api.__name__, "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    arguments = run.parse_args(sys.argv[1:] if argv is None else argv)
    arguments.signals_to_handle = "SIGINT,SIGQUIT"
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _hand_on)
    try:
        run.run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if _handed_on and failure.exitcode in (ASKED_TO_END, -signal.SIGUSR1):
            if failure.exitcode != ASKED_TO_END:  # it came before this process could take it
                print(told(COMMAND, signal.Signals(_handed_on[0]).name), file=sys.stderr)
            return
        print(f"{COMMAND}: {_ended(rank, failure.exitcode)}, and the run with it", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
    except api.SignalException as error:
        sys.exit(128 + error.sigval)


def _hand_on(number: int, frame: Any) -> None:
    _handed_on.append(number)
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGUSR1)


def _ended(process: int, code: int) -> str:
    """How a process ended, by its exit code, where a negative one is the signal that ended it."""
    if code > 0:
        return f"process {process} ended with status {code}"
    name = signal.Signals(-code).name
    why = " (by the system, most often, because memory was full)" if name == "SIGKILL" else ""
    return f"process {process} was ended by {name}{why}"


if __name__ == "__main__":
    main()
