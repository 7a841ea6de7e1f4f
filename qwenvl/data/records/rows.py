"""A row as a file holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HUB_PREFIX = "hf:"


@dataclass(frozen=True)
class Row:
    """One row of a file.

    Attributes:
        where: the file and the place of the row in it, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: the id of the row if it has none of its own.
        read: returns what the row holds, which is a dict if the row is sound. Raises RecordError if it can't be read.
        untyped: every value is text, as in CSV. The name of a column must tell whether it holds a number or a list.
    """

    where: str
    default_id: str
    read: Callable[[], Any]
    untyped: bool = False


def stem_of(path: Path) -> str:
    """What the default ids of a file's rows begin with: its name without the endings."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
