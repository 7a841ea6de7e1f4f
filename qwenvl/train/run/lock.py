"""The lock of a run folder: two runs in one folder would mix their rows and their checkpoints."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

logger = logging.getLogger(__name__)

NAME = ".lock"
_held: dict[Path, list[TextIO]] = {}  # a process may take the lock several times, as the command and its trainer do
_made: set[Path] = set()  # folders that were made for the lock


class RunFolderError(OSError):
    """The run folder can't be made or written. The message says why."""


class RunLockedError(RunFolderError):
    """The run folder belongs to another process that is running. The message names host and process."""


@contextmanager
def locked(folder: str | Path, rank: int = 0) -> Iterator[None]:
    """Hold the lock of a run folder within. See `hold` and `release`."""
    hold(folder, rank)
    try:
        yield
    finally:
        release(folder, rank)


def hold(folder: str | Path, rank: int = 0) -> None:
    """Take the lock of a run folder for this process. The operating system frees it when the process dies.

    It is a POSIX record lock, so child processes don't inherit it, and network file systems know it.

    Args:
        rank: of this process in its run. Only rank 0 takes the lock, for all of them.

    Raises:
        RunLockedError: another process holds it.
        RunFolderError: the folder can't be made or written.
    """
    path = Path(folder).resolve() / NAME
    if rank != 0:
        return
    if path in _held:
        _held[path].append(_held[path][0])
        return
    while True:
        file = _opened(path)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise RunLockedError(
                f"{folder}: in use by another run, {holder}; wait until it has ended, or give another --output_dir"
            ) from None
        except OSError as error:
            logger.warning(f"{path}: can't be locked ({error.strerror}); see that no other run uses this folder")
        if _is(file, path):
            break
        file.close()  # its holder deleted it in between
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _held[path] = [file]


def release(folder: str | Path, rank: int = 0) -> None:
    """Give the lock back, when it has been released as often as it was taken."""
    path = Path(folder).resolve() / NAME
    if rank != 0 or path not in _held:
        return
    file = _held[path].pop()
    if not _held[path]:
        del _held[path]
        path.unlink(missing_ok=True)
        file.close()
        if path.parent in _made:
            with suppress(OSError):  # the run has left something there
                path.parent.rmdir()


def _opened(path: Path) -> TextIO:
    """The file of the lock, in a folder that is made where there is none."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            _made.add(path.parent)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"{path.parent}: can't be made or written ({error.strerror}); give another --output_dir"
        ) from None


def _is(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
