"""What a preset is: the name of a form of rows that others write, and the function that makes our rows of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qwenvl.data.errors import kind_of

Row = dict[str, Any]

# Keys that mean something in our forms. What a foreign row holds under them goes into the record only on purpose.
OUR_KEYS = frozenset(
    [
        "id",
        "conversations",
        "messages",
        "prompt",
        "solution",
        "reward_model",
        "video",
        "videos",
        "image",
        "images",
        "meta",
    ]
)


@dataclass(frozen=True)
class Preset:
    """A form of rows.

    Attributes:
        summary: who writes it, in a few words.
        fits: whether a row looks like it. Rows in our own forms are never asked about.
        row: makes one of our rows, in the messages or the prompt form. Raises ValueError naming the key that is wrong.
        rewards: reward functions that can score its solutions.
        generic: it is guessed only where no other preset fits.
        entries: for files that are one JSON object. Yields the place and the row of each record in the object. Raises
            KeyError, TypeError, AttributeError or ValueError where the object is another one.
        line: for files of plain lines. The row of a line, or None where it is another kind of line.
        without_ending: clips are named without their ending, which is looked for on the disk.
    """

    summary: str
    fits: Callable[[Row], bool]
    row: Callable[[Row], Row]
    rewards: tuple[str, ...] = ("by_problem_type",)
    generic: bool = False
    entries: Callable[[Any], Iterator[tuple[str, Row]]] | None = None
    line: Callable[[str], Row | None] | None = None
    without_ending: bool = False


def rest_of(row: Row, used: Iterable[str] = ()) -> Row:
    """What reward functions may want of a foreign row: all keys without a meaning here. Its ``id`` is ``source_id``."""
    rest = {key: value for key, value in row.items() if key not in OUR_KEYS and key not in set(used)}
    if isinstance(rest.get("reward"), int | float):  # of somebody's model: here the field names reward functions
        del rest["reward"]
    return rest | ({"source_id": row["id"]} if row.get("id") is not None else {})


def text_at(row: Row, key: str) -> str:
    """The text under a key.

    Raises:
        ValueError: there is none.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: expected text, got {kind_of(value)}")
    return value


def list_at(row: Row, key: str) -> list[Any]:
    """The list under a key, which files without types hold as JSON.

    Raises:
        ValueError: there is none, or an empty one.
    """
    value = row.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = row[key]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key}: expected a list, got {kind_of(row.get(key))}")
    return value


def media_of(row: Row) -> Row:
    """The media columns of a row that are not empty, under the names of the messages and the prompt form."""
    columns: Row = {}
    for one, several in (("video", "videos"), ("image", "images")):
        medium = row.get(several) if row.get(several) is not None else row.get(one)
        if medium is not None and medium != [] and medium != "":
            columns[several] = medium if isinstance(medium, list) else [medium]
    return columns


def tags_of(media: Row) -> str:
    """A tag for each medium of ``media_of``."""
    return "<video>" * len(media.get("videos", ())) + "<image>" * len(media.get("images", ()))
