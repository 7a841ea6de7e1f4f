"""Data sets of records: a small one is read and checked as a whole, of a large one each record when it is requested."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qwenvl.console import say
from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, RecordCheck, Rows, first_number_of, format_of, read_row
from qwenvl.data.records.presets import OURS
from qwenvl.data.records.sources import open_rows
from qwenvl.data.seeds import stable_random
from qwenvl.failure import counted
from qwenvl.run_log.log import hash_of
from qwenvl.types import Message, Record

# Records of a file are loaded up to both bounds: each takes 3 kB of memory, in each process.
LOADED_BYTES = 512 * 2**20  # unpacked
LOADED_RECORDS = 20_000
SPOT_CHECKS = 200  # records of a large file that are read and checked at the start
FINGERPRINTED = 1_000  # records that the hash in a checkpoint covers


class RecordFile(Sequence[Record]):
    """The records of one data set by index, each read when it is requested. It can be sent to other processes.

    Duplicate ids are found only by reading all records in order.

    Args:
        source: the data set. ``source.percent`` of its rows are selected by ``seed``.
        check_record: called last on each record, on behalf of the rewards.
        skip: a bad row gives a record with its ``problem``, in place of an error.
        rows: the rows, where they are in no file. Then ``source`` only names them.

    Attributes:
        source: the data set.
        read_as: the preset by which the rows are read, where it was guessed and not named. None for our own forms.
        first_number: the number of the first option in the answers, where the rows tell.

    Raises:
        RecordError: the file can't be read or has no rows. When indexed: the row is bad, unless ``skip``.
    """

    def __init__(
        self,
        source: DatasetSource,
        *,
        seed: int,
        options: ReadOptions | None = None,
        check_record: RecordCheck | None = None,
        rows: Rows | None = None,
        skip: bool = False,
    ) -> None:
        self.source = source
        options = options or ReadOptions()
        named = source.format or options.format
        self._rows = open_rows(source.annotation_path) if rows is None else rows
        length = self._rows.length
        if not length:
            raise RecordError(f"{source.annotation_path}: no records in the file")
        guessed = named or format_of(self._rows, options)
        looked_at = range(length) if self._is_loaded else spread(length, SPOT_CHECKS)
        self.first_number = first_number_of(self._rows, looked_at, replace(options, format=guessed))
        self._options = replace(options, format=guessed, first_number=self.first_number)
        self._skip = skip
        self.read_as = None if named or guessed == OURS else guessed
        self._media_root = Path(os.path.realpath(source.media_root))
        self._check_record = check_record
        self._numbers: Any = range(length)  # rising numbers of the selected rows
        if source.percent < 100:
            count = max(1, round(length * source.percent / 100))
            draw = stable_random(seed, "percent", source.name)
            self._numbers = np.sort(np.array(draw.sample(range(length), min(count, length)), np.int64))

    @property
    def _is_loaded(self) -> bool:
        """Whether the file is small enough to be kept in memory."""
        return self._rows.size <= LOADED_BYTES and self._rows.length <= LOADED_RECORDS

    def load(self) -> Sequence[Record]:
        """All records in a list, or of a large file this object, after ``SPOT_CHECKS`` of its records were checked.

        Raises:
            RecordError: the first bad row that was read. With ``skip``: all rows that were read are bad.
        """
        if self._is_loaded:
            records = [record for record in self]
            _check_one_is_good(record.problem for record in records)
            return records
        _check_one_is_good(record.problem for record in spot_checked(self))  # none stays in memory: rows may be large
        return self

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Record:  # type: ignore[override]  # no slices
        number = int(self._numbers[index])
        try:
            return self._read(number)
        except RecordError as error:
            if not self._skip:
                raise
            return self._unreadable(number, error)

    def _read(self, number: int) -> Record:
        """The record of a row of the file. RecordError: the row is bad, or the rewards can't score it."""
        record = read_row(self._rows.row(number), self._media_root, self._options)
        problem = None if self._check_record is None else self._check_record(record)
        if problem:
            raise RecordError(f"{record.where}: {problem}", "solution")
        return record

    def _unreadable(self, number: int, error: RecordError) -> Record:
        """A record with a ``problem`` in the place of a bad row."""
        try:
            where = self._rows.row(number).where
        except RecordError:  # such as a line that is no JSON
            where = f"{self.source.annotation_path}: row {number + 1}"
        return Record(
            id=f"row-{number}",
            messages=(Message("user", "A row that can't be read."),),
            solution="",
            videos=(),
            images=(),
            clip_meta=(),
            fields={},
            where=where,
            problem=str(error),
        )

    def __iter__(self) -> Iterator[Record]:
        for index, record in enumerate(self.iterate()):
            if isinstance(record, RecordError):
                if not self._skip:
                    raise record
                yield self._unreadable(int(self._numbers[index]), record)
            else:
                yield record

    def subset(self, indices: Sequence[int]) -> RecordFile:
        """The records with these rising indices."""
        chosen = copy(self)
        chosen._numbers = np.asarray(self._numbers)[np.asarray(indices, np.int64)]
        return chosen

    def iterate(self) -> Iterator[Record | RecordError]:
        """The records in the order of the file. A bad row gives its error."""
        place_of: dict[str, str] = {}
        for index in range(len(self)):
            try:
                record = self[index]
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


def without_bad_rows(records: Iterable[Record]) -> Iterator[Record]:
    """The records of rows that can be read. The others only stand in the place of a bad row."""
    return (record for record in records if not record.problem)


COMPARED = 10_000
"""Most records of a file outside of memory that ``all_or_spot_checked`` reads as a whole."""


def spot_checked(records: Sequence[Record]) -> Iterator[Record]:
    """Yield at most ``SPOT_CHECKS`` records of a file, spread evenly over it, the first and the last among them.

    Raises:
        RecordError: one of them is bad. Bad rows are seldom alone.
    """
    return (records[i] for i in spread(len(records), SPOT_CHECKS))


def fingerprint_of(records: Sequence[Record]) -> dict[str, Any]:
    """The number of records, and a hash of the ids, prompts and solutions of at most ``FINGERPRINTED`` of them."""
    rows = []
    for number in spread(len(records), FINGERPRINTED):
        try:
            record = records[number]
        except RecordError:  # reported where it is used
            continue
        prompt = [[message.role, message.text] for message in record.messages]
        rows.append([number, record.id, prompt, record.solution])
    return {"records": len(records), "sha256": hash_of(rows)}


def spread(length: int, most: int) -> list[int]:
    """At most ``most`` numbers below a length, spread evenly, the first and the last among them."""
    gaps = min(length, most) - 1
    return [i * (length - 1) // max(1, gaps) for i in range(gaps + 1)]


def _check_one_is_good(problems: Iterable[str]) -> None:
    """Check that not all rows are bad: the cause is then a setting, and leaving rows out would leave nothing.

    Args:
        problems: of each row, empty for a good one.

    Raises:
        RecordError: all are bad. The message is the first problem.
    """
    found = list(problems)  # all of them: reading raises for a bad row where bad rows are not left out
    if found and all(found):
        first = found[0]
        raise RecordError(f"{first} (none of the rows that were looked at can be read)")


def all_or_spot_checked(records: Sequence[Record]) -> Iterable[Record]:
    """The readable records: all where they are in memory or at most ``COMPARED``, else those of ``spot_checked``."""
    return without_bad_rows(records if are_all_read(records) else spot_checked(records))


def are_all_read(records: Sequence[Record]) -> bool:
    """Whether ``all_or_spot_checked`` gives all of these records."""
    return isinstance(records, list) or len(records) <= COMPARED


def check_together(records: Sequence[Record], check: Callable[[Collection[Record]], str | None], place: str) -> None:
    """Check what is needed of some records together. Of a large file a few are looked at, which is said.

    Args:
        check: the reason why records are of no use together, or None.
        place: of the records, for the error.

    Raises:
        RecordError: none of them has it.
    """
    read = list(all_or_spot_checked(records))
    problem = check(read)
    if problem and are_all_read(records):
        raise RecordError(f"{place}: {problem}")
    if problem:
        say(f"worth a look: {place}: {problem} ({len(read):,} of {counted(len(records), 'record')} looked at)")
