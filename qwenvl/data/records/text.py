"""Reads the rows of text files: JSON lines, JSON arrays and CSV.

A row of JSON lines is read from the disk when it is requested. The rows of the other two are in memory as bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.records.option_columns import is_option_column
from qwenvl.data.records.parse import Row, Rows
from qwenvl.failure import beginning
from qwenvl.files import plain_file
from qwenvl.yaml_text import first_repeated

BOM = b"\xef\xbb\xbf"
MAX_BYTES = 2**30
"""Bytes of rows in memory. A larger file has to be JSON lines."""
_DELIMITER_LINE = re.compile(rb"(?:\xef\xbb\xbf)?\"?sep=([;,\t|])\"?\r?\n", re.IGNORECASE)
# First bytes of other files that may hold no zero byte: archives, and what Git leaves in place of a large file.
_OTHERS = (b"\x1f\x8b", b"BZh", b"version https://git-lfs")


def text_rows(path: Path) -> Rows:
    """The rows of a text file.

    A row has a place, counted from 1, and a JSON text, which is UTF-8 if the row is sound. The place is the line in
    JSON lines, the first line of the row in CSV, and the number of the row in an array.

    Raises:
        RecordError: a file that holds no records, or an array or CSV that is damaged.
    """
    name = str(path)
    suffixes = lower_suffixes(path)
    places = array("q")  # three numbers a row: its place, and where its text begins and how many bytes it has
    texts = bytearray()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        changed = os.fstat(file.fileno()).st_mtime_ns
        first = _first_byte(file, name)
        is_csv = (first not in b"[{" and ".csv" in suffixes) or (first != b"[" and ".tsv" in suffixes)
        file.seek(0)
        if first == b"[" or is_csv:
            rows = _csv_rows(file, name, ".tsv" in suffixes) if is_csv else _array_rows(file, name)
            for place, text in rows:
                places.extend((place, len(texts), len(text)))
                texts += text
                _check_size(len(texts), name)
        else:
            for place, start, line in _lines(file):
                places.extend((place, start, len(line)))
            _opened(path, changed)  # now: somebody may replace the file later
    kind = "lines"
    if first == b"[":
        kind = "array"
    elif is_csv:
        kind = "csv"
    rows_of_places = np.asarray(places).reshape(-1, 3)
    row = partial(_row, path, kind, bytes(texts), changed, rows_of_places)
    return Rows(length=len(rows_of_places), size=size, row=row)


def lower_suffixes(path: Path) -> list[str]:
    """The endings of a file's name, which some programs write in capitals: ``ROWS.CSV``."""
    return [suffix.lower() for suffix in path.suffixes]


def _row(path: Path, kind: str, texts: bytes, changed: int, places: np.ndarray, index: int) -> Row:
    """A row from ``texts``, or a line from the disk."""
    place, start, size = places[index].tolist()
    where = f"{path}[{index}]" if kind == "array" else f"{path}:{place}"
    number = place - 1 if kind == "lines" else index
    if texts:
        text = texts[start : start + size]
    else:
        text = os.pread(_opened(path, changed).fileno(), size, start)
    is_csv = kind == "csv"
    content = _value(text, where, is_csv)
    return Row(where=where, default_id=f"{path.stem}-{number}", content=content, untyped=is_csv)


def _check_size(size: int, where: str) -> None:
    """Raise RecordError where rows would take too much memory."""
    if size > MAX_BYTES:
        raise RecordError(
            f"{where}: more than {MAX_BYTES >> 30} GB; of files that are read as a whole expected less: write JSON "
            "lines, one object a line (of an array: jq -c '.[]' in.json > out.jsonl)",
            "JSON",
        )


@lru_cache(maxsize=64)
def _opened(path: Path, changed: int) -> BinaryIO:
    """A file, opened once in each process and for each time of its change."""
    return open(path, "rb", buffering=0)


def _first_byte(file: BinaryIO, where: str) -> bytes:
    """The first byte of a file of records that is not white space. Empty for a file of white space alone.

    Raises:
        RecordError: the file is binary.
    """
    head = file.read(4096)
    if b"\0" in head or head.startswith(_OTHERS):
        raise RecordError(
            f"{where}: no file of records: it begins with {head[:24]!r}; expected JSON, JSON lines or CSV in UTF-8, or "
            "parquet: unpack it, export the sheet as CSV, or fetch the file itself with `git lfs pull`",
            "file",
        )
    head = head.removeprefix(BOM)
    while head and not head.strip():
        head = file.read(2**20)
    return head.lstrip()[:1]


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """The number from 1, the first byte and the content of each line that is not blank."""
    start = len(BOM) if file.read(len(BOM)) == BOM else 0
    file.seek(start)
    for number, line in enumerate(file, start=1):
        if not line.isspace():
            yield number, start, line
        start += len(line)


def _csv_rows(file: BinaryIO, where: str, tabs: bool) -> Iterator[tuple[int, bytes]]:
    """The first line and the JSON text of each row of a CSV file.

    The text is an object of the cells that are not empty. Of a row with too many cells or too few it is a string, the
    problem, which is reported when the row is read.

    Raises:
        RecordError: a quote is not closed, or text follows a closing quote, or two columns have the same name.
    """
    csv.field_size_limit(MAX_BYTES)
    named = _named_delimiter(file)
    delimiter = named or ("\t" if tabs else _delimiter(file))
    text = _text_of(file)
    # Not strict, a quote that nothing closes would make one cell of all further rows.
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = 1
    try:
        if named:
            next(reader)
        names = next(reader, [])
        _utf8("\n".join(names).encode("utf-8", "surrogateescape"), where)
        twice = sorted({name for name in names if name and names.count(name) > 1})
        if twice:
            raise RecordError(f"{where}:1: {', '.join(twice)}: a name of several columns; rename them", "CSV")
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                row = json.dumps(_cells_by_name(names, cells), ensure_ascii=False)
                yield line, row.encode("utf-8", "surrogateescape")
            line = reader.line_num + 1
    except csv.Error as error:
        text.detach()  # else its end would close the file
        file.seek(0)
        problem = _misplaced_quote(_text_of(file), first_line=line, delimiter=delimiter, where=where)
        raise RecordError(problem or f"{where}:{line}: not readable as CSV: {error}", "CSV") from None


def _cells_by_name(names: Sequence[str], cells: Sequence[str]) -> dict[str, str] | str:
    """The cells of a row that are not empty, or why they cannot be told apart.

    Empty options are kept: the numbers of those behind them count them.
    """
    if len(cells) != len(names):
        return f"expected {len(names)} cells as in the first line, got {len(cells)}"
    named = list(zip(names, cells, strict=True))
    # Programs write the number of a row into a first column without a name.
    for name, cell in named[1:]:
        if cell.strip() and not name.strip():
            return f"expected a name of each column in the first line, got none above the cell {cell!r}"
    return {name: cell for name, cell in named if cell or is_option_column(name)}


def _misplaced_quote(text: TextIO, first_line: int, delimiter: str, where: str) -> str | None:
    """The message about the quote that makes a row of CSV unreadable. None: no quote does.

    Args:
        text: the file from its beginning.
        first_line: the first line of the row.
    """
    for _ in range(first_line - 1):
        text.readline()
    row = text.read(MAX_BYTES)
    quoted = r'"[^"]*(?:""[^"]*)*"(?!")'
    cell = re.compile(rf"(?:{quoted}|(?!\")[^{delimiter}\r\n]*)({delimiter}|\r\n|\r|\n|\Z)")
    start = 0
    while (found := cell.match(row, start)) is not None:
        if found.end() == len(row):
            return None
        start = found.end()
    place = f"{where}:{first_line + _line_ends(row, start)}"
    advice = 'close it at the end of its cell; a quote that is text is written twice, in a quoted cell: "5"" screw"'
    shown = beginning(row[start:].partition("\n")[0], 40)
    closed = re.compile(quoted).match(row, start)
    if closed is None:
        return f"{place}: the quote before {shown!r} opens a cell that nothing closes; {advice}"
    last = first_line + _line_ends(row, closed.end())
    after = row[closed.end() : closed.end() + 20].splitlines()[0]
    return f"{place}: the quote in {shown!r} opens a cell that ends on line {last} in front of {after!r}; {advice}"


def _line_ends(text: str, end: int) -> int:
    """The number of line ends before a place of a text."""
    return len(re.findall(r"\r\n|\r|\n", text[:end]))


def _named_delimiter(file: BinaryIO) -> str | None:
    """The sign that the first line of a CSV file names for Excel, as in ``sep=;``. None: it names none."""
    found = _DELIMITER_LINE.fullmatch(file.readline(len(BOM) + 16))
    file.seek(0)
    return None if found is None else found[1].decode()


def _delimiter(file: BinaryIO) -> str:
    """The sign between the cells of a CSV file: a semicolon where the first line has that and no comma."""
    first = file.readline(2**16)
    file.seek(0)
    return ";" if b";" in first and b"," not in first else ","


def _text_of(file: BinaryIO) -> io.TextIOWrapper:
    """The text of a file. Bytes that are not UTF-8 become surrogates, which turn into the same bytes again."""
    return io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")


def _value(text: bytes, where: str, is_csv: bool) -> Any:
    """The value of a JSON text.

    Raises:
        RecordError: the text is no JSON, or not UTF-8. In CSV also: the row has another number of cells.
    """
    decoded = _utf8(text, where)
    try:
        value = decode_json(decoded)
        if "\\ud" in decoded or "\\uD" in decoded:  # perhaps half of a pair, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        column = f" at column {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise RecordError(f"{where}: not valid JSON: {_reason(error)}{column}", "JSON") from None
    if is_csv and isinstance(value, str):
        raise RecordError(f"{where}: {value}", "CSV")
    return value


def _reason(error: Exception) -> str:
    """The reason why a JSON text can't be read."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg.removesuffix(" at")
    if isinstance(error, UnicodeEncodeError):
        return f"found \\u{ord(error.object[error.start]):04x}, half of a pair without the other"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "digits" in str(error):  # Python's bound on integers
        return "an integer of more than 4,300 digits"
    return str(error)  # a key that stands twice


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, with its keys interned: all rows have the same keys, and held once they take a fifth less.

    Raises:
        ValueError: a key comes twice, of which only the last would count.
    """
    value = {sys.intern(key): one for key, one in pairs}
    if len(value) < len(pairs):
        twice = str(first_repeated(key for key, _ in pairs))
        raise ValueError(f"the key {json.dumps(twice[:80])} stands twice in one object; keep one of the two")
    return value


def _finite(text: str) -> float:
    """A number of JSON with a point or an exponent. ValueError: it is too large for a float."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _constant(name: str) -> float:
    """What Python's JSON has besides that of others: NaN, as tables write missing values. ValueError: an infinity."""
    if name != "NaN":
        raise ValueError(f"{name} is no number that can be computed with")
    return math.nan


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_float=_finite, parse_constant=_constant)
decode_json = _DECODER.decode
"""The value of a JSON text. ValueError: it is none, an object has a key twice, or a number is infinite."""


def whole_text(path: Path) -> str:
    """The text of a small file that a user names, such as a list of steps.

    Raises:
        RecordError: it is no UTF-8.
        OSError: it can't be read.
    """
    return _utf8(plain_file(path).read_bytes(), str(path)).removeprefix("\ufeff")


def whole_lines(path: Path) -> list[str]:
    """The lines of such a file. Only ends of lines that editors write count, and no U+0085 or U+2028 within a name.

    Raises:
        RecordError, OSError: see ``whole_text``.
    """
    return re.split(r"\r\n|\n|\r", whole_text(path))


def _utf8(data: bytes, where: str) -> str:
    """The text of bytes. RecordError: they are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start : error.start + 1]
        raise RecordError(f"{where}: expected UTF-8 text, found {found!r}", "JSON") from None


_SPACE = re.compile(r"[ \t\r\n]*")
_raw_decode = json.JSONDecoder().raw_decode


def _array_rows(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """The number from 1 and the JSON text of each element of a JSON array, whose text is in memory as a whole."""
    text = _text_of(file).read(MAX_BYTES + 1)
    _check_size(len(text), where)
    number = 0
    end = 0
    try:
        for number, (start, end) in enumerate(_elements(text), start=1):
            yield number, text[start:end].encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", end)
        place = f"line {text.count(chr(10), 0, at) + 1} column {at - text.rfind(chr(10), 0, at)}"
        raise RecordError(f"{where}[{number}]: not valid JSON: {_reason(error)} at {place}", "JSON") from None


def _elements(text: str) -> Iterator[tuple[int, int]]:
    """The first character and the end of each element of an array.

    Raises:
        ValueError, RecursionError: as ``json`` raises them, after the elements that come before the damage.
    """
    at = _behind_space(text, text.index("[") + 1)
    mark = text[at : at + 1]
    while mark != "]":
        start = at
        _, end = _raw_decode(text, start)
        yield start, end
        at = _behind_space(text, end)
        mark = text[at : at + 1]
        if mark not in (",", "]"):
            found = f"expected , or ], found {mark!r}" if mark else "the file ends within the array"
            raise json.JSONDecodeError(found, text, at)
        if mark == ",":
            at = _behind_space(text, at + 1)
    at = _behind_space(text, at + 1)
    if at < len(text):
        raise json.JSONDecodeError("text after the end of the array", text, at)


def _behind_space(text: str, at: int) -> int:
    """The place of the first character from a place on that is no white space."""
    found = _SPACE.match(text, at)
    assert found is not None  # the pattern matches no characters too
    return found.end()
