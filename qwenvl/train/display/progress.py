"""How far a run is, while it goes on: a bar on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

from qwenvl.train.display.console import say

SHOWN = (("reward/total", "reward"), ("kl", "kl"), ("completion/length_mean", "tokens"), ("target/loss", "loss"))
"""The metrics that are shown while a run goes on, and their names there. All others are in the run folder."""


SHORT = 5.0  # seconds of a step after which a live display says what it is at
LONG = 60.0  # seconds between two lines that say what a step is at, at least


class ProgressBar(ProgressCallback):
    """One live line on a terminal: steps, time left, reward and KL."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._latest: dict[str, str] = {}  # not every step samples: see num_iterations

    def on_train_begin(self, args, state, control, **kwargs):
        """The line begins."""
        keep_lines_apart()
        super().on_train_begin(args, state, control, **kwargs)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """A line of its own for an evaluation."""
        if self.prediction_bar is None:
            keep_lines_apart()
        super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Updates the line. Evaluations get a line of their own."""
        if not state.is_world_process_zero:
            return
        if self.training_bar is not None:
            self._latest |= latest(logs)
            if self._latest:
                self.training_bar.set_postfix(self._latest)
        for line in evaluation_lines(state.global_step, logs):
            tqdm.write(line)

    def on_step_end(self, args, state, control, **kwargs):
        """One step more."""
        if state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.set_postfix(self._latest, refresh=False)
        super().on_step_end(args, state, control, **kwargs)

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """What the step is at, once it has taken some seconds."""
        if self.training_bar is not None and seconds >= SHORT:
            self.training_bar.set_postfix({**self._latest, "now": doing})

    def close(self) -> None:
        """Ends the lines of the bars."""
        for bar in (self.training_bar, self.prediction_bar):
            if bar is not None:
                bar.close()


@dataclass(frozen=True)
class BarsCleared:
    """A function that writes on the terminal, called while the bars are cleared. They are drawn again below."""

    write: Callable[..., None]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with tqdm.external_write_mode(sys.stderr):
            self.write(*args, **kwargs)


def keep_lines_apart() -> None:
    """From here on each log line and each warning of Python stands on a line of its own, and not behind a bar."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for each in loggers for handler in getattr(each, "handlers", ())]
    for handler in (*handlers, logging.lastResort):
        on_terminal = getattr(handler, "stream", None) in (sys.stdout, sys.stderr)
        if on_terminal and not isinstance(handler.emit, BarsCleared):
            setattr(handler, "emit", BarsCleared(handler.emit))  # noqa: B010
    if not isinstance(warnings.showwarning, BarsCleared):
        setattr(warnings, "showwarning", BarsCleared(warnings.showwarning))  # noqa: B010


class ProgressLines(TrainerCallback):
    """Plain lines where there is no terminal: at the first log entry, at the last, and at most one in ``seconds``.

    A step that takes longer than a minute has one more line each minute.

    Args:
        seconds: the least time between two lines.
        clock: gives the time, in seconds.
    """

    def __init__(self, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._latest: dict[str, str] = {}
        self._told: float | None = None  # when
        self._told_within: float | None = None  # when, of a step that went on
        self._evaluated = 0  # batches of the evaluation that goes on
        self._began = (0.0, 0)  # when, and after which step

    def on_train_begin(self, args, state, control, **kwargs):
        """The clock of the time left starts."""
        self._began, self._told = (self._clock(), state.global_step), None

    def on_step_end(self, args, state, control, **kwargs):
        """A line for steps without a log entry."""
        if not control.should_log and self._is_time():
            self._tell_of_training(state)

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """A line for a step that takes long, where none was told for a minute."""
        now = self._clock()
        told = [when for when in (self._told, self._told_within) if when is not None]
        if min([seconds, *(now - when for when in told)]) >= LONG:
            say(f"step {step} of {steps}, {tqdm.format_interval(seconds)} so far: {doing}")
            self._told_within = now

    def on_log(self, args, state, control, logs=None, **kwargs):
        """A line of the numbers, and one for each evaluation."""
        self._latest |= latest(logs)
        if "loss" in logs and (self._told is None or state.global_step >= state.max_steps or self._is_time()):
            self._tell_of_training(state)
        for line in evaluation_lines(state.global_step, logs):
            self._tell(line)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """A line while an evaluation goes on."""
        if self._evaluated == 0 and self._told is None:
            self._told = self._clock()
        self._evaluated += 1
        if self._is_time():
            of = f" of {len(eval_dataloader)}" if isinstance(eval_dataloader, Sized) else ""
            self._tell(f"evaluation: batch {self._evaluated}{of}")

    def on_evaluate(self, args, state, control, **kwargs):
        """The next evaluation counts anew."""
        self._evaluated = 0

    def _is_time(self) -> bool:
        return self._told is None or self._clock() - self._told >= self._seconds

    def _tell_of_training(self, state) -> None:
        began, first = self._began
        done = state.global_step - first
        left = (self._clock() - began) / max(1, done) * (state.max_steps - state.global_step)
        numbers = ", ".join(f"{name} {value}" for name, value in self._latest.items())
        remaining = f", {tqdm.format_interval(left)} left" if state.global_step < state.max_steps else ""
        self._tell(f"step {state.global_step} of {state.max_steps}{remaining}{': ' if numbers else ''}{numbers}")

    def _tell(self, line: str) -> None:
        say(line)
        self._told = self._clock()


def latest(logs: Mapping[str, float]) -> dict[str, str]:
    """The shown metrics that a log entry has, by their short names.

    Example:
        >>> latest({"reward/total": 0.5, "loss": 0.1})
        {'reward': '0.500'}
    """
    return {short: f"{logs[name]:.3f}" for name, short in SHOWN if name in logs}


def evaluation_lines(step: int, logs: Mapping[str, float]) -> list[str]:
    """One line for each evaluation that a log entry tells of."""
    return [f"step {step}: {name} {with_interval(name, logs)}" for name in evaluated(logs)]


def evaluated(logs: Mapping[str, float]) -> list[str]:
    """The metrics of a log entry that say how an evaluation ended: total rewards, or losses."""
    ends = ("_total_reward", "_loss")
    return [name for name in logs if name.endswith(ends) and name != "train_loss"]  # the Trainer's own


def with_interval(name: str, logs: Mapping[str, float]) -> str:
    """A metric of an evaluation, with its interval where it has one. That of one prompt is NaN."""
    interval = logs.get(f"{name}_ci95")
    return f"{logs[name]:.3f}" if interval is None or math.isnan(interval) else f"{logs[name]:.3f} +- {interval:.3f}"
