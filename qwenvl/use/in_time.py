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
class Reading:
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


class DatasetInTime(GRPODataset):
    """Decodes the clips of one request within what is left of its time."""

    seconds_left: Callable[[], float]

    def within(self, seconds_left: Callable[[], float], is_over: Callable[[], bool]) -> DatasetInTime:
        """The same data set for a request.

        Args:
            seconds_left: says how long the next clip may take.
            is_over: see ``GRPODataset``.
        """
        own = copy(self)
        own.seconds_left = seconds_left
        own.is_over = is_over
        return own

    def open(self, record: Record, number: int) -> Clip:
        bounded = copy(self)
        bounded.options = replace(self.options, decode_timeout=self.seconds_left())
        return GRPODataset.open(bounded, record, number)

    def load_image(self, path: str) -> Tensor:
        return load_image(path)  # the server has written it itself, from what a child has decoded
