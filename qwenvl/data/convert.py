"""Records back to rows, in each of the forms and kinds of file that can be read."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from qwenvl.types import ClipMeta, Record

# What a record is made of; other keys of its row are carried over as they are.
_OWN_KEYS = {"id", "conversations", "messages", "prompt", "video", "videos", "image", "images", "meta", "solution"}
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}


def write_records(records: Iterable[Record], path: Path) -> int:
    """Write records, as they come, to a file whose kind its name tells, and return their number.

    ``.json`` and ``.jsonl`` (also with ``.gz``) hold the conversations form, ``.parquet`` the messages form, ``.csv``
    and ``.tsv`` one question a row. Media inside the file's folder are written as paths relative to it, others in full.

    Raises:
        ValueError: another ending; or a record that the kind of file can't hold.
    """
    name = path.name.lower().removesuffix(".gz")
    writers: dict[str, Callable[[Iterator[Record], Path], int]] = {
        ".json": _write_array,
        ".jsonl": _write_lines,
        ".parquet": _write_parquet,
        ".csv": _write_csv,
        ".tsv": _write_csv,
    }
    suffix = Path(name).suffix
    if suffix not in writers or (name != path.name.lower() and suffix not in (".json", ".jsonl")):
        raise ValueError(f"{path}: expected a name that ends in {', '.join(writers)}, .json.gz or .jsonl.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")  # a run that fails leaves no file that looks whole
    try:
        count = writers[suffix](iter(records), partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def conversations_row(record: Record, folder: Path) -> dict[str, Any]:
    """The record in the conversations form, for a file in ``folder``."""
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in record.messages]
    row: dict[str, Any] = {"id": record.id, "conversations": [*turns, {"from": "gpt", "value": record.solution}]}
    for key, paths in (("video", record.videos), ("image", record.images)):
        if paths:
            written = [_portable(path, folder) for path in paths]
            row[key] = written[0] if len(written) == 1 and isinstance(written[0], str) else written
    if any(record.clip_meta):
        metas = [_meta_row(meta) for meta in record.clip_meta]
        row["meta"] = metas[0] if len(metas) == 1 else metas
    return row | _other_fields(record)


def messages_row(record: Record, folder: Path) -> dict[str, Any]:
    """The record in the messages form, for a file in ``folder``."""
    row: dict[str, Any] = {"id": record.id}
    row["messages"] = [{"role": message.role, "content": message.text} for message in record.messages]
    row["solution"] = record.solution
    if record.videos:
        row["videos"] = [_portable(path, folder) for path in record.videos]
    if record.images:
        row["images"] = [_portable(path, folder) for path in record.images]
    if any(record.clip_meta):
        row["meta"] = [_meta_row(meta) for meta in record.clip_meta]
    return row | _other_fields(record)


def _write_array(records: Iterator[Record], path: Path) -> int:
    count = 0
    with _open(path) as file:
        file.write("[")
        for record in records:
            file.write(",\n " if count else "\n ")
            file.write(json.dumps(conversations_row(record, path.parent), ensure_ascii=False))
            count += 1
        file.write("\n]\n")
    return count


def _write_lines(records: Iterator[Record], path: Path) -> int:
    count = 0
    with _open(path) as file:
        for record in records:
            file.write(json.dumps(conversations_row(record, path.parent), ensure_ascii=False) + "\n")
            count += 1
    return count


def _write_csv(records: Iterator[Record], path: Path) -> int:
    count = 0
    with _open(path, newline="") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.suffixes else ",")
        writer.writerow(["id", "prompt", "solution", "video", "image"])
        for record in records:
            media = [[_portable(medium, path.parent) for medium in paths] for paths in (record.videos, record.images)]
            if len(record.messages) > 1 or any(record.clip_meta) or any(len(paths) > 1 for paths in media):
                raise ValueError(
                    f"{record.where}: a CSV row holds one question with at most one clip and image, no meta"
                )
            writer.writerow([record.id, record.messages[0].text, record.solution, *("".join(paths) for paths in media)])
            count += 1
    return count


def _write_parquet(records: Iterator[Record], path: Path) -> int:
    try:
        from datasets import Dataset
    except ImportError:
        raise ValueError("parquet files need the package datasets: `pip install qwenvl[formats]`") from None
    rows = [messages_row(record, path.parent) for record in records]
    columns = dict.fromkeys(name for row in rows for name in row)
    Dataset.from_dict({name: [row.get(name) for row in rows] for name in columns}).to_parquet(str(path))
    return len(rows)


def _open(path: Path, newline: str | None = None) -> TextIO:
    zipped = ".gz" in path.suffixes
    return (gzip.open if zipped else open)(path, "wt", encoding="utf-8", newline=newline)


def _portable(path: str, folder: Path) -> Any:
    from qwenvl.data.media_source import frame_list

    if (frames := frame_list(path)) is not None:
        return [_portable(frame, folder) for frame in frames]
    root = os.path.realpath(folder)
    return os.path.relpath(path, root) if Path(path).is_relative_to(root) else path


def _meta_row(meta: ClipMeta | None) -> dict[str, Any] | None:
    if meta is None:
        return None
    row = {"frame_cnts": list(meta.frame_counts)} if meta.frame_counts is not None else {}
    row |= {name: value for name, value in vars(meta).items() if name != "frame_counts" and value is not None}
    return row if row.pop("dynamic_sample") is False else row | {"dynamic_sample": True}


def _other_fields(record: Record) -> dict[str, Any]:
    known = _OWN_KEYS | {"video_start", "video_end", "video_fps", "frames_fps"}
    return {name: value for name, value in record.fields.items() if name not in known and _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
