"""``qwenvl data convert``: writes records of any format as JSON or JSON lines in the conversations form."""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from qwenvl.config.flags import FlagParser
from qwenvl.console import show
from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import frame_list, media_cache
from qwenvl.data.records.forms import system_turn
from qwenvl.data.records.keys import CLIP_ENDINGS, FRAME_KEYS, SYSTEM_KEYS, TURN_KEYS
from qwenvl.failure import counted
from qwenvl.files import check_new, is_utf8, written_whole
from qwenvl.inspection.flags import add_dataset_flags, record_files
from qwenvl.inspection.written_settings import written_settings
from qwenvl.types import Record

# Keys that ``written_row`` writes anew.
_WRITTEN_ANEW = frozenset(("id", "solution", "video", "videos", "image", "images"))
OWN_KEYS = frozenset(
    (
        *_WRITTEN_ANEW,
        *TURN_KEYS,
        "completion",
        "meta",
        "frame_cnts",
        "dynamic_sample",
        "frame_times",
        *FRAME_KEYS,
        *SYSTEM_KEYS,
    )
)
"""Keys that records are made of, which no column of labels may have as its name."""
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}

_Row = dict[str, Any]


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    parser.add_argument("out", help="a path that ends in .json or .jsonl")


def run(args: argparse.Namespace) -> int:
    """Write the records of the data set to ``args.out``."""
    check_new(args.out, "OUT")
    show(write_records(chain.from_iterable(record_files(args)), Path(args.out)))
    return 0


def check_kind(path: Path) -> None:
    """Raise ValueError where the ending of a path is none of a file of records that can be written."""
    if path.suffix.lower() not in (".json", ".jsonl"):
        raise ValueError(
            f"{path}: expected a name that ends in .json or .jsonl; other kinds are made of these by "
            "datasets.load_dataset('json', data_files=...), such as .to_parquet(...)"
        )


def write_records(records: Iterable[Record], path: Path) -> str:
    """Write records to a file, one record at a time in memory: a JSON array, or with ``.jsonl`` one object per line.

    Each row is read as the same record again, with the same fields for rewards. Media inside the file's folder are
    written as relative paths, others in full. Bytes are copied to ``NAME.media``.

    Returns:
        Lines that say what was written.

    Raises:
        ValueError: the path has another suffix.
        RecordError: the name of a medium is not UTF-8, or two records have one id.
    """
    check_kind(path)
    kind = path.suffix.lower()
    media = _MediaPaths(root=os.path.realpath(path.parent), folder=path.with_name(path.name + ".media"))
    count = 0
    places: dict[str, str] = {}  # of the records, by their ids
    with written_whole(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        if kind == ".json":
            file.write("[\n")
        for count, record in enumerate(records, start=1):
            record = replace(record, id=_id_to_write(record, places))
            try:
                row = _json(_row_with_completion(record, media.path_of))
            except ValueError:
                raise RecordError(f"{record.where}: has an infinite number or NaN, which JSON cannot hold") from None
            if not is_utf8(row):
                raise RecordError(f"{record.where}: the name of a file is not UTF-8; rename the file", "media path")
            if kind == ".jsonl":
                file.write(row + "\n")
            else:
                file.write(row if count == 1 else f",\n{row}")
        if kind == ".json":
            file.write("\n]\n")
    lines = [f"wrote {counted(count, 'record')} to {path}"]
    if media.copied:
        lines.append(f"copied {len(media.copied):,} media that were part of the records to {media.folder}")
    if media.outside:
        lines.append(
            f"{len(media.outside):,} media lie outside of its folder and are named in full: read it with "
            "--allow_outside_media, or give it a media_root in a catalog"
        )
    return "\n".join(lines)


def _id_to_write(record: Record, places: dict[str, str]) -> str:
    """The id with which a record is written. It is noted in ``places``.

    A record without an id of its own has one by its file and its place in it, which that of a file of the same name in
    another folder may have too: it gets a number then.

    Args:
        places: of the records before, by their ids.

    Raises:
        RecordError: another record has the id that this one has in its file.
    """
    given = record.id
    number = 1
    while places.setdefault(given, record.where) != record.where:
        if "id" in record.fields:
            first = places[given]
            raise RecordError(f"{record.where}: has the id {given!r}, as {first} has; give one of them another")
        number += 1
        given = f"{record.id}-{number}"
    return given


@dataclass
class _MediaPaths:
    """The paths of media as a file of records names them.

    Attributes:
        root: the folder of the file, with its links resolved.
        folder: gets copies of media that were part of the records.
        copied, outside: hashes of the paths that were copied, and of those that are not below the root.
    """

    root: str
    folder: Path
    copied: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)

    def path_of(self, name: str) -> Any:
        """The path to write, or for a clip that is a list of frames the list of their paths."""
        frames = frame_list(name)
        if frames is not None:
            return [self.path_of(frame) for frame in frames]
        if Path(name).is_relative_to(self.root):
            return os.path.relpath(name, self.root)
        if not Path(name).is_relative_to(media_cache()):
            self.outside.add(hash(name))
            return name
        copy = self.folder / Path(name).name
        if hash(name) not in self.copied:
            self.folder.mkdir(exist_ok=True)
            shutil.copyfile(name, copy)
            self.copied.add(hash(name))
        return os.path.relpath(copy, self.root)


def _clip_path(media: Callable[[str], Any], path: str) -> Any:
    """What ``media`` gives for a clip, with / behind a folder of frames beside which is a clip of its name."""
    written = media(path)
    is_beside_a_clip = os.path.isdir(path) and any(os.path.exists(path + ending) for ending in CLIP_ENDINGS)
    return f"{written}/" if is_beside_a_clip else written


def written_row(record: Record, media: Callable[[str], Any]) -> _Row:
    """A record in the conversations form, with the paths that ``media`` gives. An id that is a number stays one.

    Other fields are as they were, for the rewards. The completion of a row is not among them: here it would be one more
    turn.
    """
    own_id = record.fields.get("id")
    is_number = isinstance(own_id, int) and not isinstance(own_id, bool) and str(own_id) == record.id
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in record.messages]
    if record.solution:
        turns.append({"from": "gpt", "value": record.solution})
    row: _Row = {"id": own_id if is_number else record.id, "conversations": turns}
    settings = written_settings(record)
    if record.videos:
        row["video"] = _media_cell("video", record.videos, settings.videos, partial(_clip_path, media))
    if record.images:
        row["image"] = _media_cell("image", record.images, settings.images, media)
    dropped = {*_WRITTEN_ANEW, "conversations", _turn_key(record), *_other_system_turns(record)}
    if record.fields.get("completion"):
        dropped.add("completion")
    row |= {name: value for name, value in record.fields.items() if name not in dropped}
    if settings.meta is not None:
        row["meta"] = settings.meta
    return row


def _turn_key(record: Record) -> str:
    """The key that the turns of a record were read from. Another key of turns beside it is a field like others."""
    return next((key for key in TURN_KEYS if key in record.fields), "conversations")


def _other_system_turns(record: Record) -> list[str]:
    """The keys of a row whose system turn is not the one among the messages of the record: a flag has replaced it."""
    said = system_turn(record.fields, record.where)
    return [] if said is None or said in record.messages else [*SYSTEM_KEYS]


def _row_with_completion(record: Record, media: Callable[[str], Any]) -> _Row:
    """A record as ``written_row`` writes it. With a completion: turns, completion and solution under keys of their own.

    A completion of several turns is written as turns alone.
    """
    row = written_row(record, media)
    completion = record.fields.get("completion")
    is_one_turn = isinstance(completion, str) or (isinstance(completion, list) and len(completion) == 1)
    if not completion or not is_one_turn:
        return row
    key = _turn_key(record)
    turns = row.pop("conversations")
    if record.solution:
        turns.pop()
    if key == "conversations":  # whose solution is the last turn, the completion
        return {"id": row.pop("id"), key: turns, "completion": completion, **row}
    messages = [{"role": message.role, "content": message.text} for message in record.messages]
    return {"id": row.pop("id"), key: messages, "completion": completion, "solution": record.solution, **row}


def _media_cell(key: str, paths: Sequence[str], settings: Sequence[_Row], media: Callable[[str], Any]) -> Any:
    """The media of a record as its row has them: a list, or a single medium without one.

    Args:
        settings: those of each medium, in the words of ``qwen_vl_utils``. They stand in an object beside the path,
            where these words have their meaning.
    """
    written = []
    for path, own in zip(paths, settings, strict=True):
        written.append({key: media(path), **own} if own else media(path))
    # A single list of frames stays a list in a list: else each frame would be a medium.
    if len(written) == 1 and not isinstance(written[0], list):
        return written[0]
    return written


def _json(value: Any) -> str:
    """JSON, with bytes as base64 and dates and the like as text."""
    return json.dumps(value, ensure_ascii=False, default=_as_text, allow_nan=False)


def _as_text(value: Any) -> str:
    """A value that JSON does not have, as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
