"""``qwenvl data convert``: writes records as JSON, JSON lines or Parquet."""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from qwenvl.config.flags import FlagParser
from qwenvl.data.media.source import frame_list, media_cache
from qwenvl.data.records.record_file import JoinedRecords
from qwenvl.data.records.sources import require_format
from qwenvl.doctor.flags import add_dataset_flags, opened
from qwenvl.files import written_whole
from qwenvl.types import ClipMeta, Record

# Keys of a row that a record is made of. Other keys are copied as they are.
_OWN_KEYS = {"id", "conversations", "messages", "prompt", "video", "videos", "image", "images", "meta", "solution"}
_OWN_KEYS |= {"video_start", "video_end", "video_fps", "frames_fps"}
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
_BATCH_ROWS = 200

_Row = dict[str, Any]


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    parser.add_argument("out", help="a path that ends in .json, .jsonl (also .gz) or .parquet")


def run(args: argparse.Namespace) -> int:
    """Write the records of the data set to ``args.out``."""
    print(summary_of(write_records(JoinedRecords(opened(args)), Path(args.out)), args.out))
    return 0


class Conversion(NamedTuple):
    """The numbers of what ``write_records`` wrote."""

    records: int
    copied: int  # media that only the cache had, copied to a folder beside the file
    outside: int  # media outside of the file's folder, written as full paths


def summary_of(written: Conversion, path: str) -> str:
    """A line for each kind of thing that was written."""
    lines = [f"wrote {written.records:,} records to {path}"]
    if written.copied:
        lines.append(f"copied {written.copied:,} media that were part of the records to {path}.media")
    if written.outside:
        lines.append(
            f"{written.outside:,} media lie outside of its folder and are named in full: read it with "
            "--allow_outside_media, or give it a media_root in a catalog"
        )
    return "\n".join(lines)


def write_records(records: Iterable[Record], path: Path) -> Conversion:
    """Write records to a file, one record at a time in memory. The file name's suffix selects the kind of file.

    ``.json`` and ``.jsonl`` (also with ``.gz``) hold the conversations form, ``.parquet`` the messages form, for which
    the records are iterated twice, to know the columns. Media inside the file's folder are written as relative paths,
    others in full. Bytes are copied to ``NAME.media``.

    Raises:
        ValueError: another suffix, or a record that the kind of file can't hold.
    """
    name = path.name.lower().removesuffix(".gz")
    writers: dict[str, Callable[[Iterable[Record], Path, MediaPaths], int]] = {
        ".json": partial(_write_json, array=True),
        ".jsonl": partial(_write_json, array=False),
        ".parquet": _write_parquet,
    }
    suffix = Path(name).suffix
    if suffix not in writers or (name != path.name.lower() and suffix not in (".json", ".jsonl")):
        raise ValueError(f"{path}: expected a name that ends in {', '.join(writers)}, .json.gz or .jsonl.gz")
    media = MediaPaths(path.with_name(path.name + ".media"))
    with written_whole(path) as unfinished:
        count = writers[suffix](records, unfinished, media)
    return Conversion(count, len(media.copied), len(media.outside))


class MediaPaths:
    """The path by which a file of records, beside ``folder``, names each medium."""

    def __init__(self, folder: Path) -> None:
        self._root = os.path.realpath(folder.parent)
        self._folder = folder
        self.copied: set[int] = set()  # hashes of the paths that were copied to ``folder``
        self.outside: set[int] = set()  # hashes of the paths that were written in full

    def __call__(self, path: str) -> Any:
        """The path to write. For a clip that is a list of frames: the list of their paths."""
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


def _conversations_row(record: Record, media: MediaPaths) -> _Row:
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in record.messages]
    row: _Row = {"id": _own_id(record), "conversations": [*turns, {"from": "gpt", "value": record.solution}]}
    row |= _media_columns(record, media)
    if metas := _metas(record):
        row["meta"] = metas[0] if len(metas) == 1 else metas
    return row | _other_fields(record)


def _messages_row(record: Record, media: MediaPaths, own_id: bool) -> _Row:
    """A record in the messages form, its id as text without ``own_id``."""
    row: _Row = {"id": _own_id(record) if own_id else record.id}
    row["messages"] = [{"role": message.role, "content": message.text} for message in record.messages]
    row["solution"] = record.solution
    columns = {
        "videos": [media(path) for path in record.videos],
        "images": [media(path) for path in record.images],
        "meta": _metas(record),
    }
    return row | {name: values for name, values in columns.items() if values} | _other_fields(record)


def _write_json(records: Iterable[Record], path: Path, media: MediaPaths, array: bool) -> int:
    """Write one object per line, and for ``.json`` the brackets and commas of an array around them."""
    count = 0
    with _open(path) as file:
        file.write("[" if array else "")
        for count, record in enumerate(records, start=1):
            file.write((",\n " if count > 1 else "\n ") if array else "")
            file.write(_json(_conversations_row(record, media)) + ("" if array else "\n"))
        file.write("\n]\n" if array else "")
    return count


def _write_parquet(records: Iterable[Record], path: Path, media: MediaPaths) -> int:
    pyarrow, parquet = (require_format(name, "parquet files") for name in ("pyarrow", "pyarrow.parquet"))
    count, schema = 0, pyarrow.schema([])
    numbers = all(isinstance(own := _own_id(record), int) and abs(own) < 2**63 for record in records)

    def batches() -> Iterator[list[_Row]]:
        rows = (_messages_row(record, media, numbers) for record in records)
        while batch := list(islice(rows, _BATCH_ROWS)):
            yield batch

    try:
        for rows in batches():
            columns = dict.fromkeys(name for row in rows for name in row)
            table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
            schema = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
        with parquet.ParquetWriter(path, schema) as writer:
            for rows in batches():
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                count += len(rows)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path.stem}: a column of parquet holds values of one kind: {error}") from None
    return count


def _open(path: Path) -> TextIO:
    return (gzip.open if ".gz" in path.suffixes else open)(path, "wt", encoding="utf-8")


def _json(value: Any) -> str:
    """JSON, with bytes as base64 and dates and the like as text."""
    as_text = lambda other: base64.b64encode(other).decode() if isinstance(other, bytes) else str(other)
    return json.dumps(value, ensure_ascii=False, default=as_text)


def _media_columns(record: Record, media: MediaPaths) -> _Row:
    """``video`` and ``image``: a path, or a list of several. A single list of frames is a list in a list."""
    columns = {}
    for key, paths in (("video", record.videos), ("image", record.images)):
        if paths:
            written = [media(path) for path in paths]
            columns[key] = written[0] if len(written) == 1 and isinstance(written[0], str) else written
    return columns


def _metas(record: Record) -> list[_Row | None]:
    """The ``meta`` of each clip. Empty if no clip has one."""
    return [_meta_row(meta) for meta in record.clip_meta] if any(record.clip_meta) else []


def _meta_row(meta: ClipMeta | None) -> _Row | None:
    if meta is None:
        return None
    row = {name: value for name, value in vars(meta).items() if value is not None and value is not False}
    if counts := row.pop("frame_counts", None):
        row = {"frame_cnts": [int(count) if count.is_integer() else count for count in counts]} | row
    return row


def _own_id(record: Record) -> int | str:
    """The id as its row has it: a number stays one."""
    own = record.fields.get("id")
    return own if isinstance(own, int) and not isinstance(own, bool) else record.id


def _other_fields(record: Record) -> _Row:
    return {name: value for name, value in record.fields.items() if name not in _OWN_KEYS}
