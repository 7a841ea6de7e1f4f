"""Rows that a program hands over in place of a file: lists, data sets of `datasets` and of torch, and streams."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from PIL.Image import Image

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records.catalog import DatasetSource, resolve_datasets
from qwenvl.data.records.rows import Row
from qwenvl.data.records.tables import Table, table_of

EXPECTED = "expected what --dataset_use takes, rows (a list of dicts or a data set of dicts) or a GRPODataset"
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


@dataclass(frozen=True)
class GivenRows(Sequence[Row]):
    """Rows by number.

    Attributes:
        name: what their places and ids begin with.
        length: their number.
        value: returns the row of a number.
    """

    name: str
    length: int
    value: Callable[[int], Any]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Row:
        index = range(self.length)[index]
        return _row(self.name, index, partial(self.value, index))

    def exceeds(self, size: int, rows: int) -> bool:
        """Whether there are more than ``rows`` rows. How large they are is not known."""
        return self.length > rows

    def count(self) -> tuple[int, None]:
        """The number of rows, and no damage."""
        return self.length, None

    def at_random(self) -> Sequence[Row]:
        """The rows by number."""
        return self


class RowStream:
    """Rows that come in order, once. They are all read, and none is kept.

    Args:
        name: what their places and ids begin with.
        values: the rows.
        most: of them that are read. None reads to the end.
    """

    def __init__(self, name: str, values: Iterable[Any], most: int | None) -> None:
        rest = islice(iter(values), most)
        self.name, self._first, self._rest = name, list(islice(rest, 1)), rest

    def __iter__(self) -> Iterator[Row]:
        """The rows. The first one may be looked at before."""
        values = enumerate(chain(self._first, self._rest))
        return (_row(self.name, index, partial(_same, value)) for index, value in values)

    def exceeds(self, size: int, rows: int) -> bool:
        """False: a stream can't be read by number."""
        return False

    def count(self) -> tuple[int, None]:
        """Not known."""
        raise TypeError(f"{self.name}: a stream has no length")

    def at_random(self) -> Sequence[Row]:
        """Not possible."""
        raise TypeError(f"{self.name}: the rows of a stream come in order")


def given_rows(given: Any, name: str, most: int | None = None) -> Table | GivenRows | RowStream | None:
    """The rows that a program hands over, None where it hands over something else, such as samples.

    Args:
        given: a list of dicts, a ``datasets.Dataset`` or ``IterableDataset``, or one of torch whose items are dicts.
        name: of these rows, for errors.
        most: rows that are read of a stream. None reads it to its end.

    Raises:
        RecordError: several splits, or no rows.
    """
    from torch.utils.data import Dataset  # late: reading files needs no torch

    datasets = sys.modules.get("datasets")  # who hands over one of its data sets has imported it
    if datasets is not None and isinstance(given, dict) and hasattr(given, "num_rows"):
        raise RecordError(f"{name}: holds the splits {', '.join(given)}; give one of them", "data set")
    if datasets is not None and isinstance(given, datasets.Dataset) and given.format["type"] != "custom":
        return table_of(given, name, name)
    if is_stream(given):
        return RowStream(name, _undecoded(given), most)
    sized = (list, tuple, Dataset) if datasets is None else (list, tuple, Dataset, datasets.Dataset)
    if not isinstance(given, sized) or not hasattr(given, "__len__"):
        return None
    if not len(given):
        raise RecordError(f"{name}: no rows", "data set")
    if not isinstance(given[0], dict):
        if isinstance(given, Dataset):
            return None
        raise RecordError(f"{name}[0]: expected a row, a dict, got {kind_of(given[0])}")
    return GivenRows(name, len(given), partial(_item, given))


def is_stream(given: Any) -> bool:
    """Whether rows come in order and without a length: an ``IterableDataset`` of `datasets` or of torch."""
    from torch.utils.data import IterableDataset

    datasets = sys.modules.get("datasets")
    return isinstance(given, IterableDataset) or (datasets is not None and isinstance(given, datasets.IterableDataset))


def sources_of(
    dataset_use: Any, catalog_path: str | Path | None, name: str, most_rows: int | None
) -> list[tuple[DatasetSource, Any]]:
    """What is named or given, each source with its rows where they are in no file. See ``load_dataset``."""
    if isinstance(dataset_use, str | Path):
        return [(source, None) for source in resolve_datasets(str(dataset_use), catalog_path)]
    rows = given_rows(dataset_use, name, most_rows)
    if rows is None:
        raise TypeError(f"{name}: {EXPECTED}, got {type(dataset_use).__name__}")
    return [(DatasetSource(name, Path(name), Path.cwd()), rows)]


def _undecoded(stream: Any) -> Any:
    """The stream with pictures and clips as the bytes or paths that they are, since decoding would change them."""
    return stream.decode(False) if hasattr(stream, "decode") and getattr(stream, "features", None) else stream


def _row(name: str, index: int, value: Callable[[], Any]) -> Row:
    return Row(f"{name}[{index}]", f"{name}-{index}", partial(_plain_row, value))


def _plain_row(value: Callable[[], Any]) -> Any:
    row = value()
    return {key: _plain(one) for key, one in row.items() if one is not None} if isinstance(row, dict) else row


def _plain(value: Any) -> Any:
    """A value with its pictures as the bytes of a PNG file, which loses nothing."""
    if isinstance(value, Image):
        data = io.BytesIO()
        (value if value.mode in _PNG_MODES else value.convert("RGB")).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _item(given: Any, index: int) -> Any:
    return given[index]


def _same(value: Any) -> Any:
    return value
