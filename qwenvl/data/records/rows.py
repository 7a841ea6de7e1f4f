"""A row as its source holds it, and the rows of a source, in order and by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError

LEAST_ROW_BYTES = 4  # of a row of text, as in a,b and a line end

RowAt = Callable[[int], "Row"]


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: the source and the place of the row in it, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: the id of the row if it has none of its own.
        read: returns the content of the row, which is a dict if the row is sound. Raises RecordError if it can't be
            read.
        untyped: every value is text, as in CSV. The name of a column must tell whether it holds a number or a list.
        size: bytes of its text, 0 where it is no text.
    """

    where: str
    default_id: str
    read: Callable[[], Any]
    untyped: bool = False
    size: int = 0


class Rows:
    """The rows of a source: a text file, a table, or a list. It can be sent to other processes.

    Attributes:
        length: the number of rows. None: text, which has to be read to be counted.
        size: bytes of all rows, unpacked. None: text that is zipped.
        read_as: the preset whose rows they are. None: they may be in any form.
    """

    length: int | None
    size: int | None
    read_as: str | None = None

    def scan(self) -> Iterator[Row]:
        """The rows in order.

        Raises:
            RecordError: the source is damaged, after the rows before the damage.
        """
        raise NotImplementedError

    def index(self) -> tuple[int, RowAt]:
        """The number of rows, and a function from a number to its row.

        Raises:
            RecordError: a text file that can't be read to its end.
        """
        raise NotImplementedError

    def count(self) -> tuple[int, RecordError | None]:
        """The number of rows, and why the source can't be read to its end if that is so."""
        count = self.length or 0
        if self.length is None:
            try:
                for _ in self.scan():
                    count += 1
            except RecordError as damage:
                return count, damage
        return count, None

    def exceeds(self, size: int, rows: int) -> bool:
        """Whether there are more than ``size`` bytes, unpacked, or more than ``rows`` rows.

        Text is read no further than needed to know. Where it is damaged before that it counts as small.
        """
        if self.length is not None:
            return self.length > rows or (self.size or 0) > size
        if self.size is not None and (self.size > size or self.size <= rows * LEAST_ROW_BYTES):
            return self.size > size
        total = 0
        try:
            for count, row in enumerate(self.scan(), start=1):
                total += row.size
                if count > rows or total > size:
                    return True
        except RecordError:
            pass
        return False


@dataclass(frozen=True)
class ListedRows(Rows):
    """Rows that are in memory, or that an object in memory returns by number.

    Attributes:
        row: returns the row of a number.
    """

    length: int
    row: RowAt
    size: int = 0
    read_as: str | None = None

    def scan(self) -> Iterator[Row]:
        return map(self.row, range(self.length))

    def index(self) -> tuple[int, RowAt]:
        return self.length, self.row


def stem_of(path: Path) -> str:
    """The beginning of the default ids of a file's rows: its name without the endings."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
