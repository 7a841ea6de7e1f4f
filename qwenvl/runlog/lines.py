"""JSON lines: they are whole or they are not there. What a crash cut off is dropped, by reader and next writer."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line for each row. The folder must be there."""
    # Half a surrogate pair, which a tokenizer can decode to, becomes the escape that JSON has for it.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1, without one that was cut off. None where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return  # cut off by a crash
            yield number, line


def drop_cut_line(path: Path) -> None:
    """Take a last line without an end off a file, so that what is appended begins a line of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(position - 65536, 0)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                position = start + found + 1
                break
            position = start
        if position < size:
            file.truncate(position)


def plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinity as words, arrays and tensors as numbers, anything odd as its repr."""
    if isinstance(value, (str, int, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else repr(value)
