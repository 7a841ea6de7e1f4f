"""Data sets of records: a small one is read and checked as a whole, of a large one each record when it is requested."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, RecordCheck, Rows, first_number_of, format_of, parse_row
from qwenvl.data.records.presets import OURS
from qwenvl.data.records.sources import open_rows
from qwenvl.data.seeds import stable_random
from qwenvl.run_log.log import hash_of
from qwenvl.types import Message, Record

LOADED_BYTES = 512 * 2**20  # of a file, unpacked, up to which its records are loaded
LOADED_RECORDS = 20_000  # and up to how many: more would take 3 kB of memory each, in each process
SPOT_CHECKS = 200
FINGERPRINTED = 1_000  # records of which a checkpoint keeps a hash


class RecordFile(Sequence[Record]):
    """The records of one data set by index, each read when it is requested. It can be sent to other processes.

    Duplicate ids are found only by reading all records in order.

    Args:
        source: names the file. ``source.percent`` of its rows are selected by ``seed``.
        check_record: called last on each record, on behalf of the rewards.
        skip: bad rows give a record with its ``problem``, in place of an error.
        rows: the rows, where they are in no file. Then ``source`` only names them.

    Attributes:
        source: names the file.
        read_as: the preset by which the rows are read, where it was guessed and not named. None for our own forms.
        first_number: what whole numbers in the answers count the options from, where rows tell.

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
        every = length <= LOADED_RECORDS and self._rows.size <= LOADED_BYTES
        looked_at = range(length) if every else spread(length, SPOT_CHECKS)
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

    def load(self) -> Sequence[Record]:
        """All records, in a list. Of a large file: this file, of which ``SPOT_CHECKS`` records are checked.

        Raises:
            RecordError: the first bad row that was read. Where bad rows are left out: none was good.
        """
        if self._rows.size <= LOADED_BYTES and self._rows.length <= LOADED_RECORDS:
            records = [record for record in self]
            _check_one_is_good(record.problem for record in records)
            return records
        _check_one_is_good(record.problem for record in spot_checked(self))  # none stays in memory: rows may be large
        return self

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Record:
        number = int(self._numbers[index])
        try:
            return self._read(number)
        except RecordError as error:
            if not self._skip:
                raise
            return self._unreadable(number, error)

    def _read(self, number: int) -> Record:
        record = parse_row(self._rows.row(number), self._media_root, self._options)
        if self._check_record is not None and (problem := self._check_record(record)):
            raise RecordError(f"{record.where}: {problem}", "solution")
        return record

    def _unreadable(self, number: int, error: RecordError) -> Record:
        """What stands in the place of a bad row."""
        try:
            where = self._rows.row(number).where
        except RecordError:  # such as a line that is no JSON
            where = f"{self.source.annotation_path}: row {number + 1}"
        shown = (Message("user", "A row that can't be read."),)
        return Record(f"row-{number}", shown, "", (), (), (), {}, where, problem=str(error))

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


COMPARED = 10_000
"""Most records of a file that is not in memory of which all are looked at. Of a larger one a few are."""


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
    """Check that of some records one at least can be read. What is wrong with all rows is wrong with the settings.

    Raises:
        RecordError: none can. It is the first one's problem.
    """
    found = list(problems)  # all of them: reading raises for a bad row where bad rows are not left out
    if found and all(found):
        first = found[0]
        raise RecordError(f"{first} (none of the rows that were looked at can be read)")


def all_or_spot_checked(records: Sequence[Record]) -> Iterable[Record]:
    """All records where they are in memory or at most ``COMPARED``, else those of ``spot_checked``."""
    if isinstance(records, list) or len(records) <= COMPARED:
        return records
    return spot_checked(records)
