"""A run that makes no progress ends, and says where it stands.

A process that waits for another one has made its last progress before that one, so its time is over first. Launchers
then end the others. So it has the others of its machine say where they stand before it ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from accelerate.utils import gather_object
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import told_before
from qwenvl.train.meter import Doing

SECONDS_FOR_EACH = 0.5  # that a process has to write down where its threads stand
BACKUP_SECONDS = 30.0  # after its time a thread that no Python code can stop is ended without it


class StallWatch(TrainerCallback):
    """Ends the process with status 1 after ``stall_timeout`` minutes without progress.

    Each process of a run watches itself. Where one of them hangs the others wait for it, so that all of them end. The
    first one of a machine tells where the threads of all its processes stand, each by a signal to it that is handled in
    C, so that threads that hang with Python's lock are told of too. A process that is stopped tells nothing.

    Args:
        doing: whatever goes on within a step is progress too: a phase that begins, a token that is drawn.
    """

    def __init__(self, args: GRPOConfig, doing: Doing):
        self._doing, self._beat = doing, doing.beat()
        self._limit = 60 * args.stall_timeout
        self._process = args.process_index
        # Without a launcher that ends the others each has the time to tell of itself.
        self._alone = args.world_size == 1 or "TORCHELASTIC_ERROR_FILE" not in os.environ
        self._others: list[tuple[int, int]] = []  # of this machine: their numbers in the run, and those of the system
        self._step, self._last = 0, time.monotonic()

    @contextmanager
    def watches(self) -> Iterator[None]:
        """Watch within."""
        if not self._limit:
            yield
            return
        over = threading.Event()
        self._others = [] if self._alone else self._meet()
        self._goes_on()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            faulthandler.cancel_dump_traceback_later()

    def _goes_on(self) -> None:
        self._last = time.monotonic()
        if self._limit:
            # In C and without Python's lock, which a thread that hangs may hold.
            faulthandler.dump_traceback_later(self._limit + BACKUP_SECONDS, exit=True, file=2)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(min(1.0, self._limit / 4)):
            if (beat := self._doing.beat()) != self._beat:
                self._beat = beat
                self._goes_on()
            if time.monotonic() - self._last >= self._limit:
                self._end()

    def _meet(self) -> list[tuple[int, int]]:
        """The other processes of this machine, all of which can be asked from now on where they stand."""
        faulthandler.register(signal.SIGUSR2, file=2)  # for good: without it the signal would end the process
        host = socket.gethostname()
        all_of_them = gather_object([(host, self._process, os.getpid())])
        return [(process, pid) for of, process, pid in all_of_them if of == host and process != self._process]

    def _end(self) -> NoReturn:
        said = (
            f"no progress for {self._limit / 60:g} minutes (--stall_timeout) since step {self._step} "
            f"({self._doing.words()}): process {self._process} ends"
        )
        before = told_before(said) if self._others else None
        if before is not None and before.startswith(said.partition(" since ")[0]):  # by which this one is told of too
            time.sleep(SECONDS_FOR_EACH * (1 + len(self._others)))
            os._exit(1)
        os.write(2, f"{said}. Its threads, the innermost call first:\n".encode())
        faulthandler.dump_traceback(file=2)
        for process, pid in [] if before is not None else self._others:
            os.write(2, f"process {process} is then told to end. Its threads:\n".encode())
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
                time.sleep(SECONDS_FOR_EACH)
        os._exit(1)

    def on_substep_end(self, args, state, control, **kwargs):
        """A micro-batch is done."""
        self._goes_on()

    def on_step_end(self, args, state, control, **kwargs):
        """A step is done."""
        self._step = state.global_step
        self._goes_on()

    def on_prediction_step(self, args, state, control, **kwargs):
        """A batch of an evaluation is done."""
        self._goes_on()

    def on_evaluate(self, args, state, control, **kwargs):
        """An evaluation is done."""
        self._goes_on()

    def on_save(self, args, state, control, **kwargs):
        """A checkpoint is saved."""
        self._goes_on()
