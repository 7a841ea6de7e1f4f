"""Values kept in a folder under keys made of their content, for several processes at once and within a bound.

A value is written as a whole or not at all. A check sum tells a value that the disk lost part of. When the folder
outgrows its bound, the values that were unused for longest are deleted.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from qwenvl.files import UNFINISHED, written_whole

logger = logging.getLogger(__name__)

CHECKSUM_BYTES = 4
ABANDONED_SECONDS = 3600.0  # an unfinished file this old was left by a process that died


class DiskStore:
    """A folder of bytes by key.

    Args:
        folder: it is made if it is not there. Stores with other suffixes may share it.
        max_bytes: bound on the sum of this store's files.
        suffix: the suffix of this store's files.

    Example:
        >>> store = DiskStore("/tmp/store", 10**9, ".frames")
        >>> store.put("ab12", b"value")
        >>> store.get("ab12")
        b'value'
    """

    def __init__(self, folder: str | Path, max_bytes: int, suffix: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._suffix = suffix
        self._allowance = 0  # bytes that may be written before the folder is looked through again
        self._told = False

    def get(self, key: str) -> bytes | None:
        """The value of a key, which is marked as used, or None if it is missing or damaged."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                checksum, value = file.read(CHECKSUM_BYTES), file.read()
        except FileNotFoundError:  # or another process made room
            return None
        except OSError as error:
            self._tell(path, "read", error)
            return None
        with suppress(OSError):  # deleted meanwhile, or another user's
            os.utime(path)
        if checksum != _checksum(value):
            logger.warning("%s is damaged: what it held is made anew", path)
            return None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep a value, unless it exceeds the bound by itself. A disk that takes no more is logged once."""
        size = len(value) + CHECKSUM_BYTES
        if size > self._max_bytes:
            return
        path = self._path(key)
        try:
            self._make_room(size)
            with written_whole(path) as partial, open(partial, "wb") as file:
                file.write(_checksum(value))
                file.write(value)
        except OSError as error:
            self._tell(path, "kept", error)

    def _tell(self, path: Path, what: str, error: OSError) -> None:
        if not self._told:
            logger.warning("%s: can't be %s: %s (told once)", path, what, error.strerror)
            self._told = True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{self._suffix}"

    def _make_room(self, size: int) -> None:
        """Delete what was unused for longest until a tenth of the bound is free, if it is nearly reached.

        Looking through a large folder takes longer than a write. So the folder is looked through again only when a 64th
        of the room that was seen has been written. Up to 64 processes may then write without passing the bound.
        """
        if size <= self._allowance:
            self._allowance -= size
            return
        files = sorted(files_by_use(self._folder, self._suffix))
        room = self._max_bytes - size - sum(kept for _, kept, _ in files)
        if room < self._max_bytes // 100:
            for _, kept, path in files:
                if room >= self._max_bytes // 10:
                    break
                Path(path).unlink(missing_ok=True)
                room += kept
        self._allowance = max(0, room // 64)


def files_by_use(folder: str | Path, suffix: str = "") -> Iterator[tuple[float, int, str]]:
    """For each file the time of its last use, its bytes and its path. What processes left that died is deleted."""
    for entry in os.scandir(folder):
        try:
            status = entry.stat()
        except FileNotFoundError:  # another process made room
            continue
        if UNFINISHED in entry.name:
            if status.st_mtime < time.time() - ABANDONED_SECONDS:
                Path(entry.path).unlink(missing_ok=True)
        elif entry.name.endswith(suffix):
            yield status.st_mtime, status.st_size, entry.path


def _checksum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(CHECKSUM_BYTES, "little")
