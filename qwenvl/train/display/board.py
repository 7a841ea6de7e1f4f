"""The board of a live run at the foot of the terminal: progress, sparklines, time by phase."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm
from transformers import TrainerCallback

from qwenvl.report.run import is_phase
from qwenvl.runlog import read_metrics
from qwenvl.train.display.lines import SHORT, evaluated, evaluation_lines, with_interval
from qwenvl.train.meter import PHASES, Memory, peak_memory, phase_name

TITLES = {
    **{"reward/total": "reward", "target/loss": "loss", "group/zero_std_frac": "equal groups", "kl": "KL"},
    **{"entropy": "entropy", "completion/length_mean": "length", "completion/truncated_frac": "cut off"},
    "grad_norm": "grad norm",
}
"""The metrics that are shown, in this order, and their names there. Components of the reward follow the reward."""
SHARES = {"group/zero_std_frac", "completion/truncated_frac"}
NO_COMPONENTS = {"reward/total", "reward/max", "reward/std"}
MOST_COMPONENTS = 5  # of the reward
CURVE_WIDTH = 39  # characters of a name, a value and a curve
LONG_WAIT = 0.2  # of a step, from which on the wait for data stands out
SECONDS = 0.5  # between two drawings, at least, during an evaluation
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class Board:
    """The state that a live run shows. It draws itself in the width of the console.

    Attributes:
        title: the run folder.
        step, steps: done, and in all. ``steps`` is 0 for an evaluation without training.
        left: seconds until the last step, None before the first.
        series: the values of each shown metric.
        seconds: of a step by phase, by the name of the metric.
        evaluations: the last result of each evaluation, by its name.
        evaluating: batches done in the current evaluation, and in all (None: not known).
        memory: the peak.
        doing: the phase and the seconds so far of the current step. None between steps.
    """

    title: str
    step: int = 0
    steps: int = 0
    left: float | None = None
    series: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)
    evaluating: tuple[int, int | None] | None = None
    memory: Memory | None = None
    doing: tuple[str, float] | None = None

    def add(self, logs: Mapping[str, float]) -> None:
        """The numbers of a log entry of training."""
        for name, value in logs.items():
            if name in TITLES or _is_component(name):
                self.series.setdefault(name, []).append(value)
        if seconds := {name: value for name, value in logs.items() if is_phase(name)}:
            self.seconds = seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(Text(self.title, overflow="ellipsis"), style="dim", align="left")
        yield self._progress(options.max_width)
        if self.series:
            yield Padding(self._curves(min(CURVE_WIDTH, options.max_width - 1)), (0, 0, 0, 1))
        facts: list[tuple[str, str | Text]] = [*self.evaluations.items()]
        facts += [("a step", self._phases())] if self.seconds else []
        if self.doing is not None:
            facts.append((f"step {self.step + 1}", f"{tqdm.format_interval(self.doing[1])} so far: {self.doing[0]}"))
        if self.memory is not None:
            facts.append(("memory", f"{self.memory.used / 1e9:.1f} of {self.memory.total / 1e9:.0f} GB"))
        table = Table.grid(padding=(0, 1))
        table.add_column(width=label_width(options.max_width), no_wrap=True, overflow="ellipsis")
        for name, fact in facts:
            table.add_row(Text(name, style="dim"), fact)
        if facts:
            yield Padding(table, (0, 0, 0, 1))

    def _progress(self, width: int) -> Table:
        done, of = (self.step, self.steps) if self.steps else self.evaluating or (0, None)
        words = f"step {done} of {of}" if self.steps else "evaluating"
        if self.steps and self.left is not None and self.step < self.steps:
            time = f"{tqdm.format_interval(self.left)} left"
        else:
            time = "" if self.step or not self.steps else "the first step"
        if self.evaluating is not None:
            batch, batches = self.evaluating
            time = f"evaluating {batch}{f' of {batches}' if batches else ''}"
        row = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None):
            row.add_column(ratio=ratio, no_wrap=True)
        bar = ProgressBar(total=max(1, of or 1), completed=done, complete_style="cyan", finished_style="cyan")
        row.add_row(Text(f" {words}", style="bold"), bar if width >= 60 else "", Text(time))
        return row

    def _curves(self, room: int) -> Columns:
        components = [name for name in self.series if _is_component(name)][:MOST_COMPONENTS]
        names = [name for name in TITLES if name in self.series]
        after = names.index("reward/total") + 1 if "reward/total" in names else 0
        names[after:after] = components
        return Columns([self._curve(name, room) for name in names], width=room, padding=0, column_first=True)

    def _curve(self, name: str, room: int) -> Text:
        series, share, wide = self.series[name], name in SHARES, label_width(room)
        label = Text(TITLES.get(name) or "  " + name.removeprefix("reward/"), style="dim")
        label.truncate(wide, overflow="ellipsis", pad=True)
        value = f"{number(series[-1], share):>7}"
        text = Text.assemble(label, f" {value}  ", style="bold" if name == "reward/total" else "", no_wrap=True)
        low, high = (0.0, 1.0) if share else (None, None)
        return text.append(sparkline(series, max(0, room - wide - 12), low, high), style="cyan")

    def _phases(self) -> Text:
        total = sum(self.seconds.values())
        text = Text(f"{seconds_of(total)}: ")
        for n, (name, seconds) in enumerate(sorted(self.seconds.items(), key=lambda item: -item[1])):
            title = phase_name(name)
            stands_out = title == PHASES["data_wait"] and seconds > LONG_WAIT * total
            text.append(f"{', ' if n else ''}{title} ")
            text.append(seconds_of(seconds).removesuffix(" s"), style="yellow" if stands_out else "")
        return text


def label_width(room: int) -> int:
    """Characters of the names, where there is room for so many in all."""
    return min(14, max(8, room // 3))


def _is_component(name: str) -> bool:
    return name.startswith("reward/") and name.count("/") == 1 and name not in NO_COMPONENTS


def seconds_of(value: float) -> str:
    """Seconds as they are shown.

    Example:
        >>> seconds_of(0.034), seconds_of(12.345), seconds_of(456.0)
        ('0.03 s', '12.3 s', '456 s')
    """
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def number(value: float, share: bool = False) -> str:
    """A metric in at most seven characters.

    Example:
        >>> number(0.5), number(0.00012), number(184.32), number(0.376, share=True)
        ('0.500', '0.00012', '184.3', '38%')
    """
    if not math.isfinite(value):
        return str(value)
    if share:
        return f"{value:.0%}"
    size = abs(value)
    if size >= 1e5 or 0 < size < 1e-5:
        return f"{value:.1e}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def sparkline(points: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """A curve of at most ``width`` characters, the means of neighbours where there are more finite points.

    Args:
        low, high: of the scale. None: the smallest and the largest mean. Equal values are drawn low.

    Example:
        >>> sparkline([0.0, 0.2, 0.9, 1.0], width=2)
        '▁█'
    """
    points = [point for point in points if math.isfinite(point)]
    if not points or width < 1:
        return ""
    count = min(width, len(points))
    edges = [len(points) * n // count for n in range(count + 1)]
    means = [fmean(points[start:end]) for start, end in pairwise(edges)]
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    if high - low < 1e-9 * max(1.0, abs(high)):
        return BLOCKS[0] * count
    heights = [(min(max(mean, low), high) - low) / (high - low) for mean in means]
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(height * len(BLOCKS)))] for height in heights)


class Terminal(Console):
    """The terminal. Its cursor is never hidden: a process that is killed would leave it hidden."""

    def show_cursor(self, show: bool = True) -> bool:
        """Does nothing."""
        return False


class LiveBoard(TrainerCallback):
    """Keeps the board of a run at the foot of the terminal. Prints, log lines and warnings go above it.

    It is drawn at each log entry, at the end of each step, and by the thread of ``WithinStep`` during a step. No thread
    draws between steps, when processes are forked: a fork would inherit the lock of the terminal.

    Args:
        clock: gives the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._board: Board | None = None
        self._live: Live | None = None
        self._moved: list[tuple[logging.StreamHandler, Any]] = []  # log handlers, and their own streams
        self._began = (0.0, 0)  # when, and after which step
        self._drawn = -math.inf  # when

    def on_train_begin(self, args, state, control, **kwargs):
        """Open the board. That of a resumed run has the curves from the run's beginning."""
        if not state.is_world_process_zero:
            return
        self.close()
        self._began = (self._clock(), state.global_step)
        board = Board(str(args.output_dir), state.global_step, state.max_steps)
        if state.global_step:
            for row in read_metrics(args.output_dir, "train"):
                if row["step"] <= state.global_step:
                    board.add(row)
        self._open(board)

    def on_step_end(self, args, state, control, **kwargs):
        """One step more."""
        if self._board is not None:
            began, first = self._began
            self._board.step, self._board.doing = state.global_step, None
            pace = (self._clock() - began) / max(1, state.global_step - first)
            self._board.left = pace * (state.max_steps - state.global_step)
            if not control.should_log:
                self._draw()

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """The current phase of a step, once the step has taken some seconds."""
        if self._board is not None and seconds >= SHORT:
            self._board.doing = (doing, seconds)
            self._draw()

    def on_log(self, args, state, control, logs: Mapping[str, float] | None = None, **kwargs):
        """The numbers of a step, or of an evaluation, which has a line above the board too."""
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
        """Progress of an evaluation, every half second."""
        if not state.is_world_process_zero:
            return
        board = self._board or self._open(Board(str(args.output_dir)))
        done = 1 if board.evaluating is None else board.evaluating[0] + 1
        board.evaluating = (done, len(eval_dataloader) if isinstance(eval_dataloader, Sized) else None)
        if self._clock() - self._drawn >= SECONDS:
            self._draw()

    def on_evaluate(self, args, state, control, **kwargs):
        """The evaluation is over."""
        if self._board is not None:
            self._board.evaluating = None
            self._draw()
            if not self._board.steps:  # an evaluation without training
                self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """The board stays as it is at the end."""
        self._draw()
        self.close()

    def close(self) -> None:
        """Leave the terminal, at the end or where an error ends the run."""
        if self._live is not None:
            self._live.stop()
            for handler, stream in self._moved:
                handler.setStream(stream)
        self._board = self._live = None

    def _open(self, board: Board) -> Board:
        # Where standard output is a file, it stays one.
        moved = [sys.stderr, *([sys.stdout] if sys.stdout is not None and sys.stdout.isatty() else [])]
        out = sys.stdout
        terminal = Terminal(file=sys.stderr, force_terminal=True, markup=False, highlight=False, emoji=False)
        self._board = board
        self._live = Live(board, console=terminal, auto_refresh=False, redirect_stdout=len(moved) > 1)
        self._live.start(refresh=True)
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        handlers = dict.fromkeys(handler for each in loggers for handler in getattr(each, "handlers", ()))
        self._moved = [
            (each, each.stream)
            for each in handlers
            if isinstance(each, logging.StreamHandler) and any(each.stream is stream for stream in moved)
        ]
        for handler, stream in self._moved:
            handler.setStream(sys.stdout if stream is out else sys.stderr)
        return board

    def _draw(self) -> None:
        if self._live is not None:
            self._live.refresh()
            self._drawn = self._clock()
