"""Rows of text files: JSON arrays, JSON lines and CSV, plain or gzipped.

One pass finds where each row begins and ends, in bytes; a row is read when it is asked for. The pass takes the text for
Latin-1, in which a character is a byte, and which leaves alone all that JSON and CSV set their rows apart with.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.media.unpacked import unpacked
from qwenvl.data.records.json_window import JSONDamage, Window, message_of
from qwenvl.data.records.rows import Row, Rows, stem_of

BOM = b"\xef\xbb\xbf"
MEMORY_BYTES = 8 * 2**20  # a zipped file that unfolds to more is unfolded on disk


def open_text(path: Path) -> TextRows:
    """The rows of a text file; ``.csv`` or ``.tsv`` in its name counts where the content is not plainly JSON.

    Raises:
        RecordError: a damaged gzip file, text that is not UTF-8 or not CSV.
    """
    text = TextFile(path)
    with text.open() as file:
        first = file.read(4096).removeprefix(BOM).lstrip()[:1]
    if first == b"[":
        return ArrayRows(text)
    if (first != b"{" and ".csv" in path.suffixes) or ".tsv" in path.suffixes:
        return CsvRows(text)
    return LineRows(text)


class TextFile:
    """A file to read bytes from at any place, unzipped where it is gzipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._data = path, None
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        if not zipped:
            return
        try:
            with gzip.open(path) as file:
                data = file.read(MEMORY_BYTES + 1)
            if len(data) > MEMORY_BYTES:
                self._file = unpacked(path, self._unzip)
            else:
                self._data = data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RecordError(f"{path}: damaged gzip file: {error}", "JSON") from None

    def open(self) -> BinaryIO:
        return open(self._file, "rb") if self._data is None else io.BytesIO(self._data)

    def _unzip(self, target: Path) -> None:
        with gzip.open(self.path) as file, open(target, "wb") as copy:
            shutil.copyfileobj(file, copy, 2**20)


class TextRows(Rows):
    """Rows that are stretches of a text file."""

    def __init__(self, text: TextFile) -> None:
        self.path = text.path
        self._text = text
        places = array("q")
        with text.open() as file:
            self.size = file.seek(0, io.SEEK_END)
            file.seek(0)
            if file.read(len(BOM)) != BOM:
                file.seek(0)
            for place in self._find(file):
                places.extend(place)
        self._places = np.frombuffer(places, np.int64).reshape(-1, 3) if places else np.empty((0, 3), np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        return next(self.select([range(len(self))[index]]))

    def select(self, numbers: Iterable[int]) -> Iterator[Row]:
        with self._text.open() as file:
            for index in numbers:
                line, start, end = self._places[index].tolist()
                file.seek(start)
                yield self._row(index, line, file.read(end - start))

    def _find(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        """(line from 1, first byte, end) of each row."""
        raise NotImplementedError

    def _row(self, index: int, line: int, data: bytes) -> Row:
        raise NotImplementedError

    def _id(self, number: int) -> str:
        return f"{stem_of(self.path)}-{number}"


class LineRows(TextRows):
    """The lines of a file that are not blank, each a JSON value."""

    def _find(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        start = file.tell()
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                yield number, start, start + len(line)
            start += len(line)

    def _row(self, index: int, line: int, data: bytes) -> Row:
        where = f"{self.path}:{line}"
        return Row(where, self._id(line - 1), _read(json.loads, data, where))


class ArrayRows(TextRows):
    """The elements of a JSON array, up to where it is damaged."""

    def _find(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        count = 0
        try:
            for start, end in Window(file).elements():
                yield 0, start, end
                count += 1
        except JSONDamage as damage:
            line, column = line_and_column(file, damage.at)
            self.damage = RecordError(
                f"{self.path}[{count}]: not valid JSON: {damage} at line {line} column {column}; what follows in the "
                "file can't be read",
                "JSON",
            )

    def _row(self, index: int, line: int, data: bytes) -> Row:
        where = f"{self.path}[{index}]"
        return Row(where, self._id(index), _read(json.loads, data, where))


class CsvRows(TextRows):
    """The rows below the first line, which names the columns. Cells are text; empty ones count as missing."""

    _names: list[str]

    def _find(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        end = file.tell()

        def lines() -> Iterator[str]:
            nonlocal end
            for line in io.TextIOWrapper(file, "latin-1", newline=""):
                end += len(line)
                yield line

        reader = self._reader(lines())
        try:
            self._names = [_utf8(name.encode("latin-1"), str(self.path)) for name in next(reader, [])]
            if twice := sorted({name for name in self._names if name and self._names.count(name) > 1}):
                raise RecordError(f"{self.path}:1: {', '.join(twice)}: a name of several columns; rename them", "CSV")
            line, start = reader.line_num + 1, end
            for cells in reader:
                if cells:
                    yield line, start, end
                line, start = reader.line_num + 1, end
        except csv.Error as error:
            raise RecordError(f"{self.path}: not readable as CSV: {error}", "CSV") from None

    def _reader(self, lines: Iterable[str]) -> Any:
        csv.field_size_limit(2**31 - 1)
        return csv.reader(lines, delimiter="\t" if ".tsv" in self.path.suffixes else ",")

    def _row(self, index: int, line: int, data: bytes) -> Row:
        where = f"{self.path}:{line}"
        value = _read(lambda text: next(self._reader(io.StringIO(text, newline=""))), data, where)
        if isinstance(value, list):
            value = self._named(value, where)
        return Row(where, self._id(index), value, untyped=True)

    def _named(self, cells: list[str], where: str) -> dict[str, str] | RecordError:
        if len(cells) != len(self._names):
            return RecordError(
                f"{where}: expected {len(self._names)} cells as in the first line, got {len(cells)}", "CSV"
            )
        return {name: cell for name, cell in zip(self._names, cells, strict=True) if cell != ""}


def line_and_column(file: BinaryIO, place: int) -> tuple[int, int]:
    """Both from 1, of a byte of a file; columns are bytes."""
    file.seek(0)
    line, last, done = 1, -1, 0
    while done < place:
        data = file.read(min(2**20, place - done))
        line += data.count(b"\n")
        if (at := data.rfind(b"\n")) >= 0:
            last = done + at
        done += len(data)
    return line, place - last


def _read(parse: Callable[[str], Any], data: bytes, where: str) -> Any:
    """What ``parse`` makes of the text, or the error of the row."""
    try:
        return parse(_utf8(data, where))
    except RecordError as error:
        return error
    except json.JSONDecodeError as error:
        return RecordError(f"{where}: not valid JSON: {message_of(error)} at column {error.pos + 1}", "JSON")
    except RecursionError:
        return RecordError(f"{where}: not readable JSON: nested too deeply", "JSON")


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start : error.start + 1]
        raise RecordError(f"{where}: expected UTF-8 text, found {found!r}", "JSON") from None
