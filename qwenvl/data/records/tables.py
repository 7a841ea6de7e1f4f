"""Rows of Arrow tables: parquet files, folders written by ``save_to_disk``, data sets of the hub.

Pictures and clips stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.copies import cached_copy
from qwenvl.data.records.rows import HUB_PREFIX, Row, stem_of
from qwenvl.files import require

BATCH_BYTES = 4 * 2**20  # about what is in memory at a time
MOST_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Table(Sequence[Row]):
    """The rows of a table, of which a batch at a time is in memory.

    Attributes:
        where, stem: what the places and the default ids of the rows begin with.
        length: number of rows.
        size: bytes of all rows, unpacked.
        batches: yields all rows in order, as Arrow tables or record batches.
        row: given the number of a row, returns this row as an Arrow table.
    """

    where: str
    stem: str
    length: int
    size: int
    batches: Callable[[], Iterator[Any]]
    row: Callable[[int], Any]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Row]:
        slices = (batch.slice(i, 1) for batch in self.batches() for i in range(len(batch)))
        return (self._row(index, table) for index, table in enumerate(slices))

    def __getitem__(self, index: int) -> Row:
        index = range(self.length)[index]
        return self._row(index, self.row(index))

    def count(self) -> tuple[int, None]:
        """The number of rows, and no damage."""
        return self.length, None

    def exceeds(self, size: int, rows: int) -> bool:
        """Whether the table is larger than ``size`` bytes, unpacked, or has more than ``rows`` rows."""
        return self.size > size or self.length > rows

    def at_random(self) -> Sequence[Row]:
        """The rows by number."""
        return self

    def _row(self, index: int, table: Any) -> Row:
        return Row(f"{self.where}[{index}]", f"{self.stem}-{index}", partial(_values, table))


def parquet_table(path: Path) -> Table:
    """The rows of a parquet file, which holds them packed in large groups. One group must fit into memory.

    To read rows at random, the cache folder gets a copy as an Arrow file.

    Raises:
        RecordError: not a readable parquet file. This may also show when rows are read.
    """
    metadata = _parquet(path).metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    rows = _batch_rows(metadata.num_rows, size)
    return Table(
        str(path),
        stem_of(path),
        metadata.num_rows,
        size,
        batches=partial(_parquet_batches, path, rows),
        row=partial(_parquet_row, path, rows),
    )


def saved_table(path: Path) -> Table:
    """The rows of a folder that ``save_to_disk`` wrote.

    Raises:
        RecordError: the folder is another one, or holds several splits.
    """
    datasets = require_format("datasets", "data sets saved to a folder")
    try:
        data = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: expected a data set written by `save_to_disk`: {error}", "data set") from None
    if not isinstance(data, datasets.Dataset):
        raise RecordError(f"{path}: holds the splits {', '.join(data)}; name the folder of one of them", "data set")
    return table_of(data, str(path), path.name)


def table_of_the_hub(name: str) -> Table:
    """The rows of ``hf:name`` or ``hf:name:split``. The split is ``train`` where it is not named.

    Raises:
        RecordError: the data set can't be loaded.
    """
    datasets = require_format("datasets", "data sets of the hub")
    repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
    try:
        data = datasets.load_dataset(repository, split=split or "train")
    except (OSError, ValueError) as error:  # its own errors are these
        raise RecordError(f"{name}: can't be loaded: {error}", "data set") from None
    return table_of(data, name, repository.rpartition("/")[2])


def require_format(module: str, what: str) -> Any:
    """A module of the extra ``formats``.

    Raises:
        RecordError: it is not installed. The message says what to install.
    """
    try:
        return require(module, "formats")
    except ImportError as error:
        raise RecordError(f"{what}: {error}") from None


def table_of(data: Any, where: str, stem: str) -> Table:
    """The rows of a ``datasets.Dataset``, which lies on disk or in memory as Arrow tables."""
    data, length, size = data.with_format("arrow"), len(data), data.data.nbytes
    batches = partial(data.iter, _batch_rows(length, size))
    return Table(where, stem, length, size, batches, row=data.__getitem__)


def _batch_rows(length: int, size: int) -> int:
    """Rows of a batch of ``BATCH_BYTES``, if all rows have the same size."""
    return min(MOST_BATCH_ROWS, max(1, BATCH_BYTES * length // max(1, size)))


def _values(table: Any) -> dict[str, Any]:
    """The columns of a table of one row. Tables give every row every column: one without a value counts as missing."""
    (values,) = table.to_pylist()
    return {name: value for name, value in values.items() if value is not None}


def _parquet(path: Path) -> Any:
    parquet = require_format("pyarrow.parquet", "parquet files")
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:  # pyarrow's errors are these
        raise _unreadable(path, error) from None


def _parquet_batches(path: Path, rows: int) -> Iterator[Any]:
    types = require_format("pyarrow", "parquet files").types
    try:
        for batch in _parquet(path).iter_batches(rows, use_threads=False):
            for i, field in enumerate(batch.schema):
                if types.is_dictionary(field.type):  # pandas' categories: an Arrow file has room for one set of them
                    batch = batch.set_column(i, field.name, batch.column(i).dictionary_decode())
            yield batch
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _parquet_row(path: Path, rows: int, index: int) -> Any:
    return _mapped(cached_copy(path, partial(_write_arrow, path, rows), ".arrow")).slice(index, 1)


@cache
def _mapped(copy: Path) -> Any:
    """An Arrow file as a table, mapped once in each process."""
    pyarrow = require_format("pyarrow", "parquet files")
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(copy))).read_all()


def _write_arrow(path: Path, rows: int, target: Path) -> None:
    pyarrow = require_format("pyarrow", "parquet files")
    batches = _parquet_batches(path, rows)
    first = next(batches)
    with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _unreadable(path: Path, error: Exception) -> RecordError:
    return RecordError(f"{path}: not a readable parquet file: {error}", "parquet")
