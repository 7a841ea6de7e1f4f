"""The cache folder, and copies in it of packed files, in a form that can be read at any place."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """``$QWENVL_CACHE`` or ``~/.cache/qwenvl``."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qwenvl"
    return Path(os.environ.get("QWENVL_CACHE") or default)


def unpacked(path: Path, unpack: Callable[[Path], None]) -> Path:
    """The copy of ``path`` that ``unpack(target)`` writes, made once for each state of the file.

    Several processes may ask at the same time: each finds a whole copy or makes one.
    """
    status = os.stat(path)
    state = f"{os.path.realpath(path)}\n{status.st_size}\n{status.st_mtime_ns}"
    copy = cache_root() / "unpacked" / hashlib.sha256(state.encode()).hexdigest()
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=copy.parent)
        os.close(descriptor)
        try:
            unpack(Path(partial))
            os.replace(partial, copy)
        finally:
            Path(partial).unlink(missing_ok=True)
    return copy
