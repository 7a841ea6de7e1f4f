"""A run that makes no progress ends, and says where it stands."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.train.log.doing import Doing

BACKUP_SECONDS = 30.0  # after its time a thread that no Python code can stop is ended without it


class StallWatch(TrainerCallback):
    """Ends the process with status 1 after ``stall_timeout`` minutes without progress.

    Each process of a run watches itself. Where one of them hangs the others wait for it, so that all of them end and
    say where their threads stand.

    Args:
        doing: whatever goes on within a step is progress too: a phase that begins, a token that is drawn.
    """

    def __init__(self, args: GRPOConfig, doing: Doing):
        self._doing, self._beat = doing, doing.beat()
        self._limit = 60 * args.stall_timeout
        self._process = args.process_index
        self._step, self._last = 0, time.monotonic()

    @contextmanager
    def watches(self) -> Iterator[None]:
        """Watch within."""
        if not self._limit:
            yield
            return
        over = threading.Event()
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
                said = (
                    f"no progress for {self._limit / 60:g} minutes (--stall_timeout) since step {self._step} "
                    f"({self._doing.words()}): process {self._process} ends. Its threads, the innermost call first:\n"
                )
                os.write(2, said.encode())
                faulthandler.dump_traceback(file=2)
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
