"""Handles SIGTERM, SIGHUP and SIGUSR1 outside of training steps, and in forks of the run. Imports no torch."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from qwenvl.failure import has_failed

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ASKED_TO_END = os.EX_TEMPFAIL
"""The exit status of one of several processes that a signal ended outside of a step. It is not 0, so that a launcher
ends the others, which may wait for this one."""
_FORK_WAITS = 0.1  # seconds for the run to take a signal that both of them got
_SAME_SIGNAL = 5.0  # seconds in which forks take a signal for that of the run
_mask = threading.local()  # the signals that a thread blocks but for its forks


@cache
def _last_signal(process: int) -> mmap.mmap:
    """Memory shared by a process and its forks: the time when the process took its last signal (``time.monotonic``)."""
    return mmap.mmap(-1, 8)


def prepare_forks() -> None:
    """Make forks of this process end by signals. Call it before the forks are made and handlers are set."""
    _last_signal(os.getpid())
    _hold_back()


@cache
def _hold_back() -> None:
    """Hold signals back while a process forks: Python in the fork would discard those that come before it is set up."""

    def block() -> None:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=unblock)


def note_signal() -> None:
    """Record for forks that this process has taken a signal now."""
    _last_signal(os.getpid())[:] = struct.pack("d", time.monotonic())


def end_fork(number: int, process: int) -> None:
    """End a fork of ``process`` by a signal, unless both got the signal: the step that is finished may need the fork.

    A fork, of a reward for example, inherits the handlers of the run. If it ignored each signal, ``terminate`` of
    multiprocessing would have no effect on it, and the end of a ``Pool`` would wait for good.
    """
    until = time.monotonic() + _FORK_WAITS
    while time.monotonic() < until:
        if time.monotonic() - struct.unpack("d", _last_signal(process)[:])[0] < _SAME_SIGNAL:
            return
        time.sleep(0.005)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


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
    process = os.getpid()
    prepare_forks()

    def end(number: int, frame: Any) -> None:
        if os.getpid() != process:
            return end_fork(number, process)
        note_signal()
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
