"""Shows the progress of a run: its phase during a long step, and plain lines where no board is drawn."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback

from qwenvl.console import evaluation_lines, say
from qwenvl.step.meter import Meter

SHOWN = (
    ("reward/total", "reward"),
    ("kl", "kl"),
    ("completion/length_mean", "tokens"),
    ("target/loss", "loss"),
    ("look/calls", "looks"),
    ("look/looked_frac", "looked"),
)
"""The metrics in a line, and their names there. The run folder has all metrics."""
LONG = 60.0  # seconds between two lines on the phase of a step, at least


@contextmanager
def display_closed(trainer: Trainer) -> Iterator[None]:
    """Close the display when an error leaves the block, so that the message of the error has lines of its own."""
    try:
        yield
    except BaseException:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, Progress):
                callback.close()
        raise


class Progress(TrainerCallback):
    """A display that also shows the phase of a long step, each second, by a thread of its own.

    The main thread may be within a pass of many minutes. Between steps, when processes are forked, the thread draws
    nothing, so that no fork inherits a lock of the terminal.

    Args:
        meter: has the current phase.
        clock: gives the time, in seconds.
        every: seconds between two looks at the phase. None: there is no thread, and a test calls ``tick``.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic, every: float | None = 1.0):
        self._meter = meter
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()  # held while the thread draws
        self._over = threading.Event()
        self._step: tuple[int, int, float] | None = None  # the current step: its number, of how many, the time it began
        self._began = (0.0, 0)  # the time when training began, and the steps before it

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the thread, in the first process, and the clock of the remaining time."""
        self.close()
        self._began = (self._clock(), state.global_step)
        self._over = threading.Event()
        if state.is_world_process_zero and self._every is not None:
            threading.Thread(target=self._tick_until, args=(self._over, self._every), daemon=True).start()

    def _tick_until(self, over: threading.Event, every: float) -> None:
        """Show the phase again and again: the body of the thread, which has the event of its own training."""
        while not over.wait(every):
            self.tick()

    def on_step_begin(self, args, state, control, **kwargs):
        """Show the step from now on."""
        with self._lock:
            self._step = (state.global_step + 1, state.max_steps, self._clock())

    def on_step_end(self, args, state, control, **kwargs):
        """Stop showing the step. Nothing is being drawn when this returns."""
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
        """Show the phase of the current step, if there is one."""
        with self._lock:
            if self._step is not None:
                step, steps, began = self._step
                self.within_step(step, steps, self._clock() - began, self._meter.phase())

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """Show the phase of a step that has taken these seconds so far."""
        raise NotImplementedError

    def left(self, state: Any) -> str:
        """The time until the last step, at the pace so far. Empty before the first step and after the last."""
        began, first = self._began
        if not first < state.global_step < state.max_steps:
            return ""
        pace = (self._clock() - began) / (state.global_step - first)
        return f"{tqdm.format_interval(pace * (state.max_steps - state.global_step))} left"


class ProgressLines(Progress):
    """Plain lines: at the first log entry, at the last, and at most one in five seconds.

    A step that takes longer than a minute has one more line each minute.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic, every: float | None = 1.0):
        super().__init__(meter, clock, every)
        self._latest: dict[str, str] = {}  # the last value of each metric: not every step samples, see num_iterations
        self._equal = False  # all groups have equal rewards: nothing is learned
        self._printed = -math.inf  # the time of the last line
        self._printed_phase = -math.inf  # and of the last line during a step
        self._evaluated = 0  # batches of the current evaluation

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control)
        self._printed = -math.inf

    def on_step_end(self, args, state, control, **kwargs):
        """Print a line for steps without a log entry."""
        super().on_step_end(args, state, control)
        if not control.should_log and self._is_time():
            self._print_step(state)

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """Print a line for a step that takes long, after a minute without a line."""
        now = self._clock()
        if min(seconds, now - max(self._printed, self._printed_phase)) >= LONG:
            say(f"step {step} of {steps}, {tqdm.format_interval(seconds)} so far: {doing}")
            self._printed_phase = now

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print a line of the numbers, and a line for each evaluation."""
        self._latest |= {short: f"{logs[name]:.3f}" for name, short in SHOWN if name in logs}
        if "group/zero_std_frac" in logs:
            self._equal = logs["group/zero_std_frac"] == 1
        if "loss" in logs and (state.global_step >= state.max_steps or self._is_time()):
            self._print_step(state)
        for line in evaluation_lines(state.global_step, logs):
            self._print(line)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Print a line now and then during an evaluation."""
        if self._evaluated == 0 and self._printed == -math.inf:
            self._printed = self._clock()
        self._evaluated += 1
        if self._is_time():
            of = f" of {len(eval_dataloader)}" if isinstance(eval_dataloader, Sized) else ""
            self._print(f"evaluation: batch {self._evaluated}{of}")

    def on_evaluate(self, args, state, control, **kwargs):
        """Count the batches of the next evaluation from 1."""
        self._evaluated = 0

    def _is_time(self) -> bool:
        """Whether the last line is old enough for another one."""
        return self._clock() - self._printed >= 5.0

    def _print_step(self, state) -> None:
        """Print the step, the remaining time and the last numbers."""
        numbers = ", ".join(f"{name} {value}" for name, value in self._latest.items())
        if self._equal:
            numbers += ", all groups equal"
        line = f"step {state.global_step} of {state.max_steps}"
        left = self.left(state)
        if left:
            line += f", {left}"
        if numbers:
            line += f": {numbers}"
        self._print(line)

    def _print(self, line: str) -> None:
        say(line)
        self._printed = self._clock()
