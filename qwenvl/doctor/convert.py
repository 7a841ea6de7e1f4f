"""Writes records to files, in each of the forms and kinds that can be read. One record at a time is in memory."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from qwenvl.data.media.source import frame_list, media_cache
from qwenvl.data.records.tables import require_format
from qwenvl.files import written_whole
from qwenvl.types import ClipMeta, Record

# What a record is made of; other keys of its row are carried over as they are.
_OWN_KEYS = {"id", "conversations", "messages", "prompt", "video", "videos", "image", "images", "meta", "solution"}
_CLIP_KEYS = {"video_start", "video_end", "video_fps", "frames_fps"}
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
_BATCH_ROWS = 200


class Written(NamedTuple):
    """What ``write_records`` did.

    Attributes:
        records: their number.
        copied: media that only the cache had, copied to a folder beside the file.
        outside: media outside of the file's folder, written as full paths.
    """

    records: int
    copied: int
    outside: int


def write_records(records: Iterable[Record], path: Path) -> Written:
    """Write records to a file. The ending of its name says which kind of file it is.

    ``.json`` and ``.jsonl`` (also with ``.gz``) hold the conversations form, ``.parquet`` the messages form, ``.csv``
    and ``.tsv`` one question a row. Media inside the file's folder are written as paths relative to it, others in full.
    What came as bytes is copied to the folder ``NAME.media`` beside it.

    Args:
        records: are read again for ``.parquet``, ``.csv`` and ``.tsv``, whose columns must be known ahead.

    Raises:
        ValueError: another ending, or a record that the kind of file can't hold.
    """
    name = path.name.lower().removesuffix(".gz")
    writers: dict[str, Callable[[Iterable[Record], Path, MediaPaths], int]] = {
        ".json": _write_array,
        ".jsonl": _write_lines,
        ".parquet": _write_parquet,
        ".csv": _write_csv,
        ".tsv": _write_csv,
    }
    suffix = Path(name).suffix
    if suffix not in writers or (name != path.name.lower() and suffix not in (".json", ".jsonl")):
        raise ValueError(f"{path}: expected a name that ends in {', '.join(writers)}, .json.gz or .jsonl.gz")
    media = MediaPaths(path.with_name(path.name + ".media"))
    with written_whole(path) as partial:
        count = writers[suffix](records, partial, media)
    return Written(count, len(media.copied), len(media.outside))


class MediaPaths:
    """Says how a file of records names each medium. The file lies beside ``folder``.

    Attributes:
        copied, outside: hashes of the paths that were copied to ``folder``, and of those named in full.
    """

    def __init__(self, folder: Path) -> None:
        self._root = os.path.realpath(folder.parent)
        self._folder = folder
        self.copied: set[int] = set()
        self.outside: set[int] = set()

    def __call__(self, path: str) -> Any:
        """Return the path to write. For a clip that is a list of frames, return the list of their paths."""
        if (frames := frame_list(path)) is not None:
            return [self(frame) for frame in frames]
        if Path(path).is_relative_to(self._root):
            return os.path.relpath(path, self._root)
        if Path(path).is_relative_to(media_cache()):
            copy = self._folder / Path(path).name
            if hash(path) not in self.copied:
                self._folder.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)
                self.copied.add(hash(path))
            return os.path.relpath(copy, self._root)
        self.outside.add(hash(path))
        return path


def conversations_row(record: Record, media: MediaPaths) -> dict[str, Any]:
    """Return the record in the conversations form."""
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in record.messages]
    row: dict[str, Any] = {"id": _own_id(record), "conversations": [*turns, {"from": "gpt", "value": record.solution}]}
    row |= _media_columns(record, media)
    if any(record.clip_meta):
        metas = [_meta_row(meta) for meta in record.clip_meta]
        row["meta"] = metas[0] if len(metas) == 1 else metas
    return row | _other_fields(record)


def messages_row(record: Record, media: MediaPaths, own_id: bool = True) -> dict[str, Any]:
    """Return the record in the messages form, its id as text without ``own_id``."""
    row: dict[str, Any] = {"id": _own_id(record) if own_id else record.id}
    row["messages"] = [{"role": message.role, "content": message.text} for message in record.messages]
    row["solution"] = record.solution
    if record.videos:
        row["videos"] = [media(path) for path in record.videos]
    if record.images:
        row["images"] = [media(path) for path in record.images]
    if any(record.clip_meta):
        row["meta"] = [_meta_row(meta) for meta in record.clip_meta]
    return row | _other_fields(record)


def plain_row(record: Record, media: MediaPaths) -> dict[str, str]:
    """Return the record as cells of text. What is not text is written as JSON.

    Raises:
        ValueError: more than one turn.
    """
    if len(record.messages) > 1:
        raise ValueError(f"{record.where}: a CSV row holds one question; a prompt of several turns needs another kind")
    row: dict[str, Any] = {"id": record.id, "prompt": record.messages[0].text, "solution": record.solution}
    row |= _media_columns(record, media)
    if any(record.clip_meta):
        row["meta"] = [_meta_row(meta) for meta in record.clip_meta]
    row |= _other_fields(record)
    return {name: value if isinstance(value, str) else _json(value) for name, value in row.items()}


def _write_array(records: Iterable[Record], path: Path, media: MediaPaths) -> int:
    count = 0
    with _open(path) as file:
        file.write("[")
        for record in records:
            file.write(",\n " if count else "\n ")
            file.write(_json(conversations_row(record, media)))
            count += 1
        file.write("\n]\n")
    return count


def _write_lines(records: Iterable[Record], path: Path, media: MediaPaths) -> int:
    count = 0
    with _open(path) as file:
        for record in records:
            file.write(_json(conversations_row(record, media)) + "\n")
            count += 1
    return count


def _write_csv(records: Iterable[Record], path: Path, media: MediaPaths) -> int:
    columns = dict.fromkeys(name for record in records for name in plain_row(record, media))
    count = 0
    with _open(path, newline="") as file:
        writer = csv.DictWriter(file, list(columns), delimiter="\t" if ".tsv" in path.suffixes else ",")
        writer.writeheader()
        for record in records:
            writer.writerow(plain_row(record, media))
            count += 1
    return count


def _write_parquet(records: Iterable[Record], path: Path, media: MediaPaths) -> int:
    pyarrow, parquet = (require_format(name, "parquet files") for name in ("pyarrow", "pyarrow.parquet"))
    count, schema = 0, pyarrow.schema([])
    numbers = all(isinstance(own := _own_id(record), int) and abs(own) < 2**63 for record in records)
    try:
        for rows in _batches(records, media, numbers):
            columns = dict.fromkeys(name for row in rows for name in row)
            table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
            schema = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
        with parquet.ParquetWriter(path, schema) as writer:
            for rows in _batches(records, media, numbers):
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                count += len(rows)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path.stem}: a column of parquet holds values of one kind: {error}") from None
    return count


def _batches(records: Iterable[Record], media: MediaPaths, own_ids: bool) -> Iterator[list[dict[str, Any]]]:
    rows = (messages_row(record, media, own_ids) for record in records)
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch


def _open(path: Path, newline: str | None = None) -> TextIO:
    zipped = ".gz" in path.suffixes
    return (gzip.open if zipped else open)(path, "wt", encoding="utf-8", newline=newline)


def _json(value: Any) -> str:
    """JSON, with bytes as base64 and dates and the like as text."""
    as_text = lambda other: base64.b64encode(other).decode() if isinstance(other, bytes) else str(other)
    return json.dumps(value, ensure_ascii=False, default=as_text)


def _media_columns(record: Record, media: MediaPaths) -> dict[str, Any]:
    """A single medium is written as it is, and several as a list. A single list of frames is a list in a list."""
    columns = {}
    for key, paths in (("video", record.videos), ("image", record.images)):
        if paths:
            written = [media(path) for path in paths]
            columns[key] = written[0] if len(written) == 1 and isinstance(written[0], str) else written
    return columns


def _meta_row(meta: ClipMeta | None) -> dict[str, Any] | None:
    if meta is None:
        return None
    row: dict[str, Any] = {}
    if meta.frame_counts is not None:
        row["frame_cnts"] = [int(count) if count.is_integer() else count for count in meta.frame_counts]
    row |= {name: value for name, value in vars(meta).items() if name != "frame_counts" and value is not None}
    return row if row.pop("dynamic_sample") is False else row | {"dynamic_sample": True}


def _own_id(record: Record) -> int | str:
    """The id as its row has it: a number stays one."""
    own = record.fields.get("id")
    return own if isinstance(own, int) and not isinstance(own, bool) else record.id


def _other_fields(record: Record) -> dict[str, Any]:
    known = _OWN_KEYS | _CLIP_KEYS
    return {name: value for name, value in record.fields.items() if name not in known}
