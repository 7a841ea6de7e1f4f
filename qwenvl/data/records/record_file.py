"""Files of records: read and checked as a whole, or row by row where they are larger than memory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.options import ReadingOptions
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, RecordCheck, parse_row
from qwenvl.data.records.rows import Row, open_rows
from qwenvl.data.seeds import stable_random
from qwenvl.types import Record

STREAM_ABOVE = int(ReadingOptions.stream_above_mb * 2**20)  # bytes of a file, unpacked


class RecordFile(Sequence[Record]):
    """The records of one data set by index, in any order and from any process; each is read when it is asked for.

    What only a reading of all rows can tell (the same id twice) shows when all are read in order, not by index.

    Args:
        source: names the file; ``source.percent`` of its rows are chosen by ``seed``.
        check_record: a last word on each record; rewards have one.

    Attributes:
        size: bytes of the whole file, unpacked.
        damage: why the file can't be read to its end, where that is so.

    Raises:
        RecordError: the file can't be read or has no rows; when indexed, the row is bad.
    """

    def __init__(
        self,
        source: DatasetSource,
        *,
        seed: int,
        options: ReadOptions | None = None,
        check_record: RecordCheck | None = None,
    ) -> None:
        self._rows = open_rows(source.annotation_path)
        self._media_root = Path(os.path.realpath(source.media_root))
        self._options = options or ReadOptions()
        self._check_record = check_record
        self.size, self.damage = self._rows.size, self._rows.damage
        length = len(self._rows)
        if not length:
            raise self.damage or RecordError(f"{source.annotation_path}: no records in the file")
        self._numbers: Sequence[int] = range(length)
        if source.percent < 100:
            count = max(1, round(length * source.percent / 100))
            chosen = stable_random(seed, "percent", source.name).sample(range(length), min(count, length))
            self._numbers = np.sort(np.array(chosen, np.int64))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Record:
        return self._record(self._rows[int(self._numbers[index])])

    def __iter__(self) -> Iterator[Record]:
        for record in self.iterate():
            if isinstance(record, RecordError):
                raise record
            yield record

    def subset(self, indices: Sequence[int]) -> RecordFile:
        """The records with these rising indices, and no damage."""
        chosen = copy(self)
        chosen._numbers, chosen.damage = np.asarray(self._numbers)[np.asarray(indices, np.int64)], None
        return chosen

    def iterate(self) -> Iterator[Record | RecordError]:
        """The records in the order of the file; a bad row gives its error, and the next one follows."""
        place_of: dict[str, str] = {}
        for row in self._rows.select(map(int, self._numbers)):
            try:
                record = self._record(row)
                if record.id in place_of:
                    raise RecordError(
                        f"{record.where}.id: {record.id!r} is already the id of {place_of[record.id]}; give each "
                        "record its own, or leave `id` out of all to have them numbered",
                        "duplicate id",
                    )
                place_of[record.id] = record.where
            except RecordError as error:
                yield error
            else:
                yield record
        if self.damage is not None:
            yield self.damage

    def _record(self, row: Row) -> Record:
        record = parse_row(row, self._media_root, self._options)
        if self._check_record is not None and (problem := self._check_record(record)):
            raise RecordError(f"{record.where}: {problem}", "solution")
        return record


class JoinedRecords(Sequence[Record]):
    """Several sequences of records, one after the other."""

    def __init__(self, parts: Sequence[Sequence[Record]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, index: int) -> Record:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"expected a record from 0 to {len(self) - 1}, got {index}")
        part = bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def open_records(
    source: DatasetSource,
    *,
    seed: int,
    options: ReadOptions | None = None,
    check_record: RecordCheck | None = None,
    stream_above: int = STREAM_ABOVE,
) -> Sequence[Record]:
    """The records of one data set in the order of the file: a list, or of a large file one that reads when it is asked.

    Args:
        source, seed, options, check_record: as for ``RecordFile``.
        stream_above: bytes, unpacked; of a larger file only the first record is checked at once.

    Raises:
        RecordError: on the first bad row, beginning with its file and place.
    """
    file = RecordFile(source, seed=seed, options=options, check_record=check_record)
    if file.size <= stream_above:
        return list(file)
    if file.damage is not None:
        raise file.damage
    file[0]  # what is wrong with every row shows here
    return file
