"""The columns and cells of tables of labels: under which names they are read, and what ``qwenvl label`` writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.text import text_rows
from qwenvl.files import plain_file

LABEL_TABLE = (
    "id",
    "clip",
    "answer",
    "agreement",
    "logprob",
    "frames",
    "times",
    "seconds",
    "error",
    "finish_reason",
    "text",
)
"""Columns of the table that ``qwenvl label`` writes."""
_OF_ANSWERS = {"clip", "frames", "seconds", "finish_reason", "text"}  # which each row with an answer has
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With these a text begins that a spreadsheet runs."""


def is_label_table(names: Collection[str]) -> bool:
    """Whether columns are those of a table that ``qwenvl label`` has written, and perhaps further ones."""
    return _OF_ANSWERS.issubset(names)


def as_cell(value: Any) -> Any:
    """A value for a table, in which a spreadsheet takes no text for a formula.

    Example:
        >>> as_cell("=1+1"), as_cell("-3.5"), as_cell("fan")
        ("'=1+1", '-3.5', 'fan')
    """
    if not isinstance(value, str) or not value.startswith(FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def of_cell(text: str) -> str:
    """The text that ``as_cell`` has written.

    Example:
        >>> of_cell("'=1+1"), of_cell("'s"), of_cell("fan")
        ('=1+1', "'s", 'fan')
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULAS) else text


def column_names(path: Path, columns: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The name under which each column of a table is read, by its name in the table.

    Columns without cells are left out.

    Args:
        columns: ``--columns``, names of the table by others.
        known: names that have a meaning, in lower case and without blanks. The table may have them in any case.

    Raises:
        RecordError: two columns would be read under one name, or ``columns`` names none of the table.
    """
    rows = text_rows(plain_file(path))
    # Of all rows: each has only the cells that are not empty.
    found: dict[str, str] = {}
    for number in range(rows.length):
        try:
            cells = rows.row(number).content
        except RecordError:  # reported when the row is read
            continue
        for name in cells:
            if name.strip() and name not in found:
                found[name] = _read_as(name.strip(), columns, known)
    in_table = {name.strip() for name in found}
    for name in columns:
        if found and name not in in_table:
            raise RecordError(f"{path}: --columns names {name!r}; the table has {', '.join(found)}")
    first_of: dict[str, str] = {}
    for name, read_as in found.items():
        first = first_of.setdefault(read_as, name)
        if first != name:
            raise RecordError(
                f"{path}: the columns {first!r} and {name!r} would both be read as {read_as!r}; give one of them "
                f"another name in the table, or by --columns, such as {name}=other"
            )
    return found


def _read_as(name: str, columns: Mapping[str, str], known: Collection[str]) -> str:
    renamed = columns.get(name, name)
    plain = renamed.casefold().replace(" ", "_")
    return plain if plain in known else renamed


def named_cells(content: Mapping[str, str], names: Mapping[str, str], where: str) -> dict[str, str]:
    """The cells of a row that are not empty, by the names of ``column_names``.

    Raises:
        RecordError: a quote behind a blank, which holds no commas together: the cell ends at its first one.
    """
    for cell in content.values():
        if isinstance(cell, str) and cell.startswith(" ") and cell.lstrip().startswith('"'):
            raise RecordError(f"{where}: the cell {cell.strip()} has a blank before its quote; leave the blank out")
    cells = {names[name]: cell.strip() for name, cell in content.items() if name in names}
    return {name: cell for name, cell in cells.items() if cell}
