"""The bytes and lines of a text file of records: what is no such file is refused before memory is spent on it."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from qwenvl.data.errors import RecordError

BOM = b"\xef\xbb\xbf"
MAX_ROW_BYTES = 256 * 2**20
"""A longer row is refused. Clips and pictures within rows are far shorter."""
MAX_BLANK_BYTES = 2**20
"""A longer run of white space is refused: a small gzip file may hold gigabytes of it."""
_BLOCK = 2**20
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
    (b"SQLite format 3", "a database: export the table as CSV or JSON"),
    (b"\x89HDF", "an HDF5 file: export it as CSV, JSON or parquet"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
    (b"%PDF", "a PDF document"),
)


def check_readable(path: Path) -> None:
    """Check that a path names a file that can be read more than once.

    Raises:
        RecordError: it is a pipe, a socket or a device, on which reading may wait or go on for ever.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise RecordError(
            f"{path}: expected a regular file, this is a pipe, socket or device; write the records to a file first",
            "file",
        )


def first_byte(file: BinaryIO, where: str) -> bytes:
    """The first byte of a file of records that is not white space. Empty for a file without any.

    Raises:
        RecordError: the file is of a kind that holds no records in text, or begins with a megabyte of white space.
    """
    head = file.read(4096)
    if other := next((name for magic, name in _OTHERS if head.startswith(magic)), None):
        raise RecordError(f"{where}: no file of records: it is {other}", "file")
    if b"\0" in head:
        raise RecordError(f"{where}: no file of records: it holds binary data, such as {head[:8]!r}", "file")
    head = head.removeprefix(BOM)
    blank = 0
    while head and not head.strip():
        blank += len(head)
        _check_blank(blank, where)
        head = file.read(_BLOCK)
    return head.lstrip()[:1]


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


def lines_of(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Number from 1, and content, of each line that is not blank.

    Raises:
        RecordError: a line longer than ``MAX_ROW_BYTES``, or more white space in a row than ``MAX_BLANK_BYTES``.
    """
    start = len(BOM) if file.read(len(BOM)) == BOM else 0
    file.seek(start)
    blank = 0
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b""), start=1):
        if not line.isspace():
            check_row_size(len(line), f"{where}:{number}")
            blank = 0
            yield number, line
        else:
            blank += len(line)
            _check_blank(blank, f"{where}:{number}")


def line_places(path: Path) -> np.ndarray:
    """Number from 1, and first byte, of each line that is not blank: rows x 2, int64. The file is read in blocks."""
    places, number, start = array("q"), 1, 0
    with open(path, "rb") as file:
        start = len(BOM) if file.read(len(BOM)) == BOM else 0
        file.seek(start)
        block_start, rest = start, b""
        while block := file.read(max(_BLOCK, len(rest))):
            data = rest + block
            ends: np.ndarray = np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + len(rest)
            begin = 0
            for end in ends.tolist():
                if data[begin] > 32 or (end > begin and not data[begin:end].isspace()):
                    places.extend((number, block_start + begin))
                begin, number = end + 1, number + 1
            rest, block_start = data[begin:], block_start + begin
            check_row_size(len(rest), f"{path}:{number}")
        if rest and not rest.isspace():
            places.extend((number, block_start))
    return np.asarray(places).reshape(-1, 2)  # no copy


def check_row_size(size: int, where: str) -> None:
    """Check the length of a row in bytes.

    Raises:
        RecordError: it is longer than ``MAX_ROW_BYTES``.
    """
    if size > MAX_ROW_BYTES:
        raise RecordError(f"{where}: the row is longer than {MAX_ROW_BYTES >> 20} MB; expected a record", "JSON")


def _check_blank(size: int, where: str) -> None:
    if size > MAX_BLANK_BYTES:
        raise RecordError(
            f"{where}: more than {MAX_BLANK_BYTES >> 20} MB of white space; expected records: was the file written "
            "or copied wrongly?",
            "JSON",
        )
