"""The data sets that an epoch is drawn from, and how many records of each make one. No torch is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One of the data sets that are drawn from.

    Attributes:
        name: as written in ``dataset_use``.
        size: its records.
        weight: how often it is drawn from, relative to the others, or None where no part has a weight.
        read_as: the format that its rows were guessed to be in, None where they are in our own or it was named.
        streamed: its rows came in order from a stream, which may give other ones the next time.
    """

    name: str
    size: int
    weight: float | None = None
    read_as: str | None = None
    streamed: bool = False


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
    weights = [part.weight for part in parts if part.weight is not None]
    if len(weights) < len(parts):
        return [part.size for part in parts]
    total, weight = sum(part.size for part in parts), sum(weights)
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
