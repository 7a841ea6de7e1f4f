"""Media of requests, decoded within what is left of their time."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from torch import Tensor

from qwenvl.data.dataset import GRPODataset
from qwenvl.data.media.images import load_image
from qwenvl.data.media.reader import Clip
from qwenvl.types import Record


class DatasetInTime(GRPODataset):
    """Decodes the clips of one request within what is left of its time."""

    seconds_left: Callable[[], float]

    def within(self, seconds_left: Callable[[], float]) -> DatasetInTime:
        """The same data set for a request.

        Args:
            seconds_left: says how long the next clip may take.
        """
        own = copy(self)
        own.seconds_left = seconds_left
        return own

    def open(self, record: Record, number: int) -> Clip:
        bounded = copy(self)
        bounded.options = replace(self.options, decode_timeout=self.seconds_left())
        return GRPODataset.open(bounded, record, number)

    def load_image(self, path: str) -> Tensor:
        return load_image(path)  # the server has written it itself, from what a child has decoded
