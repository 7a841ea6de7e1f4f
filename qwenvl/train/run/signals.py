"""SIGTERM, SIGHUP and SIGUSR1: outside of training steps, and in forks of the run. Imports no torch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from qwenvl.failure import has_failed

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ASKED_TO_END = os.EX_TEMPFAIL
"""The exit status of one of several processes that a signal ended outside of a step. It is not 0, so that a launcher
ends the others, which may wait for this one."""
_mask = threading.local()  # the signals that a thread blocks but for its forks


@cache
def prepare_forks() -> None:
    """Make forks of this process, of a reward for example, end by signals: they lose the handlers of the run.

    With these ``terminate`` of multiprocessing would have no effect on them, and the end of a ``Pool`` would wait for
    good. A signal that comes meanwhile is delivered once the fork has lost them.
    """

    def block() -> None:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)

    def in_fork() -> None:
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_fork)


def stop_message(command: str, name: str) -> str:
    """The line of a command that a signal ended outside of its steps."""
    return f"{command}: stopped by {name} outside of its steps: start the same command again"


@contextmanager
def ends_at_signals(command: str) -> Iterator[None]:
    """End the process at a signal when nothing is to be saved: alone with status 0, one of several with another.

    During training ``StopOnSignal`` takes the signals. Signals that the process ignores, or that have another handler,
    stay as they are.

    Args:
        command: the beginning of the line that is printed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    prepare_forks()

    def end(number: int, frame: Any) -> None:
        if has_failed():  # the launcher ends the others
            os._exit(1)
        if os.environ.get("RANK", "0") == "0":
            os.write(2, f"{stop_message(command, signal.Signals(number).name)}\n".encode())
        raise SystemExit(ASKED_TO_END if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0)

    handled = [each for each in SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
