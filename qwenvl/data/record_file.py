"""Records of a file larger than memory: only the places of its lines are kept, and a row is read when asked for."""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from qwenvl.data.catalog import DatasetSource
from qwenvl.data.errors import RecordError
from qwenvl.data.records import ReadOptions, RecordCheck, parse_row
from qwenvl.data.rows import Row
from qwenvl.data.seeds import stable_random
from qwenvl.types import Record

STREAM_BYTES = 512 * 2**20  # above this a file of JSON lines is not loaded as a whole


class RecordFile(Sequence[Record]):
    """The records of a JSON lines file, by index, in any order and from any process.

    The file is scanned once for line ends, at the speed of the disk. A row is validated each time it is read; what
    only a reading of all rows can tell (the same id twice) is left to ``qwenvl data check``.

    Args:
        source: names the file; its share of the rows is chosen by ``seed`` as ``read_records`` chooses it.

    Raises:
        RecordError: the file has no rows; when indexed, the row is bad.
    """

    def __init__(
        self,
        source: DatasetSource,
        *,
        seed: int,
        options: ReadOptions | None = None,
        check_record: RecordCheck | None = None,
    ) -> None:
        self.path = Path(source.annotation_path)
        self._media_root = Path(os.path.realpath(source.media_root))
        self._options = options
        self._check_record = check_record
        if not _is_lines(self.path):
            raise RecordError(
                f"{self.path}: only JSON lines, not zipped, can be read row by row; convert it: qwenvl data convert"
            )
        lines = _line_spans(self.path)
        if not len(lines):
            raise RecordError(f"{self.path}: no records in the file")
        if source.percent < 100:
            count = max(1, round(len(lines) * source.percent / 100))
            lines = lines[sorted(stable_random(seed, "percent", source.name).sample(range(len(lines)), count))]
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Record:
        number, start, end = (int(value) for value in self._lines[index])
        where = f"{self.path}:{number}"
        with open(self.path, "rb") as file:
            file.seek(start)
            line = file.read(end - start)
        try:
            value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise RecordError(f"{where}: not valid JSON: {error}", "JSON") from None
        row = Row(where, f"{self.path.name.rpartition('.')[0]}-{number - 1}", value)
        record = parse_row(row, self._media_root, self._options)
        if self._check_record is not None and (problem := self._check_record(record)):
            raise RecordError(f"{where}: {problem}", "solution")
        return record


class JoinedRecords(Sequence[Record]):
    """Several sequences of records, one after the other."""

    def __init__(self, parts: Sequence[Sequence[Record]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"expected a record from 0 to {len(self) - 1}, got {index}")
        part = bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def is_large(path: Path) -> bool:
    """Whether a file is JSON lines, not zipped, and above ``STREAM_BYTES``."""
    return path.is_file() and path.stat().st_size > STREAM_BYTES and _is_lines(path)


def _is_lines(path: Path) -> bool:
    """A file that begins with an object, or with nothing."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")


def _line_spans(path: Path) -> np.ndarray:
    """Rows of (line number from 1, start, end) in bytes of the lines that are not blank."""
    spans: list[tuple[int, int, int]] = []
    if path.stat().st_size == 0:
        return np.empty((0, 3), np.int64)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start, number = 0, 0
        while start < len(data):
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            number += 1
            # A line of a few bytes may be blank; a longer one holds something, were it only an error to report.
            if end - start > 64 or data[start:end].strip():
                spans.append((number, start, end))
            start = end + 1
    return np.array(spans, np.int64).reshape(-1, 3)
