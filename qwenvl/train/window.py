"""The window: the micro-batches of one optimizer step, and of the further steps on the same completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qwenvl.train.collect import Experience
from qwenvl.types import PromptBatch


class Window:
    """The micro-batches of one optimizer step; the whole is explored when its first rows are asked for.

    Together, because rewards may be scaled by the spread of all rewards of the step, and because one call of the reward
    functions for all of them lets slow ones run side by side. Its experiences serve as many optimizer steps as it has
    ``iterations`` (arXiv:2402.03300, algorithm 1).

    Args:
        batches: the micro-batches.
        completions: of the step, in the mean of all processes; None where there is no step and a micro-batch is alone.
    """

    def __init__(self, batches: list[PromptBatch], completions: float | None = None, iterations: int = 1):
        self._waiting = deque(batches)
        self._ready: deque[Experience] = deque()
        self._iterations_left = iterations
        self._micro_batches = len(batches)
        self._completions = completions

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
        experience = self._ready.popleft()
        if self._iterations_left > 1:
            self._ready.append(experience)  # comes round again
        return experience

    def again(self, places: list[PromptBatch]) -> None:
        """Begins the next iteration: the experiences are taken once more, in the same order.

        Args:
            places: as many empty batches, drawn in the place of prompts.

        Raises:
            RuntimeError: if they are not: the order of prompts and the steps have come apart.
        """
        if len(places) != len(self._ready) or any(len(batch) or batch.bad for batch in places):
            raise RuntimeError(
                "new prompts were drawn in the midst of the steps on the same completions (num_iterations): an epoch "
                "must not be ended there"
            )
        self._iterations_left -= 1
        self._waiting.extend(places)

    def weight(self, rows: int) -> float:
        """What a mean over ``rows`` completions counts for in its step, times the micro-batches it is divided by."""
        return rows / self._completions * self._micro_batches if self._completions else 1.0
