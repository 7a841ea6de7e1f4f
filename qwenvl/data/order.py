"""The order in which records are drawn: shuffled, mixed by weight, grouped by length, and as refills of a step.

Every order is a function of (seed, epoch), the same in every process: a resumed run draws what the uninterrupted one
would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from random import Random

from qwenvl.data.seeds import stable_random

POOL_STEPS = 32  # optimizer steps whose prompts are sorted together: more would pad little less and mix less
_FINE = 2**32  # places within a stretch


@dataclass(frozen=True)
class Part:
    """A data set that is drawn from.

    Attributes:
        name: as written in ``dataset_use``.
        size: its records.
        weight: its share of the draws, relative to the other parts, or None where no part has a weight.
        read_as: the format that its rows were guessed to be in, None where they are in our own or it was named.
        first_number: the number of the first option in its answers, where its rows tell.
    """

    name: str
    size: int
    weight: float | None = None
    read_as: str | None = None
    first_number: int | None = None


def draws_per_epoch(parts: Sequence[Part]) -> list[int]:
    """The number of records that each part gives to an epoch, which has as many in all as there are records.

    Without weights each record has its turn. With weights the parts get their shares, rounded to whole records by
    largest remainder (the earlier part first where they are equal).

    Raises:
        ValueError: a part would not be drawn from at all.

    Example:
        >>> draws_per_epoch([Part("a", 90, weight=1), Part("b", 10, weight=1)])
        [50, 50]
    """
    weights = [part.weight for part in parts if part.weight is not None]
    if len(weights) < len(parts):
        return [part.size for part in parts]
    total = sum(part.size for part in parts)
    weight = sum(weights)
    shares = [total * own / weight for own in weights]
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


@dataclass(frozen=True)
class Grouping:
    """How prompts of similar length come together.

    Attributes:
        step: prompts of an optimizer step, over all its micro-batches and processes.
        length: the length of the prompt of a (pass, index).
    """

    step: int
    length: Callable[[tuple[int, int]], int]


class EpochSampler:
    """Yields (pass, index) over the records of all parts. ``pass`` counts how often the record came before.

    Without weights every record comes once an epoch, and ``pass`` is the epoch. With weights an epoch is as long, but
    each part is gone through at its own pace: none of its records comes again before all have come, over the end of the
    epoch too, and the parts are spread evenly, so that any stretch of the epoch holds them by their weights.

    With ``grouping`` this order is cut into pools of up to 32 optimizer steps, at least four pools to an epoch where it
    is long enough. A pool's prompts are sorted by length and dealt out to its steps, which then come in random order: a
    step, its micro-batches and the processes within it have prompts of like length. Weights hold for each pool.

    Args:
        parts: the data sets, in the order in which their records are numbered.
        shuffle: draw the order by (seed, epoch), else records come in their own order.
        grouping: bring prompts of like length together, by their lengths in tokens.

    Raises:
        ValueError: as ``draws_per_epoch`` raises it, or weights without ``shuffle``.

    Example:
        >>> sampler = EpochSampler([Part("a", 2)], shuffle=False)
        >>> sampler.set_epoch(3)
        >>> list(sampler)
        [(3, 0), (3, 1)]
    """

    def __init__(
        self,
        parts: Sequence[Part],
        seed: int = 0,
        shuffle: bool = True,
        grouping: Grouping | None = None,
    ) -> None:
        self.parts = tuple(parts)
        self.seed = seed
        self.shuffle = shuffle
        self.grouping = grouping
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
        keys: Iterable[tuple[int, int]]
        if self._weighted:
            keys = self._mixed()
        else:
            order = list(range(len(self)))
            if self.shuffle:
                stable_random(self.seed, "order", self.epoch).shuffle(order)
            keys = zip(repeat(self.epoch), order, strict=False)  # no list: of a million it took longer than all else
        return iter(keys) if self.grouping is None else self._grouped(list(keys), self.grouping)

    def _grouped(self, keys: list[tuple[int, int]], grouping: Grouping) -> Iterator[tuple[int, int]]:
        """Measure and sort pool by pool, so that a run begins before all lengths are known."""
        step = grouping.step
        pool = step * max(1, min(POOL_STEPS, len(keys) // (4 * step)))
        draw = stable_random(self.seed, "steps", self.epoch)
        for start in range(0, len(keys), pool):
            drawn = keys[start : start + pool]
            whole = len(drawn) - len(drawn) % step
            by_length = sorted(drawn[:whole], key=grouping.length)
            steps = [by_length[i : i + step] for i in range(0, whole, step)]
            draw.shuffle(steps)
            for each in [*steps, sorted(drawn[whole:], key=grouping.length)]:  # a step cut short ends the epoch
                yield from each

    def _mixed(self) -> list[tuple[int, int]]:
        """Each part's draws, one at random in each of as many equal stretches of the epoch."""
        starts = accumulate((part.size for part in self.parts), initial=0)
        placed = []
        for number, (count, start) in enumerate(zip(self._draws, starts, strict=False)):
            draw = stable_random(self.seed, "places", self.epoch, number)
            for stretch, (turn, index) in enumerate(self._drawn(number)):
                within = draw.randrange(_FINE) / _FINE
                place = (stretch + within) / count  # in the epoch, from 0 to 1
                placed.append((place, number, turn, start + index))
        return [(turn, index) for _, _, turn, index in sorted(placed)]

    def _drawn(self, number: int) -> Iterator[tuple[int, int]]:
        """(pass, index within the part) of the epoch's draws from a part: the next ones of an endless row of passes."""
        size = self.parts[number].size
        count = self._draws[number]
        first = self.epoch * count
        end = (self.epoch + 1) * count
        for turn in range(first // size, -(-end // size)):
            order = list(range(size))
            stable_random(self.seed, "pass", number, turn).shuffle(order)
            for place in range(max(first, turn * size), min(end, (turn + 1) * size)):
                yield turn, order[place - turn * size]


class RepeatedSteps:
    """The prompts of each optimizer step, then as many empty places for each further step on their completions.

    A data set gives None for such a place, the key None, without reading anything. The last step of an epoch is filled
    up with them, so that steps begin where the Trainer counts them to begin, in every process.

    Args:
        sampler: the order of the prompts.
        step: prompts of an optimizer step, over all its micro-batches and processes.
        iterations: optimizer steps on the same completions.

    Example:
        >>> list(RepeatedSteps(EpochSampler([Part("a", 3)], shuffle=False), step=2, iterations=2))
        [(0, 0), (0, 1), None, None, (0, 2), None, None, None]
    """

    def __init__(self, sampler: EpochSampler, step: int, iterations: int) -> None:
        self.sampler = sampler
        self.step = step
        self.iterations = iterations

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.step) * self.step * self.iterations

    def __iter__(self) -> Iterator[tuple[int, int] | None]:
        keys = iter(self.sampler)
        while prompts := list(islice(keys, self.step)):
            yield from prompts
            yield from repeat(None, self.step * self.iterations - len(prompts))


@dataclass(frozen=True)
class RefillOrder:
    """The records that replace groups without a learning signal: a function of seed, step, round and process.

    In a round each process has records of its own, in random order, mixed by the weights of the parts. A resumed run
    needs no state for them.

    Attributes:
        parts: the data sets, in the order in which their records are numbered.
        seed: of the run.
        longest: most records of a part that a round looks at, which bounds the work where there are millions.
        process, processes: the number of this process, and how many there are.

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
        while len(drawn) < count and any(weights):
            place = draw.randrange(_FINE) / _FINE * sum(weights)
            part = next(number for number, end in enumerate(accumulate(weights)) if place < end)
            index = next((index for index in rows[part] if index not in without), None)
            if index is None:
                weights[part] = 0.0
            else:
                drawn.append(index)
        return [(epoch, index) for index in drawn]

    def _row(self, number: int, turn: int, draw: Random) -> Iterator[int]:
        """This process's records of a part in random order. The processes change shares from round to round."""
        start = sum(part.size for part in self.parts[:number])
        own = range(start + (self.process + turn) % self.processes, start + self.parts[number].size, self.processes)
        return iter(draw.sample(own, min(len(own), self.longest)))
