"""The display of a run: the board, plain lines or none, and the thread that shows the phase of a long step."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ProgressCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.rollout.options import LIVE_COMPLETIONS_EVERY
from qwenvl.train.display.board import LiveBoard
from qwenvl.train.display.completions import ShownCompletions
from qwenvl.train.display.console import shows_bars
from qwenvl.train.display.lines import ProgressLines
from qwenvl.train.journal import Journal
from qwenvl.train.meter import Doing

Display = Literal["rich", "plain", "none"]


def display_of(args: GRPOConfig) -> Display:
    """The display that flags and terminal come to. Where a board can't be drawn, lines are plain."""
    if args.display == "none" or (args.display is None and args.disable_tqdm):
        return "none"
    draws = shows_bars() and os.environ.get("TERM") not in ("dumb", "unknown")
    draws = draws and str(sys.stderr.encoding).lower().startswith("utf")  # the blocks of its curves
    return "rich" if draws and args.display != "plain" else "plain"


def install_display(trainer: Trainer, journal: Journal) -> None:
    """Replace the Trainer's progress bar."""
    display = display_of(trainer.args)
    trainer.remove_callback(ProgressCallback)
    if display == "none":
        return
    every = trainer.args.log_completions_every
    if every is None:
        every = LIVE_COMPLETIONS_EVERY if display == "rich" else 0
    if every:
        trainer.add_callback(ShownCompletions(journal, every))
    shown = LiveBoard() if display == "rich" else ProgressLines()
    trainer.add_callback(WithinStep(shown, trainer.doing))  # before the display: its step ends first
    trainer.add_callback(shown)


@contextmanager
def display_closed(trainer: Trainer) -> Iterator[None]:
    """Close the display when an error leaves the block, so that the message of the error has lines of its own."""
    try:
        yield
    except BaseException:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, LiveBoard | WithinStep):
                callback.close()
        raise


class WithinStep(TrainerCallback):
    """Makes a display show the phase of the step each second, in a thread of its own.

    The main thread may be within a pass of many minutes. Between steps, when processes are forked, the thread draws
    nothing, so that no fork inherits a lock of the terminal.

    Args:
        clock: gives the time, in seconds.
        every: seconds. None: there is no thread, and others call ``tick``.
    """

    def __init__(
        self,
        display: Any,
        doing: Doing,
        clock: Callable[[], float] = time.monotonic,
        every: float | None = 1.0,
    ):
        self._display, self._doing, self._clock, self._every = display, doing, clock, every
        self._lock = threading.Lock()  # held while the display draws
        self._over = threading.Event()
        self._step: tuple[int, int, float] | None = None  # the current one: its number, of how many, when it began

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the thread, in the first process."""
        self.close()
        self._over = over = threading.Event()
        if state.is_world_process_zero and self._every is not None:

            def run(every: float) -> None:
                while not over.wait(every):
                    self.tick()

            threading.Thread(target=run, args=(self._every,), daemon=True).start()

    def on_step_begin(self, args, state, control, **kwargs):
        """From now on the step is shown."""
        with self._lock:
            self._step = (state.global_step + 1, state.max_steps, self._clock())

    def on_step_end(self, args, state, control, **kwargs):
        """The step is not shown any more, and nothing is being drawn."""
        with self._lock:
            self._step = None

    def on_train_end(self, args, state, control, **kwargs):
        """End the thread."""
        self.close()

    def close(self) -> None:
        """End the thread, also where an error ends training."""
        self._over.set()
        with self._lock:
            self._step = None

    def tick(self) -> None:
        """Show the current step, if there is one."""
        with self._lock:
            if self._step is not None:
                step, steps, began = self._step
                self._display.within_step(step, steps, self._clock() - began, self._doing.words())
