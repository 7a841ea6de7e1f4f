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
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from qwenvl.data.errors import RecordError
from qwenvl.data.records.copies import cached_copy
from qwenvl.data.records.json_array import ArrayDamage, ArrayText
from qwenvl.data.records.rows import Row, stem_of
from qwenvl.data.records.text_source import MAX_ROW_BYTES, bytes_of, check_row_size, first_byte, line_places, lines_of

_quoted = json.encoder.encode_basestring  # of dumps(..., ensure_ascii=False), without its detours
LEAST_ROW_BYTES = 4  # of a row of CSV, as in a,b and a line end


class TextFile:
    """The rows of a text file.

    A row has a place, counted from 1, and a JSON text, which is UTF-8 if the row is sound. The place is the line in
    JSON lines, the first line of the row in CSV, and the number of the row in an array.

    Raises:
        RecordError: a damaged gzip file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._name, self._stem = path, str(path), stem_of(path)
        with bytes_of(path) as file:
            self._zipped = isinstance(file, gzip.GzipFile)
            first = first_byte(file, self._name)
        self._is_csv = (first not in b"[{" and ".csv" in path.suffixes) or (first != b"[" and ".tsv" in path.suffixes)
        self._is_array = first == b"["

    def exceeds(self, size: int, rows: int) -> bool:
        """Whether the file is larger than ``size`` bytes, unpacked, or holds more than ``rows`` rows.

        It is read no further than needed to tell. Where it is damaged before that it counts as small.
        """
        stored = os.stat(self.path).st_size
        if not self._zipped and (stored > size or stored <= rows * LEAST_ROW_BYTES):
            return stored > size
        total = 0
        try:
            for count, (_, text) in enumerate(self._texts(), start=1):
                total += len(text)
                if count > rows or total > size:
                    return True
        except RecordError:
            pass
        return False

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
        with bytes_of(self.path) as file:
            if self._is_array:
                yield from _array_rows(file, self._name)
            elif self._is_csv:
                yield from _csv_rows(file, self._name, _delimiter(file, self.path))
            else:
                yield from lines_of(file, self._name)

    def _row(self, index: int, place: int, text: bytes) -> Row:
        where = f"{self._name}[{index}]" if self._is_array else f"{self._name}:{place}"
        number = index if self._is_array or self._is_csv else place - 1
        return Row(where, f"{self._stem}-{number}", partial(_value, text, where, self._is_csv), self._is_csv)

    def _json_lines(self) -> Path:
        is_one = not (self._is_array or self._is_csv or self._zipped)
        return self.path if is_one else cached_copy(self.path, self._write_lines, ".jsonl")

    def _write_lines(self, target: Path) -> None:
        with open(target, "wb") as lines:
            line = 1
            for place, text in self._texts():
                lines.write(b"\n" * (place - line) + text.rstrip(b"\n").replace(b"\n", b" ") + b"\n")
                line = place + 1


class _JSONLines(Sequence[Row]):
    """The lines of a file that are not blank by number, each read when it is asked for."""

    def __init__(self, path: Path, row: Callable[[int, int, bytes], Row]) -> None:
        self._path, self._row = path, row
        self._places = line_places(path)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        index = range(len(self))[index]
        place, start = self._places[index].tolist()
        with open(self._path, "rb") as file:
            file.seek(start)
            return self._row(index, place, file.readline())


def _array_rows(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Number from 1, and JSON text, of each element of a JSON array."""
    number = 0
    try:
        for number, text in enumerate(ArrayText(_text_of(file)).elements(), start=1):
            yield number, text.encode("utf-8", "surrogateescape")
    except ArrayDamage as damage:
        message = f"{where}[{number}]: not valid JSON: {damage}; what follows in the file can't be read"
        raise RecordError(message, "JSON") from None


def _delimiter(file: BinaryIO, path: Path) -> str:
    """What parts the cells: a tab in TSV, and in CSV a comma, or a semicolon where the first line has no comma."""
    if ".tsv" in path.suffixes:
        return "\t"
    first = file.readline(2**16)
    file.seek(0)
    return ";" if b";" in first and b"," not in first else ","


def _csv_rows(file: BinaryIO, where: str, delimiter: str) -> Iterator[tuple[int, bytes]]:
    """First line, and an object of the cells that are not empty, or a string that says what is wrong with the row."""
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = iter(partial(_text_of(file).readline, MAX_ROW_BYTES + 1), "")  # of a longer line the beginning, told below
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        names = next(reader, [])
        check_row_size(len("".join(names)), f"{where}:1")
        _utf8("\n".join(names).encode("utf-8", "surrogateescape"), where)
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise RecordError(f"{where}:1: {', '.join(twice)}: a name of several columns; rename them", "CSV")
        keys, line = [f"{_quoted(name)}:" for name in names], reader.line_num + 1
        full = "{" + ",".join(key.replace("%", "%%") + "%s" for key in keys) + "}"
        for cells in reader:
            if len(cells) != len(names):
                text = _quoted(f"expected {len(names)} cells as in the first line, got {len(cells)}")
            elif all(cells):  # in one go: it halves the time that a large file takes
                text = full % tuple(map(_quoted, cells))
            else:
                text = f"{{{','.join([key + _quoted(cell) for key, cell in zip(keys, cells, strict=True) if cell])}}}"
            if len(text) > MAX_ROW_BYTES:
                check_row_size(len(text), f"{where}:{line}")
            if cells:
                yield line, text.encode("utf-8", "surrogateescape")
            line = reader.line_num + 1
    except csv.Error as error:
        raise RecordError(f"{where}: not readable as CSV: {error}", "CSV") from None


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
        value = _decode(decoded)
        if "\\ud" in decoded or "\\uD" in decoded:  # perhaps half of a pair, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = f"{where}: not valid JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}"
        raise RecordError(message, "JSON") from None
    except RecursionError:
        raise RecordError(f"{where}: not readable JSON: nested too deeply", "JSON") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise RecordError(f"{where}: expected text, found {half}, half of a pair without the other", "JSON") from None
    except ValueError as error:  # a key twice, or a number that Python refuses to read
        reason = "an integer of more than 4,300 digits" if "digits" in str(error) else error
        raise RecordError(f"{where}: not readable JSON: {reason}", "JSON") from None
    if is_csv and isinstance(value, str):
        raise RecordError(f"{where}: {value}", "CSV")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. All rows have the same keys: held once, they take a fifth less memory.

    Raises:
        ValueError: a key comes twice, of which only the last would count.
    """
    value = {sys.intern(key): one for key, one in pairs}
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {json.dumps(twice[:80])} stands twice in one object; keep one of the two")
    return value


_decode = json.JSONDecoder(object_pairs_hook=_without_repeats).decode


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start : error.start + 1]
        raise RecordError(f"{where}: expected UTF-8 text, found {found!r}", "JSON") from None
