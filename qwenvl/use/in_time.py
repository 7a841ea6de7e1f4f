"""Media of requests, decoded within what is left of their time."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from time import monotonic

from torch import Tensor

from qwenvl.data.dataset import GRPODataset
from qwenvl.data.media.images import load_image
from qwenvl.data.media.reader import Clip
from qwenvl.types import Record
from qwenvl.use.chat_request import ApiError, Patience

# After which the reading of a request gives way to others. The clips of an ordinary prompt are read within one.
LONG_READING_SECONDS = 3.0


@dataclass(eq=False)
class ReadingTime:
    """The time of a request while its media are read.

    Attributes:
        patience: of the request.
        each: most seconds for one clip or image.
        total: most seconds for all of them.
        others_wait: whether other requests wait for a place to be read at.
        gave_way: whether this one was ended for them.
        began: when the reading began.
    """

    patience: Patience
    each: float
    total: float
    others_wait: Callable[[], bool]
    gave_way: bool = False
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = monotonic()

    def seconds_left(self) -> float:
        """The seconds that the next clip or image may take.

        Raises:
            ApiError: there are none, or nobody waits for the answer.
        """
        self.patience.check()
        seconds = min(self.each, self.patience.left(), self.began + self.total - monotonic())
        if seconds <= 0:
            taken = f"{self.total:g} s ({self.total / self.each:g} x --decode_timeout)"
            raise ApiError(400, f"messages: the clips and images take more than {taken} to read")
        return seconds

    def is_over(self) -> bool:
        """Whether to stop: nobody waits for the answer, or the reading has taken long and others wait."""
        if monotonic() - self.began > LONG_READING_SECONDS and self.others_wait():
            self.gave_way = True
        return self.gave_way or self.patience.gone


# Of all looks of requests that are sampled together, after which others do not wait for one that has had its share.
LONG_LOOKS_SECONDS = 10.0
LEAST_LOOKS_SECONDS = 1.0  # that the looks of each request may take, however many there are


class LookTimes:
    """The seconds that the looks of requests take which are sampled together, one look after the other."""

    def __init__(self, requests: int = 1) -> None:
        self.record: Record | None = None  # of the request whose look runs, or was the last
        self._share = max(LEAST_LOOKS_SECONDS, LONG_LOOKS_SECONDS / requests)
        self._taken: dict[str, float] = {}
        self._began: float | None = None

    def begin(self, record: Record) -> None:
        """A look of the request about a record begins, and one that was running has ended: a call may open several."""
        self.end()
        self.record = record
        self._began = monotonic()

    def end(self) -> None:
        """The look has ended, if one was running."""
        if self.record is not None and self._began is not None:
            self._taken[self.record.id] = self._own(self.record)
            self._began = None

    def _own(self, record: Record) -> float:
        """The seconds that the looks of a request have taken, with the one that runs."""
        assert self._began is not None
        return self._taken.get(record.id, 0.0) + monotonic() - self._began

    def are_long(self, record: Record) -> bool:
        """Whether the looks have taken long, and those of the request about a record more than their share."""
        own = self._own(record)
        others = sum(seconds for each, seconds in self._taken.items() if each != record.id)
        return own + others > LONG_LOOKS_SECONDS and own > self._share


class DatasetInTime(GRPODataset):
    """Decodes the clips of one request, or of looks, within what is left of the time."""

    seconds_left: Callable[[Record], float]

    def within(self, seconds_left: Callable[[Record], float], is_over: Callable[[], bool]) -> DatasetInTime:
        """The same data set for a request.

        Args:
            seconds_left: says how long the next clip of a record may take.
            is_over: see ``GRPODataset``.
        """
        own = copy(self)
        own.seconds_left = seconds_left
        own.is_over = is_over
        return own

    def open(self, record: Record, number: int) -> Clip:
        bounded = copy(self)
        bounded.options = replace(self.options, decode_timeout=self.seconds_left(record))
        return GRPODataset.open(bounded, record, number)

    def load_image(self, path: str) -> Tensor:
        return load_image(path)  # the server has written it itself, from what a child has decoded
