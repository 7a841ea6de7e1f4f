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

    Of what it quotes nothing steers a terminal, or is very long.

    Attributes:
        kind: a few words under which a report counts it.
    """

    def __init__(self, message: str, kind: str = "form") -> None:
        super().__init__(printable(message))
        self.kind = kind


class BadMediaError(ValueError):
    """A media file that can't be used. ``str`` is ``path: reason``, printable as that of a ``RecordError``.

    Attributes:
        kind: a few words under which a report counts it.
        path, reason: as given. An error that a worker of a DataLoader raised has its whole text as path.
    """

    # One argument must do: a DataLoader rebuilds worker errors from their text alone.
    def __init__(self, path: str, reason: str = "", kind: str = "unreadable media") -> None:
        super().__init__(printable(f"{path}: {reason}" if reason else path))
        self.kind = kind
        self.path = path
        self.reason = reason


@contextmanager
def full_memory_at(where: str) -> Iterator[None]:
    """Say of memory that is full within where that was.

    Raises:
        MemoryError: in the place of what was raised, whose traceback would hold what was being made.
    """
    try:
        yield
        return
    except (MemoryError, OSError, RuntimeError) as error:
        if not full_memory(error):
            raise
        message = f"{where}: {str(error) or type(error).__name__}"
    raise MemoryError(message)


def place_of(record: Any) -> str:
    """Where a record or a row is, and its id, for messages."""
    return printable(f"{record.where} (id {beginning(record.id)})")


def kind_of(value: Any) -> str:
    """A value as an error shows it: its JSON type and its beginning."""
    if value is None:
        return "nothing"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return f"{names.get(type(value), type(value).__name__)} {beginning(shown)}"


DATA_ERRORS = (RecordError, BadMediaError)
"""What can be wrong with a user's data."""


@contextmanager
def told_to_the_user(
    command: str, errors: tuple[type[Exception], ...] = (ValueError, OSError, MemoryError)
) -> Iterator[None]:
    """End the process with the message of an error and without its traceback: status 1 for bad data, else 2.

    Args:
        command: what the message begins with.
        errors: those that a user can do something about. Others pass, and all do where ``QWENVL_TRACEBACK`` is set.
    """
    try:
        yield
    except errors as error:
        if os.environ.get("QWENVL_TRACEBACK"):
            raise
        # An error of a DataLoader's worker is its traceback in one text, which ends with the message.
        message = str(error).rpartition(f"{type(error).__name__}: ")[2].rstrip()
        tell(f"{command}: {message}")
        raise SystemExit(1 if isinstance(error, DATA_ERRORS) else 2) from None
