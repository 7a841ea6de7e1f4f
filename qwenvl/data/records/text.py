"""Rows of text files: JSON lines, JSON arrays and CSV, plain or gzipped.

Each kind has a reader, which reads in order. Only JSON lines can be read at random. Any other file gets a copy as JSON
lines in the cache folder for that, in which line n holds the row that stands at place n of the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.records.copies import cached_copy
from qwenvl.data.records.json_array import ArrayDamage, ArrayText
from qwenvl.data.records.rows import Row, stem_of

BOM = b"\xef\xbb\xbf"
_quoted = json.encoder.encode_basestring  # of dumps(..., ensure_ascii=False), without its detours


class TextFile:
    """The rows of a text file.

    A row has a place, counted from 1, and a JSON text, which is UTF-8 if the row is sound. The place is the line in
    JSON lines, the first line of the row in CSV, and the number of the row in an array.

    Raises:
        RecordError: a damaged gzip file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._name, self._stem = path, str(path), stem_of(path)
        with _bytes_of(path) as file:
            self._zipped = isinstance(file, gzip.GzipFile)
            first = file.read(4096).removeprefix(BOM).lstrip()[:1]
        self._is_csv = (first not in b"[{" and ".csv" in path.suffixes) or (first != b"[" and ".tsv" in path.suffixes)
        self._is_array = first == b"["

    @property
    def size(self) -> int:
        """Bytes of the file, unzipped."""
        return os.stat(self._json_lines() if self._zipped else self.path).st_size

    def count(self) -> tuple[int, RecordError | None]:
        """The number of rows, and why the file can't be read to its end if that is so."""
        count = 0
        try:
            for _ in self._texts():
                count += 1
        except RecordError as damage:
            return count, damage
        return count, None

    def __iter__(self) -> Iterator[Row]:
        return (self._row(index, *found) for index, found in enumerate(self._texts()))

    def at_random(self) -> Sequence[Row]:
        """The rows by number.

        Raises:
            RecordError: the file can't be read to its end.
        """
        return _JSONLines(self._json_lines(), self._row)

    def _texts(self) -> Iterator[tuple[int, bytes]]:
        """Place and JSON text of each row."""
        with _bytes_of(self.path) as file:
            if self._is_array:
                yield from _array_rows(file, self._name)
            elif self._is_csv:
                yield from _csv_rows(file, self._name, "\t" if ".tsv" in self.path.suffixes else ",")
            else:
                yield from ((number, line) for number, _, line in _lines(file))

    def _row(self, index: int, place: int, text: bytes) -> Row:
        where = f"{self._name}[{index}]" if self._is_array else f"{self._name}:{place}"
        number = index if self._is_array or self._is_csv else place - 1
        return Row(where, f"{self._stem}-{number}", partial(_value, text, where, self._is_csv), self._is_csv)

    def _json_lines(self) -> Path:
        is_one = not (self._is_array or self._is_csv or self._zipped)
        return self.path if is_one else cached_copy(self.path, self._write_lines, ".jsonl")

    def _write_lines(self, target: Path) -> None:
        with open(target, "wb") as lines:
            if not (self._is_array or self._is_csv):
                with _bytes_of(self.path) as file:
                    shutil.copyfileobj(file, lines, 2**20)
                return
            line = 1
            for place, text in self._texts():
                lines.write(b"\n" * (place - line) + text.replace(b"\n", b" ") + b"\n")
                line = place + 1


class _JSONLines(Sequence[Row]):
    """The lines of a file that are not blank by number, each read when it is asked for."""

    def __init__(self, path: Path, row: Callable[[int, int, bytes], Row]) -> None:
        self._path, self._row = path, row
        places = array("q")
        with open(path, "rb") as file:
            for number, start, _ in _lines(file):
                places.extend((number, start))
        self._places = np.asarray(places).reshape(-1, 2)  # no copy

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        index = range(len(self))[index]
        place, start = self._places[index].tolist()
        with open(self._path, "rb") as file:
            file.seek(start)
            return self._row(index, place, file.readline())


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, first byte, and content of each line that is not blank."""
    start = len(BOM) if file.read(len(BOM)) == BOM else 0
    file.seek(start)
    for number, line in enumerate(file, start=1):
        if not line.isspace():
            yield number, start, line
        start += len(line)


def _array_rows(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Number from 1, and JSON text, of each element of a JSON array."""
    number = 0
    try:
        for number, text in enumerate(ArrayText(_text_of(file)).elements(), start=1):
            yield number, text.encode("utf-8", "surrogateescape")
    except ArrayDamage as damage:
        message = f"{where}[{number}]: not valid JSON: {damage}; what follows in the file can't be read"
        raise RecordError(message, "JSON") from None


def _csv_rows(file: BinaryIO, where: str, delimiter: str) -> Iterator[tuple[int, bytes]]:
    """First line, and an object of the cells that are not empty, or a string that says what is wrong with the row."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(_text_of(file), delimiter=delimiter)
    try:
        names = next(reader, [])
        _utf8("\n".join(names).encode("utf-8", "surrogateescape"), where)
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise RecordError(f"{where}:1: {', '.join(twice)}: a name of several columns; rename them", "CSV")
        keys, line = [f"{_quoted(name)}:" for name in names], reader.line_num + 1
        for cells in reader:
            text = _quoted(f"expected {len(names)} cells as in the first line, got {len(cells)}")
            if len(cells) == len(names):
                text = f"{{{','.join([key + _quoted(cell) for key, cell in zip(keys, cells, strict=True) if cell])}}}"
            if cells:
                yield line, text.encode("utf-8", "surrogateescape")
            line = reader.line_num + 1
    except csv.Error as error:
        raise RecordError(f"{where}: not readable as CSV: {error}", "CSV") from None


@contextmanager
def _bytes_of(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, unzipped."""
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with cast(BinaryIO, gzip.open(path) if zipped else open(path, "rb")) as content:
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{path}: damaged gzip file: {error}", "JSON") from None


def _text_of(file: BinaryIO) -> TextIO:
    """The text of a file. Bytes that are not UTF-8 become surrogates, which turn into the same bytes again."""
    return io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")


def _value(text: bytes, where: str, is_csv: bool) -> Any:
    """The value of a JSON text.

    Raises:
        RecordError: the text is no JSON, or not UTF-8. In CSV also: the row has another number of cells.
    """
    decoded = _utf8(text, where)
    try:
        value = json.loads(decoded)
    except json.JSONDecodeError as error:
        message = f"{where}: not valid JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}"
        raise RecordError(message, "JSON") from None
    except RecursionError:
        raise RecordError(f"{where}: not readable JSON: nested too deeply", "JSON") from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise RecordError(f"{where}: not readable JSON: {error}", "JSON") from None
    if is_csv and isinstance(value, str):
        raise RecordError(f"{where}: {value}", "CSV")
    # All rows have the same keys: held once, they take a fifth less memory.
    return {sys.intern(key): one for key, one in value.items()} if isinstance(value, dict) else value


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start : error.start + 1]
        raise RecordError(f"{where}: expected UTF-8 text, found {found!r}", "JSON") from None
