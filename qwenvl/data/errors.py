"""The errors of the data room, and how their messages show values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qwenvl.failure import beginning, full_memory, printable, tell


class RecordError(ValueError):
    """A row that can't become a record. The message says where, what was expected and what was found.

    Its text is made ``printable``: what it quotes of a file can neither steer a terminal nor fill it.

    Attributes:
        kind: a few words under which a report counts it.
    """

    def __init__(self, message: str, kind: str = "form") -> None:
        super().__init__(printable(message))
        self.kind = kind


class BadMediaError(ValueError):
    """A media file that can't be used. Its text is ``path: reason``, printable like that of a ``RecordError``.

    Attributes:
        kind: a few words under which a report counts it.
        path, reason: as given. An error from a worker of a DataLoader has its whole text as path.
    """

    # One argument must do: a DataLoader rebuilds worker errors from their text alone.
    def __init__(self, path: str, reason: str = "", kind: str = "unreadable media") -> None:
        super().__init__(printable(f"{path}: {reason}" if reason else path))
        self.kind = kind
        self.path = path
        self.reason = reason


class MediaTimeout(BadMediaError):
    """A media file that was not decoded within its time. Its decoder was killed."""


@contextmanager
def full_memory_at(where: str) -> Iterator[None]:
    """Name the place in the error if memory runs out within.

    Raises:
        MemoryError: in place of the first error, whose traceback would keep the half-made tensors in memory.
    """
    try:
        yield
        return
    except (MemoryError, OSError, RuntimeError) as error:
        if not full_memory(error):
            raise
        message = f"{where}: {str(error) or type(error).__name__}"
    # Outside of the except clause, so that the new error does not hold the first one as its context.
    raise MemoryError(message)


def place_of(record: Any) -> str:
    """The place of a record or a row and its id, for messages."""
    return printable(f"{record.where} (id {beginning(record.id)})")


def kind_of(value: Any) -> str:
    """The JSON type of a value and its beginning, for messages."""
    if value is None:
        return "nothing"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return f"{names.get(type(value), type(value).__name__)} {beginning(shown)}"


DATA_ERRORS = (RecordError, BadMediaError)
"""The errors that say what is wrong with a user's data."""


@contextmanager
def told_to_the_user(
    command: str, errors: tuple[type[Exception], ...] = (ValueError, OSError, MemoryError)
) -> Iterator[None]:
    """End the process with the message of an error and without its traceback: status 1 for bad data, else 2.

    Args:
        command: the beginning of the message.
        errors: kinds that a user can mend. All other errors pass, and with ``QWENVL_TRACEBACK`` set these pass too.
    """
    try:
        yield
    except errors as error:
        if os.environ.get("QWENVL_TRACEBACK"):
            raise
        message = str(error)
        # An error of a DataLoader's worker is its traceback in one text, which ends with the message.
        if message.startswith("Caught "):
            message = message.rpartition(f"{type(error).__name__}: ")[2].rstrip()
        tell(f"{command}: {message}")
        raise SystemExit(1 if isinstance(error, DATA_ERRORS) else 2) from None
