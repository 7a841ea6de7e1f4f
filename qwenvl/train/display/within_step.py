"""A long step says what it is at, while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from transformers import TrainerCallback

from qwenvl.train.log.doing import Doing


class ShowsSteps(Protocol):
    """A display that a step can be seen in while it goes on."""

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """Shows what step ``step`` of ``steps``, which began so many seconds ago, is at."""


class WithinStep(TrainerCallback):
    """Has a display show each second what the step is at, in a thread of its own.

    The main thread may be within a pass of many minutes. Between steps, when processes are forked, the thread draws
    nothing, so that no lock of a terminal is taken.

    Args:
        clock: gives the time, in seconds.
        every: seconds. None: there is no thread, and ``tick`` is called by others.
    """

    def __init__(
        self,
        display: ShowsSteps,
        doing: Doing,
        clock: Callable[[], float] = time.monotonic,
        every: float | None = 1.0,
    ):
        self._display, self._doing, self._clock, self._every = display, doing, clock, every
        self._lock = threading.Lock()  # held while the display draws
        self._over = threading.Event()
        self._step: tuple[int, int, float] | None = None  # that goes on: its number, of how many, when it began

    def on_train_begin(self, args, state, control, **kwargs):
        """The thread begins, in the first process."""
        self.close()
        self._over = threading.Event()
        if state.is_world_process_zero and self._every is not None:
            threading.Thread(target=self._run, args=(self._over, self._every), daemon=True).start()

    def on_step_begin(self, args, state, control, **kwargs):
        """From now on it is shown."""
        with self._lock:
            self._step = (state.global_step + 1, state.max_steps, self._clock())

    def on_step_end(self, args, state, control, **kwargs):
        """Nothing is shown any more, and nothing is being drawn."""
        with self._lock:
            self._step = None

    def on_train_end(self, args, state, control, **kwargs):
        """The thread ends."""
        self.close()

    def close(self) -> None:
        """Ends the thread, where an error ends training too."""
        self._over.set()
        with self._lock:
            self._step = None

    def tick(self) -> None:
        """Has the step shown that goes on, if one does."""
        with self._lock:
            if self._step is not None:
                step, steps, began = self._step
                self._display.within_step(step, steps, self._clock() - began, self._doing.words())

    def _run(self, over: threading.Event, every: float) -> None:
        while not over.wait(every):
            self.tick()
