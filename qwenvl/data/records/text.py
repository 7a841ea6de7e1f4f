"""Rows of text files: JSON lines, JSON arrays and CSV, plain or gzipped.

Of small files all rows are in memory, as bytes. Of large ones each row is read from the disk when it is requested. Only
JSON lines can be read so: a large file of another kind gets a copy as JSON lines in the cache folder, in which line n
holds the row that is at place n of the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import sys
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.records.rows import Row, Rows, stem_of
from qwenvl.disk_store import cached_copy

BOM = b"\xef\xbb\xbf"
MAX_ROW_BYTES = 256 * 2**20
"""A longer row is refused. Clips and pictures within rows are far shorter."""
IN_MEMORY_BYTES = 32 * 2**20
"""Bytes of a file's rows, unpacked, above which they are read from the disk."""
# First bytes of files that are taken for files of records, and what to do about them.
_OTHERS = (
    (b"PK\x03\x04", "a workbook (.xlsx) or another zip archive: export the sheet as CSV, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "a workbook (.xls): export the sheet as CSV"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
    (b"ARROW1", "an Arrow file: give the folder that `save_to_disk` wrote, or convert it to parquet"),
    (b"BZh", "a bzip2 file: unpack it, or pack it with gzip"),
    (b"\xfd7zXZ", "an xz file: unpack it, or pack it with gzip"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it, or pack it with gzip"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
)
_quoted = json.encoder.encode_basestring  # of dumps(..., ensure_ascii=False), without its detours


def text_rows(path: Path) -> Rows:
    """The rows of a text file, from memory where they take at most ``IN_MEMORY_BYTES``, else from the disk.

    Raises:
        RecordError: a damaged gzip file, or a file that holds no records. Also a file that is read from the disk and
            damaged: of smaller ones the rows before the damage can be read.
    """
    return _TextFile(path).rows()


class _TextFile:
    """A text file of records.

    A row has a place, counted from 1, and a JSON text, which is UTF-8 if the row is sound. The place is the line in
    JSON lines, the first line of the row in CSV, and the number of the row in an array.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._name, self._stem = path, str(path), stem_of(path)
        with bytes_of(path) as file:
            self._zipped = isinstance(file, gzip.GzipFile)
            first = _first_byte(file, self._name)
        self._is_csv = (first not in b"[{" and ".csv" in path.suffixes) or (first != b"[" and ".tsv" in path.suffixes)
        self._is_array = first == b"["

    def rows(self) -> Rows:
        stored = os.stat(self._path).st_size
        if self._zipped or stored <= IN_MEMORY_BYTES:
            texts, size, damage = [], 0, None
            try:
                for found in self._texts():
                    texts.append(found)
                    size += len(found[1])
                    if size > IN_MEMORY_BYTES:
                        break
            except RecordError as error:
                damage = error
            if size <= IN_MEMORY_BYTES:
                row = partial(self._row_in_memory, texts)
                return Rows(len(texts), size if self._zipped else stored, row, damage=damage)
            del texts
        is_plain = not (self._is_array or self._is_csv or self._zipped)
        path = self._path if is_plain else cached_copy(self._path, self._write_lines, ".jsonl")
        places = array("q")
        with open(path, "rb") as file:
            for place, start, line in _lines(file, self._name):
                places.extend((place, start, len(line)))
            status = os.fstat(file.fileno())
        _opened(path, status.st_mtime_ns)  # now: somebody may replace the file later
        row = partial(self._row_on_disk, path, status.st_mtime_ns, np.asarray(places).reshape(-1, 3))
        return Rows(len(places) // 3, status.st_size if self._zipped else stored, row)

    def _row_in_memory(self, texts: list[tuple[int, bytes]], index: int) -> Row:
        return self._row(index, *texts[index])

    def _row_on_disk(self, path: Path, changed: int, places: np.ndarray, index: int) -> Row:
        place, start, size = places[index].tolist()
        return self._row(index, place, os.pread(_opened(path, changed).fileno(), size, start))

    def _row(self, index: int, place: int, text: bytes) -> Row:
        where = f"{self._name}[{index}]" if self._is_array else f"{self._name}:{place}"
        number = index if self._is_array or self._is_csv else place - 1
        return Row(where, f"{self._stem}-{number}", partial(_value, text, where, self._is_csv), self._is_csv)

    def _texts(self) -> Iterator[tuple[int, bytes]]:
        """Place and JSON text of each row."""
        with bytes_of(self._path) as file:
            if self._is_array:
                yield from _array_rows(file, self._name)
            elif self._is_csv:
                yield from _csv_rows(file, self._name, ".tsv" in self._path.suffixes)
            else:
                for place, _, line in _lines(file, self._name):
                    yield place, line

    def _write_lines(self, target: Path) -> None:
        with open(target, "wb") as lines:
            line = 1
            for place, text in self._texts():
                lines.write(b"\n" * (place - line) + text.rstrip(b"\n").replace(b"\n", b" ") + b"\n")
                line = place + 1


@lru_cache(maxsize=64)
def _opened(path: Path, changed: int) -> BinaryIO:
    """A file, opened once in each process and for each time of its change."""
    return open(path, "rb", buffering=0)


@contextmanager
def bytes_of(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, unzipped.

    Raises:
        RecordError: a damaged gzip file.
    """
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with cast(BinaryIO, gzip.open(path) if zipped else open(path, "rb")) as content:
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{path}: damaged gzip file: {error}", "JSON") from None


def _first_byte(file: BinaryIO, where: str) -> bytes:
    """The first byte of a file of records that is not white space. Empty for a file without any."""
    head = file.read(4096)
    if other := next((name for magic, name in _OTHERS if head.startswith(magic)), None):
        raise RecordError(f"{where}: no file of records: it is {other}", "file")
    if b"\0" in head:
        raise RecordError(f"{where}: no file of records: it holds binary data, such as {head[:8]!r}", "file")
    head = head.removeprefix(BOM)
    while head and not head.strip():
        head = file.read(2**20)
    return head.lstrip()[:1]


def _check_row_size(size: int, where: str) -> None:
    if size > MAX_ROW_BYTES:
        raise RecordError(f"{where}: the row is longer than {MAX_ROW_BYTES >> 20} MB; expected a record", "JSON")


def _lines(file: BinaryIO, where: str) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, first byte, and content of each line that is not blank."""
    start = len(BOM) if file.read(len(BOM)) == BOM else 0
    file.seek(start)
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b""), start=1):
        _check_row_size(len(line), f"{where}:{number}")
        if not line.isspace():
            yield number, start, line
        start += len(line)


def _csv_rows(file: BinaryIO, where: str, tabs: bool) -> Iterator[tuple[int, bytes]]:
    """First line, and an object of the cells that are not empty, or a string that says what is wrong with the row."""
    csv.field_size_limit(MAX_ROW_BYTES)
    first = file.readline(2**16)
    file.seek(0)
    delimiter = "\t" if tabs else ";" if b";" in first and b"," not in first else ","
    # Of a line that is too long its beginning, which is then reported.
    lines = iter(partial(_text_of(file).readline, MAX_ROW_BYTES + 1), "")
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        names = next(reader, [])
        _check_row_size(len("".join(names)), f"{where}:1")
        _utf8("\n".join(names).encode("utf-8", "surrogateescape"), where)
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise RecordError(f"{where}:1: {', '.join(twice)}: a name of several columns; rename them", "CSV")
        keys, line = [f"{_quoted(name)}:" for name in names], reader.line_num + 1
        for cells in reader:
            if len(cells) == len(names):
                text = f"{{{','.join([key + _quoted(cell) for key, cell in zip(keys, cells, strict=True) if cell])}}}"
                _check_row_size(len(text), f"{where}:{line}")
            else:
                text = _quoted(f"expected {len(names)} cells as in the first line, got {len(cells)}")
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


# JSON arrays, of which one element at a time is in memory. The standard library decodes them, as it has written most of
# them. ``ijson`` refuses NaN and integers above 64 bits, turns lone surrogates into question marks, takes memory with
# the square of the depth of nesting (25 GB for 100,000 brackets), and does not say where a mistake is.

_READ_CHARACTERS = 2**20
_MAX_CHARACTERS = 256 * 2**20  # of an element: a small gzip file may hold gigabytes
_CUT_NUMBER = 3  # a number that is cut off, as in "1e+", is read as 1, which ends at most this far before the cut
_CUT_WORD = 16  # a word or an escape that is cut off is reported at most this far before the cut
_SPACE = re.compile(r"[ \t\r\n]*")
_raw_decode = json.JSONDecoder().raw_decode


def _array_rows(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Number from 1, and JSON text, of each element of a JSON array."""
    number = 0
    try:
        for number, text in enumerate(ArrayText(_text_of(file)).elements(), start=1):
            yield number, text.encode("utf-8", "surrogateescape")
    except ArrayDamage as damage:
        message = f"{where}[{number}]: not valid JSON: {damage}; what follows in the file can't be read"
        raise RecordError(message, "JSON") from None


class ArrayDamage(ValueError):
    """The text is no JSON. The message ends with the line and column, both from 1."""


class ArrayText:
    """A window on the text of a JSON array. It moves on, and grows where an element does not fit.

    Args:
        file: opened with ``newline=""``.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text, self._at = "", 0
        self._line, self._column = 1, 1  # of the first character of the window

    def elements(self) -> Iterator[str]:
        """The JSON text of each element.

        Raises:
            ArrayDamage: after the elements that come before the damage.
        """
        self._mark("[")
        mark = self._mark("]") if self._next() == "]" else ","
        while mark == ",":
            yield self._element()
            mark = self._mark(",]")
        if self._next():
            raise self._damage("text after the end of the array", self._at)

    def _mark(self, expected: str) -> str:
        mark = self._next()
        if not mark:
            raise self._damage("the file ends within the array", self._at)
        if mark not in expected:
            raise self._damage(f"expected {' or '.join(expected)}, found {mark!r}", self._at)
        self._at += 1
        return mark

    def _next(self) -> str:
        """The next character that is not white space. Empty at the end of the file."""
        while True:
            self._at = cast(re.Match, _SPACE.match(self._text, self._at)).end()
            if self._at < len(self._text) or not self._grow():
                return self._text[self._at : self._at + 1]

    def _element(self) -> str:
        self._next()
        while True:
            try:
                _, end = _raw_decode(self._text, self._at)
            except RecursionError:
                raise self._damage("nested too deeply", self._at) from None
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _CUT_WORD
                if not (cut and self._grow()):
                    raise self._damage(error.msg.removesuffix(" at"), error.pos) from None
                continue
            except ValueError:
                raise self._damage("an integer of more than 4,300 digits", self._at) from None
            if end <= len(self._text) - _CUT_NUMBER or not self._grow():
                start, self._at = self._at, end
                return self._text[start:end]

    def _grow(self) -> bool:
        """Drop what was read, and read as much again as remains. False at the end of the file."""
        if len(self._text) - self._at > _MAX_CHARACTERS:
            raise self._damage(f"an element of more than {_MAX_CHARACTERS >> 20} million characters", self._at)
        more = self._file.read(max(_READ_CHARACTERS, len(self._text) - self._at))
        if more:
            self._line, self._column = self._place(self._at)
            self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def _place(self, at: int) -> tuple[int, int]:
        """Line and column of a character of the window."""
        line_start = self._text.rfind("\n", 0, at) + 1
        column = at - line_start + (1 if line_start else self._column)
        return self._line + self._text.count("\n", 0, at), column

    def _damage(self, message: str, at: int) -> ArrayDamage:
        return ArrayDamage("{} at line {} column {}".format(message, *self._place(at)))
