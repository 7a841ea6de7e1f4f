"""Which records take the places of groups that teach nothing: a function of seed, step, round and process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from qwenvl.data.difficulty import Difficulty
from qwenvl.data.order import Part
from qwenvl.data.seeds import stable_random

_FINE = 2**32


@dataclass(frozen=True)
class RefillOrder:
    """The records that a process draws in the place of others.

    In a round each process has records of its own. They are the data set's in random order, mixed by the weights of its
    parts. The row of them depends on nothing that happened before, so that a resumed run needs no state for it.

    Attributes:
        parts: the data sets, in the order in which their records are numbered.
        seed: of the run.
        longest: how many records of a part the row has at most. It bounds the work where there are millions.
        process, processes: the number of this process, and how many there are.
        difficulty: records outside of its band are passed over as often as its weight says.

    Example:
        >>> order = RefillOrder([Part("a", 3)], seed=0, longest=10)
        >>> sorted(order.draw(step=1, epoch=0, round=1, count=2, without={1}))
        [(0, 0), (0, 2)]
    """

    parts: Sequence[Part]
    seed: int
    longest: int
    process: int = 0
    processes: int = 1
    difficulty: Difficulty | None = None

    def draw(self, step: int, epoch: int, round: int, count: int, without: Collection[int]) -> list[tuple[int, int]]:
        """Up to ``count`` keys (epoch, index), as a data set takes them. Fewer where no more records are left.

        Args:
            step, round: of the draw.
            without: indices that are not drawn: those that the step has had.
        """
        draw = stable_random(self.seed, "refill", step, round, self.process)
        rows = [self._row(number, step + round, draw) for number in range(len(self.parts))]
        weights = [float(part.size) if part.weight is None else part.weight for part in self.parts]
        drawn: list[int] = []
        passed_over: list[int] = []
        while len(drawn) < count and any(weights):
            part = _chosen(weights, draw)
            index = next((index for index in rows[part] if index not in without), None)
            if index is None:
                weights[part] = 0.0
            else:
                (passed_over if self._passes_over(index, epoch, draw) else drawn).append(index)
        return [(epoch, index) for index in [*drawn, *passed_over][:count]]

    def _row(self, number: int, turn: int, draw: Random) -> Iterator[int]:
        """This process's records of a part in random order. The processes change shares from round to round."""
        start = sum(part.size for part in self.parts[:number])
        own = range(start + (self.process + turn) % self.processes, start + self.parts[number].size, self.processes)
        return iter(draw.sample(own, min(len(own), self.longest)))

    def _passes_over(self, index: int, epoch: int, draw: Random) -> bool:
        if self.difficulty is None or not self.difficulty.outside(index, epoch):
            return False
        return draw.randrange(_FINE) >= self.difficulty.weight * _FINE


def _chosen(weights: Sequence[float], draw: Random) -> int:
    """One of the places of ``weights``, by these."""
    place = draw.randrange(_FINE) / _FINE * sum(weights)
    ends = list(accumulate(weights))
    return next(number for number, end in enumerate(ends) if place < end)
