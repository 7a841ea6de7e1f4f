"""The cache folder, files that are written as a whole or not at all, and packages that may be missing."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

UNFINISHED = ".part-"  # the last suffix of a file that is being written begins so


def is_unfinished(path: Path) -> bool:
    """Whether a file was being written by ``written_whole`` when its process was killed.

    Example:
        >>> is_unfinished(Path("run/evaluation.json.part-17-0a1b2c3d")), is_unfinished(Path("run/evaluation.json"))
        (True, False)
    """
    return path.suffix.startswith(UNFINISHED)


def cache_root() -> Path:
    """The cache folder: ``$QWENVL_CACHE``, or ``~/.cache/qwenvl``."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qwenvl"
    return Path(os.environ.get("QWENVL_CACHE") or default)


def is_address(text: str) -> bool:
    """Whether a text names something on a network, as ``http://host/clip.mp4``."""
    return text[:8].lower().startswith(("http://", "https://"))


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8. Names of files and escapes of JSON and YAML may hold lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def plain_file(path: str | Path) -> Path:
    """The path of a file that a user names, to read it as a whole.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is a pipe, a socket or a device, on which reading may wait or go on for ever.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not (path.is_file() or path.is_dir()):
        raise OSError(f"{path}: expected a regular file, this is a pipe, socket or device; write it to a file first")
    return path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A path to write to, beside ``path``. It replaces ``path`` when the block ends, and is deleted if the block fails.

    Several processes may write the same file at the same time: a reader finds one of the versions, and never a part.
    The folder of ``path`` is made if it is not there. The block may make a folder too, where ``path`` is none or an
    empty one when the block ends.

    Example:
        >>> with written_whole("settings.json") as partial:
        ...     partial.write_text("{}")
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        raise


def check_new(path: str | Path, flag: str) -> None:
    """Raise FileExistsError where there is something at ``path`` already, named as the value of ``flag``."""
    if os.path.lexists(path):
        raise FileExistsError(f"{flag} {path}: exists already, and is not replaced; give a new name, or delete it")


def require(module: str, extra: str) -> ModuleType:
    """Import a module of a package that is installed with an extra of this one.

    Raises:
        ImportError: the package is not installed. The message says what to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(_missing(module, extra)) from None


def check_installed(module: str, extra: str) -> None:
    """Raise the ImportError of ``require`` without importing the module, which may take seconds."""
    if find_spec(module) is None:
        raise ImportError(_missing(module, extra))


def _missing(module: str, extra: str) -> str:
    return f"the package {module.split('.')[0]} is not installed: pip install 'qwenvl[{extra}]'"
