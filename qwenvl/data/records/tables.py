"""Rows of Arrow tables: parquet files, folders written by ``save_to_disk``, data sets of the hub.

Pictures and clips stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.rows import Row, RowAt, Rows, stem_of
from qwenvl.disk_store import cached_copy
from qwenvl.files import require

HUB_PREFIX = "hf:"
BATCH_BYTES = 4 * 2**20  # about what is in memory at a time
MOST_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Table(Rows):
    """The rows of a table, of which a batch at a time is in memory.

    Attributes:
        where, stem: the beginnings of the places and the default ids of the rows.
        batches: yields all rows in order, as Arrow tables or record batches.
        table: returns the row of a number as an Arrow table of one row.
    """

    where: str
    stem: str
    length: int
    size: int
    batches: Callable[[], Iterator[Any]]
    table: Callable[[int], Any]

    def scan(self) -> Iterator[Row]:
        slices = (batch.slice(i, 1) for batch in self.batches() for i in range(len(batch)))
        return (self._row(index, table) for index, table in enumerate(slices))

    def index(self) -> tuple[int, RowAt]:
        return self.length, self.row

    def row(self, index: int) -> Row:
        """The row of a number."""
        return self._row(index, self.table(index))

    def _row(self, index: int, table: Any) -> Row:
        return Row(f"{self.where}[{index}]", f"{self.stem}-{index}", partial(_values, table))


def parquet_rows(path: Path) -> Table:
    """The rows of a parquet file, which holds them packed in large groups. One group must fit into memory.

    To read rows by number, the cache folder gets a copy as an Arrow file.

    Raises:
        RecordError: not a readable parquet file. This may also show when rows are read.
    """
    metadata = _parquet(path).metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    batches = partial(_parquet_batches, path, _batch_rows(metadata.num_rows, size))
    return Table(str(path), stem_of(path), metadata.num_rows, size, batches, partial(_parquet_row, path, batches))


def saved_rows(path: Path) -> Table:
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
    return table_rows(data, str(path), path.name)


def hub_rows(name: str) -> Table:
    """The rows of ``hf:name`` or ``hf:name:split``. The default split is ``train``.

    Raises:
        RecordError: the data set can't be loaded.
    """
    datasets = require_format("datasets", "data sets of the hub")
    repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
    try:
        data = datasets.load_dataset(repository, split=split or "train")
    except (OSError, ValueError) as error:  # its own errors are these
        raise RecordError(f"{name}: can't be loaded: {error}", "data set") from None
    return table_rows(data, name, repository.rpartition("/")[2])


def table_rows(data: Any, where: str, stem: str) -> Table:
    """The rows of a ``datasets.Dataset``, which is on disk or in memory as Arrow tables."""
    data, length, size = data.with_format("arrow"), len(data), data.data.nbytes
    return Table(where, stem, length, size, partial(data.iter, _batch_rows(length, size)), data.__getitem__)


def require_format(module: str, what: str) -> Any:
    """A module of the extra ``formats``.

    Raises:
        RecordError: it is not installed. The message says what to install.
    """
    try:
        return require(module, "formats")
    except ImportError as error:
        raise RecordError(f"{what}: {error}") from None


def _values(table: Any) -> dict[str, Any]:
    """The columns of a table of one row. Tables give every row every column: one without a value counts as missing."""
    (values,) = table.to_pylist()
    return {name: value for name, value in values.items() if value is not None}


def _batch_rows(length: int, size: int) -> int:
    """Rows of a batch of ``BATCH_BYTES``, if all rows have the same size."""
    return min(MOST_BATCH_ROWS, max(1, BATCH_BYTES * length // max(1, size)))


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


def _parquet_row(path: Path, batches: Callable[[], Iterator[Any]], index: int) -> Any:
    return _mapped(cached_copy(path, partial(_write_arrow, batches), ".arrow")).slice(index, 1)


@cache
def _mapped(copy: Path) -> Any:
    """An Arrow file as a table, mapped once in each process."""
    pyarrow = require_format("pyarrow", "parquet files")
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(copy))).read_all()


def _write_arrow(batches: Callable[[], Iterator[Any]], target: Path) -> None:
    pyarrow = require_format("pyarrow", "parquet files")
    tables = batches()
    first = next(tables)
    with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in tables:
            writer.write_batch(batch)


def _unreadable(path: Path, error: Exception) -> RecordError:
    return RecordError(f"{path}: not a readable parquet file: {error}", "parquet")
