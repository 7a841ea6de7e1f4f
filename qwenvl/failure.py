"""The error that ends a run, told once: by the first of its processes that fails."""

from __future__ import annotations

import os
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "first-error.txt"
_FULL_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "CUDA out of memory",
    "std::bad_alloc",
)


def memory_is_full(error: BaseException) -> bool:
    """Whether an error says that memory of a GPU or of a process could not be had. Workers tell it as text alone."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in _FULL_MEMORY)


def tell(message: str, consequence: bool = False) -> None:
    """Print on standard error why a command ends.

    Where it runs in several processes, the first one of each machine that fails tells it. One that fails after it with
    other words tells its first line.

    Args:
        consequence: the message says that another process is gone. It is told only where no process has told why.
    """
    if (first := _first(message)) is None:
        print(message, file=sys.stderr, flush=True)
    elif not consequence and first != message:
        line = next(iter(message.strip().splitlines()), "")
        print(f"process {os.environ['RANK']}, after that: {line}", file=sys.stderr, flush=True)


def told_before(message: str) -> str | None:
    """What another process of the run has told on this machine why it ends. None: this one is the first, with that."""
    return _first(message)


def has_failed() -> bool:
    """Whether a process of the run has told on this machine why it ends."""
    return (path := _path()) is not None and path.exists()


@contextmanager
def tells_errors_once() -> Iterator[None]:
    """End one of several processes with status 1 at any error, whose traceback is told once. Alone, errors pass."""
    try:
        yield
    except Exception as error:
        if _path() is None:
            raise
        if (first := _first(str(error))) is None:
            traceback.print_exc()
        elif first != str(error):
            tell(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _first(message: str) -> str | None:
    """What the first process told that failed. None: that is this one."""
    if (path := _path()) is None:
        return None
    partial = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    try:
        partial.write_text(message, encoding="utf-8")
        os.link(partial, path)  # only one of them succeeds, and the file is whole from its beginning
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    except OSError:  # better twice than not at all
        return None
    finally:
        partial.unlink(missing_ok=True)
    return None


def _path() -> Path | None:
    """A file that the processes of this machine share: torchrun has a folder for each start of them. None without."""
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(own).parents[1] / NAME if own and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
