"""``qwenvl data convert``: writes records of any format as JSON or JSON lines in the conversations form."""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from qwenvl.config.flags import FlagParser
from qwenvl.data.media.source import frame_list, media_cache
from qwenvl.data.records.keys import FRAME_KEYS, SYSTEM_KEYS
from qwenvl.failure import counted
from qwenvl.files import check_new, written_whole
from qwenvl.inspection.flags import add_dataset_flags, record_files
from qwenvl.types import ClipMeta, LibraryCount, LibrarySize, Record

# Keys of a row that a record is made of. Other keys are copied as they are.
OWN_KEYS = {"id", "conversations", "messages", "prompt", "video", "videos", "image", "images", "meta", "solution"}
OWN_KEYS |= {"completion", *FRAME_KEYS, *SYSTEM_KEYS}
OWN_KEYS |= {"frame_cnts", "dynamic_sample", "frame_times"}
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}

_Row = dict[str, Any]


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    parser.add_argument("out", help="a path that ends in .json or .jsonl")


def run(args: argparse.Namespace) -> int:
    """Write the records of the data set to ``args.out``."""
    check_new(args.out, "OUT")
    print(write_records(chain.from_iterable(record_files(args)), Path(args.out)))
    return 0


def write_records(records: Iterable[Record], path: Path) -> str:
    """Write records to a file, one record at a time in memory: a JSON array, or with ``.jsonl`` one object per line.

    Media inside the file's folder are written as relative paths, others in full. Bytes are copied to ``NAME.media``.

    Returns:
        What was written, in lines.

    Raises:
        ValueError: another suffix.
    """
    kind = path.suffix.lower()
    if kind not in (".json", ".jsonl"):
        raise ValueError(
            f"{path}: expected a name that ends in .json or .jsonl; other kinds are made of these by "
            "datasets.load_dataset('json', data_files=...), such as .to_parquet(...)"
        )
    root, folder = os.path.realpath(path.parent), path.with_name(path.name + ".media")
    copied, outside = set[int](), set[int]()  # hashes of paths

    def media(name: str) -> Any:
        """The path to write. For a clip that is a list of frames: the list of their paths."""
        if (frames := frame_list(name)) is not None:
            return [media(frame) for frame in frames]
        if Path(name).is_relative_to(root):
            return os.path.relpath(name, root)
        if not Path(name).is_relative_to(media_cache()):
            outside.add(hash(name))
            return name
        copy = folder / Path(name).name
        if hash(name) not in copied:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(name, copy)
            copied.add(hash(name))
        return os.path.relpath(copy, root)

    count, array = 0, kind == ".json"
    with written_whole(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        file.write("[\n" if array else "")
        for count, record in enumerate(records, start=1):
            file.write((",\n" if array and count > 1 else "") + _json(row_of(record, media)) + "\n" * (not array))
        file.write("\n]\n" if array else "")
    lines = [f"wrote {counted(count, 'record')} to {path}"]
    if copied:
        lines.append(f"copied {len(copied):,} media that were part of the records to {folder}")
    if outside:
        lines.append(
            f"{len(outside):,} media lie outside of its folder and are named in full: read it with "
            "--allow_outside_media, or give it a media_root in a catalog"
        )
    return "\n".join(lines)


def row_of(record: Record, media: Callable[[str], Any]) -> _Row:
    """A record in the conversations form, with the paths that ``media`` gives. A number as id stays one."""
    own = record.fields.get("id")
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in record.messages]
    row: _Row = {"id": own if isinstance(own, int) and not isinstance(own, bool) else record.id}
    row["conversations"] = [*turns, *([{"from": "gpt", "value": record.solution}] if record.solution else [])]
    settings = {
        "video": [_clip_settings(meta) for meta in record.clip_meta],
        "image": [_given(size) for size in record.image_sizes] or [{}] * len(record.images),
    }
    for key, paths in (("video", record.videos), ("image", record.images)):
        if paths:  # a single list of frames is a list in a list
            # Settings in the words of qwen_vl_utils stand in an object beside the path, which gives them this meaning.
            written = [
                {key: media(path), **own} if own else media(path)
                for path, own in zip(paths, settings[key], strict=True)
            ]
            row[key] = written[0] if len(written) == 1 and not isinstance(written[0], list) else written
    if any(record.clip_meta):
        metas = [_meta_row(meta) for meta in record.clip_meta]
        row["meta"] = metas[0] if len(metas) == 1 else metas
    return row | {name: value for name, value in record.fields.items() if name not in OWN_KEYS}


def _json(value: Any) -> str:
    """JSON, with bytes as base64 and dates and the like as text."""
    as_text = lambda other: base64.b64encode(other).decode() if isinstance(other, bytes) else str(other)
    return json.dumps(value, ensure_ascii=False, default=as_text)


def _meta_row(meta: ClipMeta | None) -> _Row | None:
    if meta is None:
        return None
    row = _given(meta)
    row.pop("count", None)
    row.pop("size", None)
    if counts := row.pop("frame_counts", None):
        row = {"frame_cnts": [int(count) if count.is_integer() else count for count in counts]} | row
    return row


def _clip_settings(meta: ClipMeta | None) -> _Row:
    """The settings of a clip in the words of ``qwen_vl_utils``."""
    if meta is None:
        return {}
    settings = _given(meta.count) | _given(meta.size)
    if settings.pop("listed", False) and meta.frames_fps is not None:
        settings["sample_fps"] = meta.frames_fps
    if settings.pop("beside_turns", False):
        for key in ("nframes", "fps"):  # it stays beside the turns, with the other fields of the row
            settings.pop(key, None)
    return settings


def _given(settings: ClipMeta | LibraryCount | LibrarySize | None) -> _Row:
    """The settings that are not at their defaults."""
    if settings is None:
        return {}
    return {name: value for name, value in vars(settings).items() if value is not None and value is not False}
