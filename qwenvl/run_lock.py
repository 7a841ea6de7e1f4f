"""The lock of a run folder: two runs in one folder would mix their rows and their checkpoints.

A POSIX record lock and not ``filelock``, whose flock is inherited by forks: after ``kill -9`` workers of a data loader
would keep the folder locked for seconds, and a supervisor's restart would be refused (``test_run_lock.py`` tests it).
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

NAME = ".lock"
_held: set[Path] = set()


class RunFolderError(OSError):
    """The run folder can't be created or written, or another process holds it. The message says why."""


@contextmanager
def locked(folder: str | Path, rank: int = 0, flag: str = "--output_dir") -> Iterator[None]:
    """Hold the lock of a run folder within. The operating system frees it when the process dies.

    Where the process holds it already, as a command does for its trainer, this does nothing.

    Args:
        rank: of this process in its run. Only rank 0 takes the lock, for all of them.
        flag: that names the folder, for errors.

    Raises:
        RunFolderError: another process holds it, or the folder can't be created or written.
    """
    path = Path(folder).resolve() / NAME
    if rank != 0 or path in _held:
        yield
        return
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise RunFolderError(
                f"{path.parent}: can't be created or written ({reason}); give another {flag}"
            ) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise RunFolderError(
                f"{folder}: in use by another run, {holder}; wait until it has ended, or give another {flag}"
            ) from None
        except OSError as error:
            logger.warning(f"{path}: can't be locked ({error.strerror}); see that no other run uses this folder")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()  # its holder deleted it in between
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _held.add(path)
    try:
        yield
    finally:
        _held.remove(path)
        path.unlink(missing_ok=True)
        file.close()
