"""Functions of users, tools, views and rewards: their errors in one line, the ends of their forks, their files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
import sysconfig
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qwenvl.failure import beginning, full_memory, text_of, visible

NAMING_CODE = ("reward_funcs", "external_plugins", "tools")
"""Settings of a run that may name Python files, or servers."""
_LIBRARIES = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
# The beginnings of file names. "<" is that of code which stands in no file.
_NOT_OF_USERS = ("<", *(folder + os.sep for folder in _LIBRARIES))


class OwnCodeError(ValueError):
    """A function of the user failed, or gave what is of no use. The message names the function and the record."""


@contextmanager
def named_errors(place: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise the errors of a user's function as one line. Forks of this process that leave the block end there.

    Full memory is no fault of the function and passes, and so do errors that are one line already.

    Args:
        place: the function and the record, with which the line begins.
        passing: further errors that pass.

    Raises:
        OwnCodeError: the block raised an error, called ``sys.exit``, or awaited a task that was cancelled.

    Example:
        >>> with named_errors("--tools my_tools.py:half, record 7"):
        ...     1 / 0
        Traceback (most recent call last):
        ...
        qwenvl.own_code.OwnCodeError: --tools my_tools.py:half, record 7: ZeroDivisionError: division by zero
    """
    try:
        with ends_forks():
            yield
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, (OwnCodeError, *passing)) or full_memory(error):
            raise
        raise OwnCodeError(f"{place}: {described(error)}") from error


@contextmanager
def ends_forks() -> Iterator[None]:
    """End a fork of this process that leaves the block, with the status of a script that ends there.

    A user's function may call ``os.fork``, and its fork raise an error, call ``sys.exit`` or return. Such a fork would
    go on as a second run, with the first one's files and in the place of its process.
    """
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _end_fork(error)
        raise
    if os.getpid() != process:
        _end_fork(None)


def _end_fork(error: BaseException | None) -> None:
    status: object = 0
    if isinstance(error, SystemExit):
        status = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        status = 1
    if not isinstance(status, int):  # sys.exit("a message")
        print(status, file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


def described(error: BaseException) -> str:
    """An error in one line: its kind, its text, and the line of the user's code."""
    text = beginning(visible(text_of(error)), 300)
    return f"{type(error).__name__}: {text}{raised_at(error)}" if text else f"{type(error).__name__}{raised_at(error)}"


def raised_at(error: BaseException) -> str:
    """`` (my_rewards.py, line 8)``: the last line of a user's own code that an error went through. Or nothing."""
    places = traceback.extract_tb(error.__traceback__)
    own = [place for place in places if not place.filename.startswith(_NOT_OF_USERS)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def values_naming_code(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name and each value, as text, of the settings that may name code."""
    for name in NAMING_CODE:
        values = settings.get(name) or []
        for value in [values] if isinstance(values, str) else values:
            yield name, str(value)


def files_of_python(text: str) -> Iterator[str]:
    """The parts of a setting's value that may be the name of a file of Python.

    Values are such as ``verl:my rewards.py:right`` or ``cosine(correctness_func=a.py:f)``. Names may hold spaces and
    brackets: every part that ends in ``.py`` and begins at one of these counts.
    """
    for ending in re.finditer(r"\.py\b", text):
        before = text[: ending.end()]
        starts = {0, *(border.end() for border in re.finditer(r"[\s,'\"=(:]", before))}
        for start in starts:
            yield before[start:]


def code_hashes(config: Any) -> dict[str, str]:
    """The SHA-256 of each file of Python that settings name, by the file's name. Files of one name have one together.

    Folders are no part of the names: those of a run may be moved.
    """
    files: dict[Path, Path] = {}  # by their full paths: two functions may stand in one file
    for _, text in values_naming_code(vars(config)):
        for file in files_of_python(text):
            if Path(file).is_file():
                files[Path(file).resolve()] = Path(file)
    contents: dict[str, bytes] = defaultdict(bytes)
    for path in files.values():
        contents[path.name] += path.read_bytes()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
