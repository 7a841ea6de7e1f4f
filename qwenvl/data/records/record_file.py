"""Files of records. A small one is read and checked as a whole, and of a large one each record when it is asked for."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import forget_folders
from qwenvl.data.options import ReadingOptions
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.formats import open_rows
from qwenvl.data.records.given import GivenRows, RowStream
from qwenvl.data.records.parse import ReadOptions, RecordCheck, format_of, parse_row
from qwenvl.data.records.presets.table import OURS
from qwenvl.data.records.rows import Row
from qwenvl.data.records.tables import Table
from qwenvl.data.records.whole_file import WholeFile
from qwenvl.data.seeds import stable_random
from qwenvl.types import Record

STREAM_ABOVE = int(ReadingOptions.stream_above_mb * 2**20)  # bytes of a file, unpacked
STREAM_ABOVE_RECORDS = 20_000
SPOT_CHECKS = 200


class RecordFile(Sequence[Record]):
    """The records of one data set, by index and in order. It can be sent to other processes.

    Reading in order needs no memory and no copy of the file. Reading by index makes a copy of most kinds of file in the
    cache folder, once. That two rows have the same id shows only when all are read in order.

    Args:
        source: names the file. ``source.percent`` of its rows are chosen by ``seed``.
        check_record: asked about each record at last, on behalf of the rewards.
        stream_above: a file that is larger, in bytes unpacked, is prepared for reading by index at once. A smaller one
            can then only be iterated: its rows are not counted, which would mean to read it twice.
        stream_above_records: so is a file of more rows than these.
        rows: the rows, where they are in no file. Then ``source`` only names them.

    Attributes:
        source: what names the file.
        streamed: the file is above one of the two bounds.
        read_as: the preset by which the rows are read, where it was guessed and not named. None for our own forms.
        damage: why the file can't be read to its end, where that is so.

    Raises:
        RecordError: the file can't be read or has no rows, or a file to be streamed can't be read to its end. When
            indexed: the row is bad.
    """

    def __init__(
        self,
        source: DatasetSource,
        *,
        seed: int,
        options: ReadOptions | None = None,
        check_record: RecordCheck | None = None,
        stream_above: int | None = None,
        stream_above_records: int = STREAM_ABOVE_RECORDS,
        rows: Table | GivenRows | RowStream | None = None,
    ) -> None:
        forget_folders()
        self.source = source
        options = options or ReadOptions()
        named = source.format or options.format
        self._file = open_rows(source.annotation_path, named) if rows is None else rows
        self._options = replace(options, format=named or self._guessed(options))
        self.read_as = None if named or self._options.format == OURS else self._options.format
        self._media_root = Path(os.path.realpath(source.media_root))
        self._check_record = check_record
        self.streamed = stream_above is not None and self._file.exceeds(stream_above, stream_above_records)
        self._by_number = self._file.at_random() if self.streamed else None
        self.damage: RecordError | None = None
        self._numbers: Any = None  # rising numbers of rows; None for all rows, which nobody has counted
        if stream_above is not None and not self.streamed and source.percent == 100:
            return
        length, self.damage = (len(self._by_number), None) if self._by_number is not None else self._file.count()
        if not length:
            raise self.damage or RecordError(f"{source.annotation_path}: no records in the file")
        self._numbers = range(length)
        if source.percent < 100:
            count = max(1, round(length * source.percent / 100))
            chosen = stable_random(seed, "percent", source.name).sample(range(length), min(count, length))
            self._numbers = np.sort(np.array(chosen, np.int64))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Record:
        if self._by_number is None:
            self._by_number = self._file.at_random()
        return self._record(self._by_number[int(self._numbers[index])])

    def __iter__(self) -> Iterator[Record]:
        for record in self.iterate():
            if isinstance(record, RecordError):
                raise record
            yield record

    def subset(self, indices: Sequence[int]) -> RecordFile:
        """The records with these rising indices, without the damage of the file."""
        chosen = copy(self)
        chosen._numbers, chosen.damage = np.asarray(self._numbers)[np.asarray(indices, np.int64)], None
        return chosen

    def iterate(self) -> Iterator[Record | RecordError]:
        """The records in the order of the file. A bad row gives its error, and the damage of the file comes last."""
        place_of: dict[str, str] = {}
        for row in self._rows():
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

    def _guessed(self, options: ReadOptions) -> str:
        """The preset that the rows are in, by the kind of file or by the first row."""
        if isinstance(self._file, WholeFile) and self._file.read_as is not None:
            return self._file.read_as
        try:
            first = next(iter(self._file), None)
        except RecordError:  # a damaged file, as those who read it will find out
            return OURS
        return OURS if first is None else format_of(first, options)

    def _rows(self) -> Iterator[Row]:
        rows, passed = iter(self._file), 0
        if self._numbers is None:
            yield from rows
            return
        for number in map(int, self._numbers):
            yield next(islice(rows, number - passed, None))
            passed = number + 1

    def _record(self, row: Row) -> Record:
        record = parse_row(row, self._media_root, self._options)
        if self._check_record is not None and (problem := self._check_record(record)):
            raise RecordError(f"{record.where}: {problem}", "solution")
        return record


class JoinedRecords(Sequence[Record]):
    """Several sequences of records as one."""

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


def spot_checked(records: Sequence[Record]) -> Iterator[Record]:
    """Yield at most ``SPOT_CHECKS`` records of a file, spread evenly over it, the first and the last among them.

    Raises:
        RecordError: one of them is bad. Bad rows are seldom alone.
    """
    gaps = min(len(records), SPOT_CHECKS) - 1
    return (records[i * (len(records) - 1) // max(1, gaps)] for i in range(gaps + 1))


def open_records(
    source: DatasetSource,
    *,
    seed: int,
    options: ReadOptions | None = None,
    check_record: RecordCheck | None = None,
    stream_above: int = STREAM_ABOVE,
    stream_above_records: int = STREAM_ABOVE_RECORDS,
) -> Sequence[Record]:
    """The records of one data set in the order of the file: a list, or for a large file a ``RecordFile``.

    Args:
        source, seed, options, check_record: as for ``RecordFile``.
        stream_above, stream_above_records: bytes, unpacked, and records. Of a file above one of them ``SPOT_CHECKS``
            records are checked at once, spread evenly over it, and the others when they are asked for.

    Raises:
        RecordError: on the first bad row, beginning with its file and place.
    """
    bounds: dict[str, Any] = {"stream_above": stream_above, "stream_above_records": stream_above_records}
    file = RecordFile(source, seed=seed, options=options, check_record=check_record, **bounds)
    return records_of(file)


def records_of(file: RecordFile) -> Sequence[Record]:
    """The records of a file as a list, or the file itself where it is streamed.

    Raises:
        RecordError: as for ``open_records``.
    """
    if file.streamed:
        for _ in spot_checked(file):  # none is kept: rows may be large
            pass
        return file
    records = [record for record in file]  # list(file) would ask for the length
    if not records:
        raise RecordError(f"{file.source.annotation_path}: no records in the file")
    return records
