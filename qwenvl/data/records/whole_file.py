"""Files that are read as a whole: one JSON object that holds all records, and plain lines that a preset can read."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from qwenvl.data.errors import RecordError
from qwenvl.data.records.presets.table import PRESETS
from qwenvl.data.records.rows import Row, stem_of

MAX_BYTES = 2**30  # of a file that is read as a whole, as stored: it takes several times that in memory
_HEAD = 2**20  # bytes that tell which kind of file it is
_LIST = "data"  # {"data": [...]}


@dataclass(frozen=True)
class WholeFile(Sequence[Row]):
    """The rows of a file, all in memory.

    Attributes:
        rows: of the file, in order.
        size: bytes of the file, as stored.
        read_as: the preset whose rows they are, None where they may be in any form.
    """

    rows: tuple[Row, ...]
    size: int
    read_as: str | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def exceeds(self, size: int, rows: int) -> bool:
        """Whether there are more than ``size`` bytes or ``rows`` rows."""
        return self.size > size or len(self) > rows

    def count(self) -> tuple[int, None]:
        """The number of rows, and no damage."""
        return len(self), None

    def at_random(self) -> Sequence[Row]:
        """The rows by number."""
        return self


def whole_file(path: Path, read_as: str | None) -> WholeFile | None:
    """The rows of a file that is one JSON object, or lines that a preset reads. None for files of other kinds.

    ``{"data": [...]}`` holds rows of any form. Other objects are those that a preset knows. Both are named ``.json``.

    Args:
        read_as: a preset by name, whose files are looked for. None for all.

    Raises:
        RecordError: a file of such a kind that is damaged or too large.
    """
    try:
        with _opened(path) as file:
            head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    except (OSError, EOFError, zlib.error):
        return None  # a damaged gzip file, which is told by those who read it
    first, _, more = head.partition(b"\n")
    presets = {name: preset for name, preset in PRESETS.items() if read_as in (None, name)}
    for name, preset in presets.items():
        if preset.line is not None and preset.line(first.decode("utf-8", "replace")):
            return WholeFile(tuple(_lines(path, name)), os.stat(path).st_size, name)
    is_lines = _is_json(first) and more.strip()
    if not head.startswith(b"{") or is_lines or ".json" not in path.suffixes or os.stat(path).st_size > MAX_BYTES:
        return None
    try:
        content = json.loads(_whole(path))
    except (ValueError, RecursionError):
        return None  # JSON lines with damage, which is told where it stands
    listed = content.get(_LIST)
    if isinstance(listed, list) and all(isinstance(row, dict) for row in listed):
        places = [(f"{_LIST}[{i}]", row) for i, row in enumerate(listed)]
        return WholeFile(_rows(path, places), os.stat(path).st_size, read_as)
    for name, preset in presets.items():
        if preset.entries is not None and (places := _entries(path, name, preset.entries, content)):
            return WholeFile(_rows(path, places), os.stat(path).st_size, name)
    return None


def _entries(path: Path, name: str, entries: Any, content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rows that a preset finds in an object, none where it is another object."""
    try:
        return list(entries(content))
    except (KeyError, TypeError, AttributeError):
        return []
    except ValueError as error:
        raise RecordError(f"{path}: read as {name}: {error}") from None


def _rows(path: Path, places: list[tuple[str, dict[str, Any]]]) -> tuple[Row, ...]:
    stem = stem_of(path)
    return tuple(Row(f"{path}: {place}", f"{stem}-{i}", partial(dict, row)) for i, (place, row) in enumerate(places))


def _lines(path: Path, name: str) -> Iterator[Row]:
    index = 0
    for number, line in enumerate(_whole(path).decode("utf-8-sig", "replace").splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield Row(where, f"{stem_of(path)}-{index}", partial(_line, line, where, name))
            index += 1


def _line(line: str, where: str, name: str) -> dict[str, Any]:
    row = PRESETS[name].line(line)  # type: ignore[misc]
    if row is None:
        raise RecordError(f"{where}: read as {name}: no line of this format: {line[:80]!r}")
    return row


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _whole(path: Path) -> bytes:
    with _opened(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RecordError(f"{path}: a file of this kind is read as a whole, up to {MAX_BYTES >> 30} GB; split it")
    return content


def _opened(path: Path) -> BinaryIO:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path) if zipped else open(path, "rb"))
