"""How far a part of the demo is: a bar on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable

from qwenvl.train.display.console import say, shows_bars


class Counting:
    """Shows how many of a number of things are done.

    Args:
        title: what is counted.
        unit: one of these things.
        seconds: the least time between two plain lines. The last one always comes.
        clock: gives the time, in seconds.
    """

    def __init__(self, title: str, unit: str, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic):
        self._title, self._unit, self._seconds, self._clock = title, unit, seconds, clock
        self._told, self._said, self._last = clock(), "", ""
        self._bar = None

    def __enter__(self) -> Counting:
        if shows_bars():
            from tqdm import tqdm

            self._bar = tqdm(desc=self._title, unit=self._unit, delay=1e-3, leave=True)
        return self

    def __exit__(self, *error) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._last != self._said:
            say(self._last)

    def advance(self, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total`` are done."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        self._last = f"{self._title}: {self._unit} {done} of {total}{note and ', '}{note}"
        if self._clock() - self._told >= self._seconds:
            say(self._last)
            self._told, self._said = self._clock(), self._last

    def end(self) -> None:
        """No more will come, whatever the total was."""
        if self._bar is not None:
            self.advance(self._bar.n, self._bar.n)
