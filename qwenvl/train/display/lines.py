"""Progress as plain lines, for a file, a pipe, or a terminal without a board."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sized

from tqdm.auto import tqdm
from transformers import TrainerCallback

from qwenvl.train.display.console import say

SHOWN = (("reward/total", "reward"), ("kl", "kl"), ("completion/length_mean", "tokens"), ("target/loss", "loss"))
"""The metrics in a line, and their names there. The run folder has all metrics."""
SHORT = 5.0  # seconds of a step after which a board shows its phase
LONG = 60.0  # seconds between two lines on the phase of a step, at least


class ProgressLines(TrainerCallback):
    """Plain lines: at the first log entry, at the last, and at most one in ``seconds``.

    A step that takes longer than a minute has one more line each minute.

    Args:
        seconds: the least time between two lines.
        clock: gives the time, in seconds.
    """

    def __init__(self, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._latest: dict[str, str] = {}  # not every step samples: see num_iterations
        self._printed: float | None = None  # when
        self._printed_phase: float | None = None  # when, during a step
        self._evaluated = 0  # batches of the current evaluation
        self._began = (0.0, 0)  # when, and after which step

    def on_train_begin(self, args, state, control, **kwargs):
        """The clock of the remaining time starts."""
        self._began, self._printed = (self._clock(), state.global_step), None

    def on_step_end(self, args, state, control, **kwargs):
        """A line for steps without a log entry."""
        if not control.should_log and self._is_time():
            self._print_step(state)

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """A line for a step that takes long, after a minute without one."""
        now = self._clock()
        printed = [when for when in (self._printed, self._printed_phase) if when is not None]
        if min([seconds, *(now - when for when in printed)]) >= LONG:
            say(f"step {step} of {steps}, {tqdm.format_interval(seconds)} so far: {doing}")
            self._printed_phase = now

    def on_log(self, args, state, control, logs=None, **kwargs):
        """A line of the numbers, and one for each evaluation."""
        self._latest |= {short: f"{logs[name]:.3f}" for name, short in SHOWN if name in logs}
        if "loss" in logs and (self._printed is None or state.global_step >= state.max_steps or self._is_time()):
            self._print_step(state)
        for line in evaluation_lines(state.global_step, logs):
            self._print(line)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """A line now and then during an evaluation."""
        if self._evaluated == 0 and self._printed is None:
            self._printed = self._clock()
        self._evaluated += 1
        if self._is_time():
            of = f" of {len(eval_dataloader)}" if isinstance(eval_dataloader, Sized) else ""
            self._print(f"evaluation: batch {self._evaluated}{of}")

    def on_evaluate(self, args, state, control, **kwargs):
        """The next evaluation counts from 1."""
        self._evaluated = 0

    def _is_time(self) -> bool:
        return self._printed is None or self._clock() - self._printed >= self._seconds

    def _print_step(self, state) -> None:
        began, first = self._began
        done = state.global_step - first
        left = (self._clock() - began) / max(1, done) * (state.max_steps - state.global_step)
        numbers = ", ".join(f"{name} {value}" for name, value in self._latest.items())
        remaining = f", {tqdm.format_interval(left)} left" if state.global_step < state.max_steps else ""
        self._print(f"step {state.global_step} of {state.max_steps}{remaining}{': ' if numbers else ''}{numbers}")

    def _print(self, line: str) -> None:
        say(line)
        self._printed = self._clock()


def evaluation_lines(step: int, logs: Mapping[str, float]) -> list[str]:
    """One line for each evaluation in a log entry."""
    return [f"step {step}: {name} {with_interval(name, logs)}" for name in evaluated(logs)]


def evaluated(logs: Mapping[str, float]) -> list[str]:
    """The main metrics of the evaluations in a log entry: total rewards, or losses."""
    ends = ("_total_reward", "_loss")
    return [name for name in logs if name.endswith(ends) and name != "train_loss"]  # the Trainer's own


def with_interval(name: str, logs: Mapping[str, float]) -> str:
    """A metric of an evaluation, with its interval if it has one. The interval of a single prompt is NaN."""
    interval = logs.get(f"{name}_ci95")
    return f"{logs[name]:.3f}" if interval is None or math.isnan(interval) else f"{logs[name]:.3f} +- {interval:.3f}"
