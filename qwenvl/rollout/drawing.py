"""How far a draw of completions is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Drawing:
    """How far the present draw is: an engine writes it token by token, and a display reads it from another thread.

    Attributes:
        tokens, most: of the completions that are drawn now, the longest so far, and how long they may get.
        first, last, prompts: which of the prompts these are of, counted from 1, and how many there are.
        drawn: places of all draws so far. It only grows.
    """

    tokens: int = 0
    most: int = 0
    first: int = 0
    last: int = 0
    prompts: int = 0
    drawn: int = 0

    def begin(self, rows: Sequence[int], prompts: int, most: int) -> None:
        """The prompts ``rows`` of so many are drawn for now, up to ``most`` tokens."""
        self.tokens, self.most = 0, most
        self.first, self.last, self.prompts = rows[0] + 1, rows[-1] + 1, prompts

    def token(self) -> None:
        """Each completion that goes on has one token more."""
        self.tokens += 1
        self.drawn += 1

    def end(self) -> None:
        """Nothing is drawn."""
        self.tokens = self.most = self.prompts = 0

    def words(self) -> str:
        """What a person is told of it, nothing while nothing is drawn.

        Example:
            >>> Drawing(tokens=12, most=256, first=1, last=2, prompts=8).words()
            'token 12 of at most 256, prompts 1 to 2 of 8'
        """
        if not self.prompts:
            return ""
        which = f"{self.first} to {self.last}" if self.last > self.first else f"{self.first}"
        plural = "s" if self.last > self.first else ""
        of_prompts = f", prompt{plural} {which} of {self.prompts}" if self.last - self.first + 1 < self.prompts else ""
        return f"token {self.tokens} of at most {self.most:,}{of_prompts}"
