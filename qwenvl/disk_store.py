"""Caches in folders, for several processes at once and within a bound: values by key, and copies of files.

A file is written as a whole or not at all. When a folder outgrows its bound, the least recently used files are deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from qwenvl.files import UNFINISHED, cache_root, written_whole

logger = logging.getLogger(__name__)

CHECKSUM_BYTES = 4
ABANDONED_SECONDS = 3600.0  # an unfinished file this old was left by a process that died
MAX_COPIES_BYTES = 20 * 10**9
"""Bound on all copies together. Copies that a process uses are not deleted."""

_held: dict[Path, BinaryIO] = {}  # each has a lock, which ends with the process and that of its children


class DiskStore:
    """A folder of bytes by key. A checksum detects values that the disk damaged.

    Args:
        folder: created if missing. Stores with other suffixes may share it.
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
        self._allowance = 0  # bytes that may be written before the folder is listed again
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The value of a key, which is marked as used, or None if it is missing or damaged."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                checksum, value = file.read(CHECKSUM_BYTES), file.read()
        except FileNotFoundError:  # or another process made room
            return None
        except OSError as error:
            self._warn(path, "read", error)
            return None
        with suppress(OSError):  # deleted meanwhile, or another user's
            os.utime(path)
        if checksum != _checksum(value):
            logger.warning("%s is damaged: what it held is made anew", path)
            return None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store a value, unless it alone exceeds the bound. A disk that takes no more is logged once.

        Listing a large folder takes longer than a write. So the folder is listed again only when a 64th of the room
        that was found has been written. Up to 64 processes may then write without passing the bound.
        """
        size = len(value) + CHECKSUM_BYTES
        if size > self._max_bytes:
            return
        path = self._path(key)
        try:
            if size > self._allowance:
                spare = self._max_bytes // 100, self._max_bytes // 10
                room = _room(self._folder, self._suffix, self._max_bytes - size, *spare, _unlink)
                self._allowance = max(0, room // 64)
            else:
                self._allowance -= size
            with written_whole(path) as partial, open(partial, "wb") as file:
                file.write(_checksum(value))
                file.write(value)
        except OSError as error:
            self._warn(path, "stored", error)

    def _warn(self, path: Path, what: str, error: OSError) -> None:
        if not self._warned:
            logger.warning("%s: can't be %s: %s (reported once)", path, what, error.strerror)
            self._warned = True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{self._suffix}"


def cached_copy(path: Path, write: Callable[[Path], None], suffix: str) -> Path:
    """The copy of a file in another form that ``write(target)`` makes, once for each state of the file.

    No other process deletes it while this one lives.

    Args:
        path: the file. Its real path, size and time of change identify its state.
        suffix: the ending of the copy, which names the form: copies of one file in two forms have two endings.

    Returns:
        The path of the copy, in the cache folder.
    """
    status = os.stat(path)
    state = f"{os.path.realpath(path)}\n{status.st_size}\n{status.st_mtime_ns}"
    copy = cache_root() / "unpacked" / (hashlib.sha256(state.encode()).hexdigest() + suffix)
    while not _hold(copy):  # a copy that is there may be deleted before it is held
        if not copy.exists():
            with written_whole(copy) as partial:
                write(partial)
            _room(copy.parent, "", MAX_COPIES_BYTES, 0, 0, lambda other: other != str(copy) and _unlink_unused(other))
    return copy


def _hold(copy: Path) -> bool:
    """Lock a copy, and mark it as used now. False where there is none."""
    try:
        found = os.stat(copy)
        if copy in _held and os.path.samestat(found, os.fstat(_held[copy].fileno())):
            return True
        _held[copy] = open(copy, "rb")  # noqa: SIM115
        with suppress(OSError):  # a file system without locks, from which nothing is deleted
            fcntl.flock(_held[copy], fcntl.LOCK_SH)
        with suppress(PermissionError):  # another user's
            os.utime(copy)
        return os.path.samestat(os.stat(copy), os.fstat(_held[copy].fileno()))
    except FileNotFoundError:
        return False


def _room(folder: Path, suffix: str, bound: int, least: int, wanted: int, delete: Callable[[str], bool]) -> int:
    """The bytes that the files of a folder leave below a bound.

    Where they are fewer than ``least``, the least recently used files are deleted until they are ``wanted``.
    ``delete`` returns whether it deleted the file. Files that died with the process that wrote them are deleted too.
    """
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process made room
            status = entry.stat()
            if UNFINISHED in entry.name:
                if status.st_mtime < time.time() - ABANDONED_SECONDS:
                    os.unlink(entry.path)
            elif entry.name.endswith(suffix):
                files.append((status.st_mtime, status.st_size, entry.path))
    room = bound - sum(size for _, size, _ in files)
    if room < least:
        for _, size, path in sorted(files):
            if room >= wanted:
                break
            room += size if delete(path) else 0
    return room


def _unlink(path: str) -> bool:
    Path(path).unlink(missing_ok=True)
    return True


def _unlink_unused(path: str) -> bool:
    """Delete a copy unless a process holds it."""
    try:
        with open(path, "rb+") as file:  # network file systems lock only files that are open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    except OSError:
        return False
    return True


def _checksum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(CHECKSUM_BYTES, "little")
