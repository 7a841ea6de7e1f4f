"""The accumulation window: the prompts of one optimizer step are explored together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qwenvl.train.explore import Experience
from qwenvl.types import PromptBatch


class Window:
    """The micro-batches of one optimizer step; the whole is explored when its first rows are asked for.

    Together, because rewards may be scaled by the spread of all rewards of the step, and because one call of the reward
    functions for all of them lets slow ones run side by side.
    """

    def __init__(self, batches: list[PromptBatch]):
        self._waiting = deque(batches)
        self._ready: deque[Experience] = deque()
        self.prompts = sum(len(batch) for batch in batches)

    def __len__(self) -> int:
        """Micro-batches still to be taken."""
        return len(self._waiting)

    def take(self, batch: PromptBatch, explore: Callable[[list[PromptBatch]], list[Experience]]) -> Experience:
        """The experience of ``batch``; micro-batches are taken in their order.

        Args:
            explore: called once in a window, with all its micro-batches.
        """
        if not self._ready:
            self._ready.extend(explore(list(self._waiting)))
        if self._waiting.popleft() is not batch:
            raise RuntimeError("micro-batches were taken in another order than they were drawn in")
        return self._ready.popleft()
