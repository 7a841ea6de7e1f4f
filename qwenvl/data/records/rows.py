"""Files to raw rows by number, one class for each kind of file, told by content and not by name.

What the rows mean is settled in ``schemas``: any kind of file may hold any of them. No kind is held in memory as a
whole: rows are read when asked for, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError

HUB_PREFIX = "hf:"


@dataclass(frozen=True)
class Row:
    """One row as it was read.

    Attributes:
        where: file and place, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: its id where it has none of its own.
        value: what the row holds, a dict if it is sound; the ``RecordError`` of a row that can't be read.
        untyped: every value is text, as in CSV, where a number or a list can't be told from one.
    """

    where: str
    default_id: str
    value: Any
    untyped: bool = False


class Rows(Sequence[Row]):
    """The rows of a file or table, by number, from any process.

    Attributes:
        size: bytes of all rows, unpacked.
        damage: why the rows end before the file does, where that is so.
    """

    size: int
    damage: RecordError | None = None

    def select(self, numbers: Iterable[int]) -> Iterator[Row]:
        """The rows of rising ``numbers``, where that is faster than to ask for each."""
        return (self[number] for number in numbers)

    def __iter__(self) -> Iterator[Row]:
        return self.select(range(len(self)))


def open_rows(source: Path | str) -> Rows:
    """The rows of a JSON array, JSON lines (both also gzipped), parquet or CSV file, of a data set folder or the hub.

    Args:
        source: a file; a folder written by ``datasets``' ``save_to_disk``; or ``hf:name`` or ``hf:name:split``.

    Raises:
        RecordError: the file as a whole can't be read.
    """
    from qwenvl.data.records import tables, text_rows

    if str(source).startswith(HUB_PREFIX):
        return tables.hub_rows(str(source))
    path = Path(source)
    if path.is_dir():
        return tables.folder_rows(path)
    with open(path, "rb") as file:
        if file.read(4) == b"PAR1":
            return tables.ParquetRows(path)
    return text_rows.open_text(path)


def stem_of(path: Path) -> str:
    """What the default ids of a file's rows begin with."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
