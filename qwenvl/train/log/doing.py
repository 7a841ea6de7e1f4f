"""The current phase of a step and how far it is, printed while a step takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from transformers import TrainerCallback

from qwenvl.rollout.engine import Drawing
from qwenvl.train.log.meter import Meter

PHASES = {
    **{"sample": "sampling", "logp": "log-probs", "reward": "rewards", "data_wait": "waiting for data"},
    **{"refill": "other prompts", "contrast": "other orders"},
}
"""Phases of a step by the names of their clocks, for people. The others are called as their clocks are."""
BY_MICRO_BATCH = ("time/logp_s", "time/backward_s")


def phase_name(clock: str) -> str:
    """The phase that a clock measures.

    Example:
        >>> phase_name("time/logp_s"), phase_name("time/vision_s")
        ('log-probs', 'vision')
    """
    short = clock.removeprefix("time/").removesuffix("_s")
    return PHASES.get(short, short.replace("_", " "))


@dataclass(frozen=True)
class Doing:
    """What this process does now. Other threads may ask.

    Attributes:
        meter: whose clocks run.
        drawing: of the engine. None where other processes sample.
    """

    meter: Meter
    drawing: Drawing | None = None

    def words(self) -> str:
        """The phase, with how far it is where that is known.

        Example:
            >>> meter = Meter()
            >>> meter.step(micro_batches=4)
            >>> with meter.time("time/logp_s"):
            ...     Doing(meter).words()
            'log-probs, micro-batch 1 of 4'
        """
        clock, of = self.meter.running, self.meter.micro_batches
        done = self.meter.starts["time/backward_s"]
        if clock is None:
            return "update of the weights" if of and done >= of else "between phases"
        far = ""
        if clock in BY_MICRO_BATCH and of:
            number = done if clock == "time/backward_s" else done + 1
            far = f"micro-batch {min(number, of)} of {of}" if of > 1 else ""
        elif self.drawing is not None:
            far = self.drawing.words()
        return ", ".join(part for part in (phase_name(clock), far) if part)

    def beat(self) -> tuple[int, int]:
        """Another value whenever something went on: a phase began, or tokens were drawn."""
        return self.meter.started, 0 if self.drawing is None else self.drawing.drawn


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
