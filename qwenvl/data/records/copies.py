"""Copies of files of records in a form that can be read at random, kept in the cache folder within a bound."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from qwenvl.disk_store import files_by_use
from qwenvl.files import cache_root, written_whole

MAX_BYTES = 20 * 10**9
"""Where all copies together are larger, those that no process uses are deleted, the one unused for longest first."""

_held: dict[Path, BinaryIO] = {}  # each has a lock, which ends with the process and that of its children


def cached_copy(path: Path, write: Callable[[Path], None], suffix: str) -> Path:
    """The copy of a file in another form that ``write(target)`` makes, once for each state of the file.

    No other process deletes it while this one lives.

    Args:
        path: the file. Its real path, size and time of change say in which state it is.
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
            _make_room(copy)
    return copy


def _hold(copy: Path) -> bool:
    """Keep a copy, and mark it as used now. False where there is none."""
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


def _make_room(new: Path) -> None:
    """Delete copies that no process holds, but not the new one, until all are within the bound."""
    copies = sorted(files_by_use(new.parent))
    excess = sum(size for _, size, _ in copies) - MAX_BYTES
    for _, size, path in copies:
        if excess > 0 and path != str(new):
            with suppress(OSError), open(path, "rb+") as file:  # network file systems lock what may be written alone
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where a process holds it
                os.unlink(path)
                excess -= size
