"""``python -m qwenvl.train.run.launch``: torchrun that forwards signals, and reports a failed process in one line.

torchrun gives its processes 30 seconds after a signal, and ends with an error. Here the processes get the signal: they
finish their step, save a checkpoint and end with status 0, and so does the launcher. Before their first step they end
at once, with status 0 too. A process that fails has printed why; torchrun would add some fifty lines.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from qwenvl.train.run.signals import ASKED_TO_END, SIGNALS, stop_message

COMMAND = "qwenvl train"
_forwarded: list[int] = []  # signals, in their order


def main(argv: Sequence[str] | None = None) -> None:
    """Start processes with the arguments of torchrun. End with the status of the first one that failed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in (api.__name__, "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    arguments = run.parse_args(sys.argv[1:] if argv is None else argv)
    arguments.signals_to_handle = "SIGINT,SIGQUIT"
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _forward)
    try:
        run.run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if _forwarded and failure.exitcode in (ASKED_TO_END, -signal.SIGUSR1):
            if failure.exitcode != ASKED_TO_END:  # the signal came before the process had a handler
                print(stop_message(COMMAND, signal.Signals(_forwarded[0]).name), file=sys.stderr)
            return
        print(f"{COMMAND}: {_ended(rank, failure.exitcode)}, and the run with it", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
    except api.SignalException as error:
        sys.exit(128 + error.sigval)


def _forward(number: int, frame: Any) -> None:
    """Pass a signal on to the processes of the run, as SIGUSR1."""
    _forwarded.append(number)
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGUSR1)


def _ended(process: int, code: int) -> str:
    """A sentence on how a process ended, by its exit code. A negative code is the signal that ended it."""
    if code > 0:
        return f"process {process} ended with status {code}"
    name = signal.Signals(-code).name
    why = " (by the system, most often, because memory was full)" if name == "SIGKILL" else ""
    return f"process {process} was ended by {name}{why}"


if __name__ == "__main__":
    main()
