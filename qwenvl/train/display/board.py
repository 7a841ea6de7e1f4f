"""The board of a live run as lines of text: progress, curves in a line, time by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm

from qwenvl.report.curves import is_phase
from qwenvl.train.log.doing import PHASES, phase_name
from qwenvl.train.log.meter import Memory

LEARNS = {"reward/total": "reward", "target/loss": "loss", "group/zero_std_frac": "equal groups"}
MOVES = {
    **{"kl": "KL", "entropy": "entropy"},
    **{"completion/length_mean": "length", "completion/truncated_frac": "cut off", "grad_norm": "grad norm"},
}
"""The metrics of the left and of the right column, and their names there. Parts of the reward follow the reward."""
SHARES = {"group/zero_std_frac", "completion/truncated_frac"}
NO_PARTS = {"reward/total", "reward/max", "reward/std"}
TWO_COLUMNS = 72  # characters from which there are two
MOST_PARTS = 5  # of the reward
LONG_WAIT = 0.2  # of a step, from which on the wait for data stands out


@dataclass
class Board:
    """What a live run shows. It draws itself in the width that there is.

    Attributes:
        title: the run folder.
        step, steps: done, and of how many. ``steps`` is 0 where nothing is trained: an evaluation alone.
        left: seconds until the last step, None before the first.
        series: the values of each shown metric.
        seconds: of a step by phase, by the name of the metric.
        evaluations: of each the line that tells of its last result.
        evaluating: how far the evaluation that goes on is: batches done, and of how many (None: not known).
        memory: the most that was used.
        doing: what the step that goes on is at, and for how many seconds it has gone on. None between steps.
    """

    title: str
    step: int = 0
    steps: int = 0
    left: float | None = None
    series: dict[str, Series] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)
    evaluating: tuple[int, int | None] | None = None
    memory: Memory | None = None
    doing: tuple[str, float] | None = None

    def add(self, logs: Mapping[str, float]) -> None:
        """The numbers of a log entry of training."""
        for name, value in logs.items():
            if name in LEARNS or name in MOVES or _is_part(name):
                self.series.setdefault(name, Series()).add(value)
        if seconds := {name: value for name, value in logs.items() if is_phase(name)}:
            self.seconds = seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only = options.ascii_only
        yield Rule(Text(self.title, overflow="ellipsis"), style="dim", align="left")
        yield self._progress(options.max_width)
        if any(self.series.values()):
            yield self._curves(options.max_width, ASCII if ascii_only else BLOCKS)
        facts: list[tuple[str, str | Text]] = [*self.evaluations.items()]
        facts += [("a step", self._phases())] if self.seconds else []
        if self.doing is not None:
            facts.append((f"step {self.step + 1}", f"{tqdm.format_interval(self.doing[1])} so far: {self.doing[0]}"))
        facts += [("memory", memory_of(self.memory))] if self.memory is not None else []
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

    def _curves(self, width: int, marks: str) -> Table:
        left = [(LEARNS[name], name) for name in LEARNS if name in self.series]
        parts = [(name.removeprefix("reward/"), name) for name in self.series if _is_part(name)]
        after = 1 if "reward/total" in self.series else 0
        left[after:after] = [(f"  {short}", name) for short, name in parts[:MOST_PARTS]]
        right = [(MOVES[name], name) for name in MOVES if name in self.series]
        columns = [left, right] if width >= TWO_COLUMNS else [left + right]
        room = (width - 1) // len(columns)
        table = Table.grid(padding=0)
        rows = [[self._curve(*each, room, marks) for each in column] for column in columns]
        for n in range(max(map(len, rows))):
            table.add_row(" ", *(column[n] if n < len(column) else "" for column in rows))
        return table

    def _curve(self, title: str, name: str, room: int, marks: str) -> Text:
        series, share = self.series[name], name in SHARES
        wide = label_width(room)
        value = "-" if series.last is None else number(series.last, share)
        low, high = (0.0, 1.0) if share else (None, None)
        label = Text(title, style="bold" if name == "reward/total" else "dim")
        label.truncate(wide, overflow="ellipsis", pad=True)
        text = Text.assemble(label, " ", (f"{value:>7}", "bold" if name == "reward/total" else ""), "  ")
        text.append(sparkline(series.points, max(0, min(24, room - wide - 12)), low, high, marks), style="cyan")
        text.truncate(room - 1, pad=True)
        return text

    def _phases(self) -> Text:
        total = sum(self.seconds.values())
        text = Text(f"{seconds_of(total)}: ")
        for n, (title, seconds) in enumerate(phases(self.seconds)):
            stands_out = title == PHASES["data_wait"] and seconds > LONG_WAIT * total
            text.append(f"{', ' if n else ''}{title} ")
            text.append(seconds_of(seconds).removesuffix(" s"), style="yellow" if stands_out else "")
        return text


def label_width(room: int) -> int:
    """Characters of the names, where there is room for so many in all."""
    return min(14, max(8, room // 3))


def _is_part(name: str) -> bool:
    return name.startswith("reward/") and name.count("/") == 1 and name not in NO_PARTS


def phases(seconds: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The phases of a step by the names that the board has for them, the longest first."""
    for name in sorted(seconds, key=lambda each: -seconds[each]):
        yield phase_name(name), seconds[name]


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


def memory_of(memory: Memory) -> str:
    """How much memory was used at most, of how much.

    Example:
        >>> memory_of(Memory(18_200_000_000, 80_000_000_000))
        '18.2 of 80 GB'
    """
    return f"{memory.used / 1e9:.1f} of {memory.total / 1e9:.0f} GB"


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
MOST = 64  # points that a series keeps


class Series:
    """The values of a metric since the run began, as at most 64 means of neighbours: adding one is cheap.

    Example:
        >>> series = Series(most=2)
        >>> for value in (1.0, 3.0, 5.0):
        ...     series.add(value)
        >>> series.points, series.last
        ([2.0, 5.0], 5.0)
    """

    def __init__(self, most: int = MOST):
        """``most``: points that are kept, an even number."""
        self.last: float | None = None
        self._most, self._size = most, 1  # values of a point
        self._points: list[float] = []
        self._open: list[float] = []  # values of the next point

    def add(self, value: float) -> None:
        """One more value. What is not finite is the last value and no point."""
        self.last = value
        if not math.isfinite(value):
            return
        self._open.append(value)
        if len(self._open) < self._size:
            return
        if len(self._points) == self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [fmean(pair) for pair in pairs]
            self._size *= 2
            return  # the open values are half of a point now
        self._points.append(fmean(self._open))
        self._open = []

    @property
    def points(self) -> list[float]:
        """The means, in order. The last one may be of fewer values."""
        return [*self._points, *([fmean(self._open)] if self._open else [])]


def sparkline(
    points: Sequence[float], width: int, low: float | None = None, high: float | None = None, marks: str = BLOCKS
) -> str:
    """A curve of at most ``width`` characters, the means of neighbours where there are more points.

    Args:
        low, high: of the scale. None for the least and the largest of what is drawn. Equal values are drawn low.
        marks: from low to high.

    Example:
        >>> sparkline([0.0, 0.2, 0.9, 1.0], width=2)
        '▁█'
    """
    if not points or width < 1:
        return ""
    count = min(width, len(points))
    edges = [len(points) * n // count for n in range(count + 1)]
    means = [fmean(points[start:end]) for start, end in pairwise(edges)]
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    if high - low < 1e-9 * max(1.0, abs(high)):
        return marks[0] * count
    places = [(min(max(mean, low), high) - low) / (high - low) for mean in means]
    return "".join(marks[min(len(marks) - 1, int(place * len(marks)))] for place in places)
