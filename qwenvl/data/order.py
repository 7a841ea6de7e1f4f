"""The order in which records are drawn: shuffled, mixed by weight, or grouped by length. No file is opened here.

Every order is a function of (seed, epoch), the same in every process: a resumed run goes on with what the uninterrupted
one would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch.utils.data import Sampler

from qwenvl.data.seeds import stable_random

_FINE = 2**32  # places within a stretch


@dataclass(frozen=True)
class Part:
    """One of the data sets that are drawn from.

    Attributes:
        name: as written in ``dataset_use``.
        size: its records.
        weight: how often it is drawn from, relative to the others; None where no part has a weight.
    """

    name: str
    size: int
    weight: float | None = None


def draws_per_epoch(parts: Sequence[Part]) -> list[int]:
    """How many records of each part make an epoch, as many in all as there are records.

    Without weights each record has its turn. With weights the parts get their shares, rounded to whole records by
    largest remainder (the earlier part first where they are equal).

    Raises:
        ValueError: a part would not be drawn from at all.

    Example:
        >>> draws_per_epoch([Part("a", 90, weight=1), Part("b", 10, weight=1)])
        [50, 50]
    """
    if any(part.weight is None for part in parts):
        return [part.size for part in parts]
    total, weight = sum(part.size for part in parts), sum(part.weight for part in parts)
    shares = [total * part.weight / weight for part in parts]
    draws = [int(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda number: draws[number] - shares[number])
    for number in by_remainder[: total - sum(draws)]:
        draws[number] += 1
    for part, count in zip(parts, draws, strict=True):
        if count == 0:
            raise ValueError(
                f"the weight of {part.name!r}, {part.weight:g} of {weight:g}, is less than one record in an epoch of "
                f"{total}: raise it, or leave the data set out"
            )
    return draws


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields (pass, index) over the records of all parts; ``pass`` counts how often the record came before.

    Without weights every record comes once an epoch, and ``pass`` is the epoch. With weights an epoch is as long, but
    each part is gone through at its own pace: none of its records comes again before all have come, over the end of the
    epoch too, and the parts are spread evenly, so that any stretch of the epoch holds them by their weights.

    Args:
        parts: the data sets, in the order in which their records are numbered.
        shuffle: draw the order by (seed, epoch); else records come in their own order.

    Raises:
        ValueError: as ``draws_per_epoch``; or weights without ``shuffle``.

    Example:
        >>> sampler = EpochSampler([Part("a", 2)], shuffle=False)
        >>> sampler.set_epoch(3)
        >>> list(sampler)
        [(3, 0), (3, 1)]
    """

    def __init__(self, parts: Sequence[Part], seed: int = 0, shuffle: bool = True) -> None:
        self.parts = tuple(parts)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self._draws = draws_per_epoch(parts)
        self._weighted = any(part.weight is not None for part in parts)
        if self._weighted and not shuffle:
            raise ValueError("data sets with weights have no order of their own: leave the weights out")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(self._draws)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if self._weighted:
            return iter(self._mixed())
        order = list(range(len(self)))
        if self.shuffle:
            stable_random(self.seed, "order", self.epoch).shuffle(order)
        return ((self.epoch, index) for index in order)

    def _mixed(self) -> list[tuple[int, int]]:
        """Each part's draws, one at random in each of as many equal stretches of the epoch."""
        starts = accumulate((part.size for part in self.parts), initial=0)
        placed = []
        for number, (count, start) in enumerate(zip(self._draws, starts, strict=False)):
            draw = stable_random(self.seed, "places", self.epoch, number)
            for i, (turn, index) in enumerate(self._drawn(number)):
                placed.append(((i + draw.randrange(_FINE) / _FINE) / count, number, turn, start + index))
        return [(turn, index) for _, _, turn, index in sorted(placed)]

    def _drawn(self, number: int) -> Iterator[tuple[int, int]]:
        """(pass, index within the part) of the epoch's draws from a part: the next ones of an endless row of passes."""
        size, count = self.parts[number].size, self._draws[number]
        first, end = self.epoch * count, (self.epoch + 1) * count
        for turn in range(first // size, -(-end // size)):
            order = list(range(size))
            stable_random(self.seed, "pass", number, turn).shuffle(order)
            for place in range(max(first, turn * size), min(end, (turn + 1) * size)):
                yield turn, order[place - turn * size]
