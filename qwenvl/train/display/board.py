"""The board of a live run at the foot of the terminal: progress, sparklines, time by phase."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm

from qwenvl.console import evaluated, evaluation_lines, with_interval
from qwenvl.run_log.log import read_metrics
from qwenvl.run_log.run import is_component, is_phase
from qwenvl.step.meter import Meter, peak_memory, phase_name
from qwenvl.train.display.progress import Progress
from qwenvl.types import EVALUATED

TITLES = {
    "reward/total": "reward",
    "target/loss": "loss",
    "group/zero_std_frac": "equal groups",
    "kl": "KL",
    "entropy": "entropy",
    "completion/length_mean": "length",
    "completion/truncated_frac": "cut off",
    "completion/thinking_mean": "thinking",
    "completion/thinking_cut_frac": "thinking cut",
    "look/looked_frac": "looked",
    "look/calls": "looks",
    "grad_norm": "grad norm",
}
"""The metrics that are shown, in this order, and their names there. Components of the reward follow the reward."""
SHARES = {"group/zero_std_frac", "completion/truncated_frac", "completion/thinking_cut_frac", "look/looked_frac"}
MOST_COMPONENTS = 5  # of the reward
CURVE = 14  # characters
SHORT = 5.0  # seconds of a step after which its phase is shown
BLOCKS = "▁▂▃▄▅▆▇█"


class Done(NamedTuple):
    """The line of progress: a share between 0 and 1 as a bar, with words before and behind it."""

    before: str = ""
    share: float = 0.0
    behind: str = ""


class LiveBoard(Progress):
    """Keeps the board of a run at the foot of the terminal. Prints, log lines and warnings go above it.

    It is drawn at each log entry, at the end of each step, twice a second in an evaluation, and by the thread of
    ``Progress`` during a step.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic, every: float | None = 1.0):
        super().__init__(meter, clock, every)
        self._live: Live | None = None
        self._moved: list[tuple[logging.StreamHandler, Any]] = []  # log handlers, and their own streams
        self._series: dict[str, list[float]] = {}  # the values of each shown metric
        self._facts: dict[str, str] = {}  # the lines below the curves, by their names
        self._progress = Done()
        self._evaluated = 0  # batches of the current evaluation
        self._alone = False  # an evaluation without training, or after it
        self._drawn = -math.inf  # the time of the last drawing

    def on_train_begin(self, args, state, control, **kwargs):
        """Open the board. The curves of a resumed run begin with the run."""
        super().on_train_begin(args, state, control)
        if state.is_world_process_zero:
            self._series = {}
            self._facts = {}
            self._alone = False
            if state.global_step:
                for row in read_metrics(args.output_dir, "train"):
                    if row["step"] <= state.global_step:
                        self._add(row)
            self._progress = self._steps(state)
            self._open(str(args.output_dir))

    def on_step_end(self, args, state, control, **kwargs):
        """Show that the step is done."""
        super().on_step_end(args, state, control)
        self._facts.pop("this step", None)
        self._progress = self._steps(state)
        if not control.should_log:
            self._draw()

    def within_step(self, step: int, steps: int, seconds: float, doing: str) -> None:
        """Show the current phase of a step, once the step has taken some seconds."""
        if seconds >= SHORT:
            self._facts["this step"] = f"{tqdm.format_interval(seconds)} so far: {doing}"
            self._draw()

    def on_log(self, args, state, control, logs: Mapping[str, float] | None = None, **kwargs):
        """Show the numbers of a step, or of an evaluation, which has a line above the board too."""
        if not state.is_world_process_zero or not logs:
            return
        for line in evaluation_lines(state.global_step, logs):
            print(line, file=sys.stderr)
        if "loss" in logs:
            self._add(logs)
            used, total = peak_memory(args.device)
            self._facts["memory"] = f"{used / 1e9:.1f} of {total / 1e9:.0f} GB"
        for name in evaluated(logs):
            fact = f"{with_interval(name, logs)} at step {state.global_step}"
            shown = {name.removesuffix(EVALUATED): fact}
            # The left operand sets the order, so that evaluations come first, and the right one the values.
            self._facts = shown | self._facts | shown
        self._draw()

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Show the progress of an evaluation, every half second."""
        if state.is_world_process_zero:
            self._evaluated += 1
            batches = len(eval_dataloader) if isinstance(eval_dataloader, Sized) else 0  # 0: not known
            if self._live is None:
                self._series = {}
                self._facts = {}
                self._alone = True
                self._open(str(args.output_dir))
            if self._alone:
                self._progress = Done(share=self._evaluated / batches if batches else 0.0)
            words = f"evaluating {self._evaluated}" + (f" of {batches}" if batches else "")
            self._progress = self._progress._replace(behind=words)
            if self._clock() - self._drawn >= 0.5:
                self._draw()

    def on_evaluate(self, args, state, control, **kwargs):
        """Show the progress of training again, or close a board that showed an evaluation alone."""
        self._evaluated = 0
        self._progress = self._steps(state)
        self._draw()
        if self._alone:
            self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """Draw the board for the last time, and leave it there."""
        self._draw()
        self.close()

    def close(self) -> None:
        """Leave the terminal, at the end or where an error ends the run."""
        super().close()
        if self._live is not None:
            self._live.stop()
            for handler, stream in self._moved:
                handler.setStream(stream)
        self._live = None

    def _steps(self, state) -> Done:
        """The progress of training."""
        words = "" if state.global_step else "the first step"
        return Done(
            before=f"step {state.global_step} of {state.max_steps}",
            share=state.global_step / max(1, state.max_steps),
            behind=self.left(state) or words,
        )

    def _add(self, logs: Mapping[str, float]) -> None:
        """Add the numbers of a log entry of training."""
        for name, value in logs.items():
            if name in TITLES or is_component(name):
                self._series.setdefault(name, []).append(value)
        seconds = {name: value for name, value in logs.items() if is_phase(name)}
        if seconds:
            longest_first = sorted(seconds, key=lambda name: -seconds[name])
            phases = [f"{phase_name(name)} {seconds[name]:.3g}" for name in longest_first]
            self._facts["a step"] = f"{sum(seconds.values()):.3g} s: {', '.join(phases)}"

    def _open(self, title: str) -> None:
        """Open the board on standard error, and send prints and log lines above it."""
        out = sys.stdout
        moved = [sys.stderr]
        if out is not None and out.isatty():  # where standard output is a file, it stays one
            moved.append(out)
        console = Console(file=sys.stderr, force_terminal=True, markup=False, highlight=False, emoji=False)
        self._live = Live(
            get_renderable=lambda: self._board(title),
            console=console,
            auto_refresh=False,
            redirect_stdout=len(moved) > 1,
        )
        self._live.start(refresh=True)
        console.show_cursor()  # a process that is killed would leave it hidden
        # Handlers of loggers hold the streams of before, which write through the board.
        self._moved = []
        for handler in _log_handlers():
            if isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in moved):
                self._moved.append((handler, handler.stream))
        for handler, stream in self._moved:
            handler.setStream(sys.stdout if stream is out else sys.stderr)

    def _draw(self) -> None:
        """Draw the board, if it is open."""
        if self._live is not None:
            self._live.refresh()
            self._drawn = self._clock()

    def _board(self, title: str) -> Group:
        """The board as Rich draws it: progress, curves, facts."""
        progress = Table.grid(padding=(0, 1), expand=True)
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        bar = ProgressBar(total=1.0, completed=self._progress.share, complete_style="cyan", finished_style="cyan")
        progress.add_row(Text(f" {self._progress.before}", style="bold"), bar, Text(self._progress.behind))
        components = [name for name in self._series if is_component(name)][:MOST_COMPONENTS]
        names = [name for name in TITLES if name in self._series]
        after = names.index("reward/total") + 1 if "reward/total" in names else 0
        names[after:after] = components
        curves = Columns([_curve(name, self._series[name]) for name in names], padding=(0, 1), column_first=True)
        facts = Table.grid(padding=(0, 1))
        facts.add_column(width=14, no_wrap=True, style="dim")
        for name, fact in self._facts.items():
            facts.add_row(name, Text(fact))
        below = [Padding(each, (0, 0, 0, 1)) for each in (curves, facts)]
        return Group(Rule(Text(title, overflow="ellipsis"), style="dim", align="left"), progress, *below)


def _log_handlers() -> list[logging.Handler]:
    """The handlers of all loggers, each once."""
    handlers: dict[logging.Handler, None] = {}
    for each in (logging.root, *logging.root.manager.loggerDict.values()):
        handlers |= dict.fromkeys(getattr(each, "handlers", ()))
    return list(handlers)


def _curve(name: str, series: Sequence[float]) -> Text:
    """A metric in one line: its name, its last value, its curve. Steps that teach nothing are marked."""
    value = series[-1]
    if name in SHARES:
        shown = f"{value:.0%}"
        curve = sparkline(series, CURVE, low=0.0, high=1.0)
    else:
        shown = f"{value:.3f}" if 0.01 <= abs(value) < 100 else f"{value:.4g}"
        curve = sparkline(series, CURVE)
    label = TITLES.get(name) or "  " + name.removeprefix("reward/")
    nothing_learned = name == "group/zero_std_frac" and value == 1
    text = Text(no_wrap=True)
    text.append(f"{label[:14]:14}", style="dim")
    text.append(f" {shown:>7}", style="bold red" if nothing_learned else "")
    text.append("! " if nothing_learned else "  ")
    text.append(f"{curve:{CURVE}}", style="cyan")
    return text


def sparkline(points: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """A curve of at most ``width`` characters, the means of neighbours where there are more finite points.

    Args:
        low, high: of the scale. None: the smallest and the largest mean. Equal values are drawn low.

    Example:
        >>> sparkline([0.0, 0.2, 0.9, 1.0], width=2)
        '▁█'
    """
    points = [point for point in points if math.isfinite(point)]
    count = min(width, len(points))
    edges = [len(points) * n // max(1, count) for n in range(count + 1)]
    means = [fmean(points[start:end]) for start, end in pairwise(edges)]
    low = min(means, default=0.0) if low is None else low
    high = max(means, default=0.0) if high is None else high
    # Means that differ by rounding alone are equal.
    scale = len(BLOCKS) / (high - low) if high - low > 1e-9 * max(1.0, abs(high)) else 0.0
    curve = ""
    for mean in means:
        height = int((max(mean, low) - low) * scale)
        curve += BLOCKS[min(len(BLOCKS) - 1, height)]
    return curve
