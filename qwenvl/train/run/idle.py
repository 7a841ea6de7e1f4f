"""Signals that come while no step goes on: before the first one, or after the last."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qwenvl.failure import has_failed

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ASKED_TO_END = os.EX_TEMPFAIL
"""The status of one of several processes that ends so. The others may wait for it, and a launcher ends them where it is
not 0."""


def told(command: str, name: str) -> str:
    """What is said of it, in a line."""
    return f"{command}: stopped by {name} outside of its steps: start the same command again"


@contextmanager
def ends_at_signals(command: str) -> Iterator[None]:
    """End the process at a signal, where nothing is to be saved: alone with status 0, and one of several with another.

    Training takes the signals itself while its steps go on (``StopOnSignal``). What the process ignores, or another
    handler takes, is left to it.

    Args:
        command: what the line begins with that says so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def end(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a fork: the signal is for the run, which got it too
            return
        if has_failed():  # the launcher ends the others
            os._exit(1)
        if os.environ.get("RANK", "0") == "0":
            name = signal.Signals(number).name
            os.write(2, f"{told(command, name)}\n".encode())
        raise SystemExit(ASKED_TO_END if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0)

    taken = [each for each in SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
