"""A live run on a terminal: the board stands at its foot, and whatever is written goes above it."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sized

from rich.console import Console
from rich.live import Live
from transformers import TrainerCallback

from qwenvl.runlog import read_metrics
from qwenvl.train.display.board import Board
from qwenvl.train.display.progress import SHORT, evaluated, evaluation_lines, with_interval
from qwenvl.train.log.meter import peak_memory

SECONDS = 0.5  # between two drawings, at least, while an evaluation goes on


class Terminal(Console):
    """The terminal, whose cursor is never hidden: a process that is killed leaves it as it was."""

    def show_cursor(self, show: bool = True) -> bool:
        """Does nothing."""
        return False


class Screen:
    """What is drawn at the foot of the terminal. Prints, log lines and warnings go above while it is there.

    It is drawn when it is told to, and by no thread of its own, so that it costs a step nothing. Another thread has it
    drawn within a step alone (``WithinStep``): a process that is forked between steps finds no lock taken.
    """

    def __init__(self, board: Board):
        # A stream that no terminal is behind stays as it is: what is written into a file goes there.
        terminal = Terminal(file=sys.stderr, force_terminal=True, markup=False, highlight=False, emoji=False)
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        streams = (sys.stdout, sys.stderr) if on_terminal else (sys.stderr,)
        self._live = Live(board, console=terminal, auto_refresh=False, redirect_stdout=on_terminal)
        self._live.start(refresh=True)
        self._moved = [
            (handler, handler.stream) for handler in _handlers() if getattr(handler, "stream", None) in streams
        ]
        for handler, stream in self._moved:
            handler.setStream(sys.stdout if stream is streams[0] and on_terminal else sys.stderr)

    def draw(self) -> None:
        """Draws the board as it is now."""
        self._live.refresh()

    def close(self) -> None:
        """Leaves the board where it stands, and the terminal to others."""
        self._live.stop()
        for handler, stream in self._moved:
            handler.setStream(stream)


def _handlers() -> list[logging.StreamHandler]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for each in loggers for handler in getattr(each, "handlers", ())]
    return [each for each in dict.fromkeys(handlers) if isinstance(each, logging.StreamHandler)]


class LiveBoard(TrainerCallback):
    """Keeps the board of a run up to date. It is drawn at each log entry and at the end of each step.

    Args:
        clock: gives the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._board: Board | None = None
        self._screen: Screen | None = None
        self._began = (0.0, 0)  # when, and after which step
        self._drawn = -math.inf  # when

    def on_train_begin(self, args, state, control, **kwargs):
        """The board is there from now on. That of a resumed run has the curves from its beginning."""
        if not state.is_world_process_zero:
            return
        self.close()
        self._began = (self._clock(), state.global_step)
        self._board = Board(str(args.output_dir), state.global_step, state.max_steps)
        if state.global_step:
            for row in read_metrics(args.output_dir, "train"):
                if row["step"] <= state.global_step:
                    self._board.add(row)
        self._screen = Screen(self._board)

    def on_step_end(self, args, state, control, **kwargs):
        """One step more."""
        if self._board is not None and state.is_world_process_zero:
            began, first = self._began
            self._board.step, self._board.doing = state.global_step, None
            pace = (self._clock() - began) / max(1, state.global_step - first)
            self._board.left = pace * (state.max_steps - state.global_step)
            if not control.should_log:
                self._draw()

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """What the step is at, once it has taken some seconds."""
        if self._board is not None and seconds >= SHORT:
            self._board.doing = (doing, seconds)
            self._draw()

    def on_log(self, args, state, control, logs: Mapping[str, float] | None = None, **kwargs):
        """The numbers of a step, or of an evaluation, which has a line above too."""
        if not state.is_world_process_zero or not logs:
            return
        for line in evaluation_lines(state.global_step, logs):
            print(line, file=sys.stderr)
        if self._board is None:
            return
        if "loss" in logs:
            self._board.add(logs)
            self._board.memory = peak_memory(args.device)
        for name in evaluated(logs):
            short = name.removesuffix("_total_reward")
            self._board.evaluations[short] = f"{with_interval(name, logs)} at step {state.global_step}"
        self._draw()

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """How far an evaluation is, every half second."""
        if not state.is_world_process_zero:
            return
        if self._board is None:
            self._board = Board(str(args.output_dir))
            self._screen = Screen(self._board)
        done = 1 if self._board.evaluating is None else self._board.evaluating[0] + 1
        self._board.evaluating = (done, len(eval_dataloader) if isinstance(eval_dataloader, Sized) else None)
        if self._clock() - self._drawn >= SECONDS:
            self._draw()

    def on_evaluate(self, args, state, control, **kwargs):
        """The evaluation is over."""
        if self._board is not None:
            self._board.evaluating = None
            self._draw()
            if not self._board.steps:  # nothing is trained
                self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """The board stays as it is at the end."""
        self._draw()
        self.close()

    def close(self) -> None:
        """Leaves the terminal, at the end or where an error ends the run."""
        if self._screen is not None:
            self._screen.close()
        self._board, self._screen = None, None

    def _draw(self) -> None:
        if self._screen is not None:
            self._screen.draw()
            self._drawn = self._clock()
