"""A row as its source holds it, and the rows of a source by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: the source and the place of the row in it, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: the id of the row if it has none of its own.
        read: returns the content of the row, which is a dict if the row is sound. Raises RecordError if it can't be
            read.
        untyped: every value is text, as in CSV. The name of a column must tell whether it holds a number or a list.
    """

    where: str
    default_id: str
    read: Callable[[], Any]
    untyped: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a source: a file, a table, or a list. It can be sent to other processes.

    Attributes:
        length: the number of rows.
        size: bytes of all rows, unpacked. 0 for rows that a program holds in memory.
        row: returns the row of a number.
        damage: why the source can't be read to its end, where that is so. The rows are those before the damage.
    """

    length: int
    size: int
    row: Callable[[int], Row]
    damage: RecordError | None = None


def stem_of(path: Path) -> str:
    """The beginning of the default ids of a file's rows: its name without the endings."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
