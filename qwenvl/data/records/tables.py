"""Rows of Arrow tables: parquet files, folders written by ``save_to_disk``, data sets of the hub.

Pictures and clips stay the bytes that they are: decoding here would change and slow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.media.unpacked import unpacked
from qwenvl.data.records.rows import HUB_PREFIX, Row, Rows, stem_of

BATCH_BYTES = 4 * 2**20  # about what is in memory at a time
MOST_BATCH_ROWS = 1000


class ArrowRows(Rows):
    """Rows of a table of which a batch at a time is in memory."""

    where: str
    stem: str

    def _batches(self) -> Iterator[Any]:
        """All rows in order, as Arrow tables or record batches."""
        raise NotImplementedError

    def _slice(self, index: int) -> Any:
        """The row as an Arrow table."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Row:
        index = range(len(self))[index]
        return self._row(index, self._slice(index))

    def select(self, numbers: Iterable[int]) -> Iterator[Row]:
        batches, first, length = self._batches(), 0, 0
        for number in numbers:
            while number >= first + length:
                batch = next(batches)
                first, length = first + length, len(batch)
            yield self._row(number, batch.slice(number - first, 1))

    def _row(self, index: int, table: Any) -> Row:
        (values,) = table.to_pylist()
        # Tables give every row every column; one without a value is one that the row does not have.
        values = {name: value for name, value in values.items() if value is not None}
        return Row(f"{self.where}[{index}]", f"{self.stem}-{index}", values)

    def _batch_rows(self) -> int:
        """Rows of a batch of ``BATCH_BYTES``, if they are of one size."""
        return min(MOST_BATCH_ROWS, max(1, BATCH_BYTES * len(self) // max(1, self.size)))


class TableRows(ArrowRows):
    """Rows of a ``datasets.Dataset``, which lies on disk."""

    def __init__(self, table: Any, where: str, stem: str) -> None:
        self.where, self.stem = where, stem
        self.size = table.data.nbytes
        self._table = table.with_format("arrow")

    def __len__(self) -> int:
        return len(self._table)

    def _batches(self) -> Iterator[Any]:
        return self._table.iter(self._batch_rows())

    def _slice(self, index: int) -> Any:
        return self._table[index]


class ParquetRows(ArrowRows):
    """Rows of a parquet file.

    Rows lie packed in large groups, so that none can be read alone: the first to be asked for by its number has the
    file unpacked, once, into the cache folder. A row group at a time must fit into memory.

    Raises:
        RecordError: not a readable parquet file; also when rows are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where, self.stem = str(path), stem_of(path)
        self._table: Any = None
        metadata = self._file().metadata
        self._length = metadata.num_rows
        self.size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_table": None}  # each process maps the file itself

    def _batches(self) -> Iterator[Any]:
        pyarrow = require("pyarrow", "parquet files")
        try:
            for batch in self._file().iter_batches(self._batch_rows(), use_threads=False):
                dictionaries = [i for i, field in enumerate(batch.schema) if pyarrow.types.is_dictionary(field.type)]
                for i in dictionaries:  # pandas' categories; a file of Arrow batches has room for one set of them
                    name = batch.schema.field(i).name
                    batch = batch.set_column(i, name, batch.column(i).dictionary_decode())
                yield batch
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _slice(self, index: int) -> Any:
        if self._table is None:
            pyarrow = require("pyarrow", "parquet files")
            self._table = pyarrow.ipc.open_file(pyarrow.memory_map(str(unpacked(self.path, self._unpack)))).read_all()
        return self._table.slice(index, 1)

    def _unpack(self, target: Path) -> None:
        pyarrow = require("pyarrow", "parquet files")
        batches = self._batches()
        first = next(batches)
        with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)

    def _file(self) -> Any:
        parquet = require("pyarrow.parquet", "parquet files")
        try:
            return parquet.ParquetFile(self.path, pre_buffer=False)
        except (OSError, ValueError) as error:  # pyarrow's errors are these
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> RecordError:
        return RecordError(f"{self.path}: not a readable parquet file: {error}", "parquet")


def folder_rows(path: Path) -> TableRows:
    """The rows of a folder that ``save_to_disk`` wrote.

    Raises:
        RecordError: another folder, or one of several splits.
    """
    datasets = require("datasets", "data sets saved to a folder")
    try:
        table = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: expected a data set written by `save_to_disk`: {error}", "data set") from None
    if not isinstance(table, datasets.Dataset):
        raise RecordError(f"{path}: holds the splits {', '.join(table)}; name the folder of one of them", "data set")
    return TableRows(table, str(path), path.name)


def hub_rows(name: str) -> TableRows:
    """The rows of ``hf:name`` or ``hf:name:split``; the split is ``train`` where it is not named.

    Raises:
        RecordError: the library can't load it.
    """
    datasets = require("datasets", "data sets of the hub")
    repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
    try:
        table = datasets.load_dataset(repository, split=split or "train")
    except (OSError, ValueError) as error:  # its own errors are these
        raise RecordError(f"{name}: can't be loaded: {error}", "data set") from None
    return TableRows(table, name, repository.rpartition("/")[2])


def require(module: str, what: str) -> Any:
    """A module of the extra ``formats``.

    Raises:
        RecordError: it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise RecordError(
            f"{what} need the package {module.partition('.')[0]}: `pip install qwenvl[formats]`"
        ) from None
