"""How far a model has come with its answers: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from qwenvl.train.display.console import say, shows_bars

SECONDS_BETWEEN_LINES = 10.0
Some = TypeVar("Some")


def told(items: Iterable[Some], total: int, name: str = "") -> Iterator[Some]:
    """The items, and to the user how many of them there were.

    Args:
        total: how many there will be.
        name: what each line begins with.
    """
    last = time.monotonic()
    draws = shows_bars() and os.environ.get("RANK", "0") == "0"
    with tqdm(total=total, unit="prompt", desc=name or None, disable=not draws) as bar:
        for number, item in enumerate(items, 1):
            yield item
            bar.update()
            if bar.disable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                say(f"{name}: {number} of {total} prompts" if name else f"{number} of {total} prompts")
