"""Rows of an annotation file to validated records.

A row of the conversations format:

    {"id": 17, "conversations": [{"from": "human", "value": "<video>\\nWhich steps?"},
                                 {"from": "gpt", "value": "<answer>(1) take the lid</answer>"}],
     "video": "clips/17.mp4",
     "meta": {"frame_cnts": [30, 45], "min_frames": 4, "max_frames": 6, "dynamic_sample": true}}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qwenvl.data.catalog import DatasetSource
from qwenvl.data.seeds import stable_random
from qwenvl.types import ClipMeta, Message, Record, Role

ROLES: dict[str, Role] = {"system": "system", "human": "user", "gpt": "assistant"}
MEDIA_TAG = re.compile(r"<(video|image)>")
# A prompt that spells these out would be taken for media by the model's processor.
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
META_KEYS = ("frame_cnts", "min_frames", "max_frames", "dynamic_sample")

SolutionCheck = Callable[[str], "str | None"]


class RecordError(ValueError):
    """A row that can't become a record; the message says where, what was expected and what was found."""


def read_records(
    source: DatasetSource,
    *,
    seed: int,
    allow_outside_media: bool = False,
    check_solution: SolutionCheck | None = None,
) -> list[Record]:
    """Read and validate the records of one data set, in the order of the file.

    Args:
        seed: of the choice of rows when ``source.percent`` is below 100.
        allow_outside_media: let media paths leave ``source.media_root``.
        check_solution: given a solution, says in a sentence why it can't be scored, or None; rewards provide it.

    Raises:
        RecordError: on the first bad row, beginning with its file and place.
    """
    rows = list(read_rows(source.annotation_path))
    if not rows:
        raise RecordError(f"{source.annotation_path}: no records in the file")
    if source.percent < 100:
        count = max(1, round(len(rows) * source.percent / 100))
        chosen = stable_random(seed, "percent", source.name).sample(range(len(rows)), count)
        rows = [rows[i] for i in sorted(chosen)]
    media_root = Path(os.path.realpath(source.media_root))
    records: list[Record] = []
    place_of: dict[str, str] = {}
    for where, default_id, row in rows:
        record = parse_record(
            row,
            where=where,
            default_id=default_id,
            media_root=media_root,
            allow_outside_media=allow_outside_media,
            check_solution=check_solution,
        )
        if record.id in place_of:
            raise RecordError(
                f"{where}.id: {record.id!r} is already the id of {place_of[record.id]}; give each record its own, or "
                "leave `id` out of all to have them numbered"
            )
        place_of[record.id] = where
        records.append(record)
    return records


def read_rows(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield (where, default id, decoded JSON) of each row; a file that begins with "[" is an array, else JSON lines.

    Raises:
        RecordError: not UTF-8, or not JSON; with line and column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: expected UTF-8 text, byte {error.start} is not") from None
    if text.lstrip()[:1] == "[":
        for i, row in enumerate(_parse_json(text, str(path))):
            yield f"{path}[{i}]", f"{path.stem}-{i}", row
        return
    for i, line in enumerate(text.split("\n")):
        if line.strip():
            yield f"{path}:{i + 1}", f"{path.stem}-{i}", _parse_json(line, f"{path}:{i + 1}")


def parse_record(
    row: Any,
    *,
    where: str,
    default_id: str,
    media_root: Path,
    allow_outside_media: bool = False,
    check_solution: SolutionCheck | None = None,
) -> Record:
    """Validate one row of the conversations format; ``media_root`` has its links resolved.

    Raises:
        RecordError: beginning with ``where``.
    """
    if not isinstance(row, dict):
        raise RecordError(f"{where}: expected an object with `conversations`, got {_kind(row)}")
    messages, solution = _parse_conversations(row.get("conversations"), f"{where}.conversations")
    videos = _media_paths(row, "video", where, media_root, allow_outside_media)
    images = _media_paths(row, "image", where, media_root, allow_outside_media)
    _check_tags(messages, videos, images, row, where)
    if check_solution is not None and (problem := check_solution(solution)):
        raise RecordError(f"{where}: the solution {solution[:200]!r} can't be scored: {problem}")
    return Record(
        id=_parse_id(row.get("id"), where, default_id),
        messages=messages,
        solution=solution,
        videos=videos,
        images=images,
        clip_meta=_parse_metas(row.get("meta"), len(videos), f"{where}.meta"),
        fields=row,
        where=where,
    )


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: not valid JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise RecordError(f"{where}: not readable JSON: nested too deeply") from None


def _parse_id(value: Any, where: str, default_id: str) -> str:
    if value is None:
        return default_id
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise RecordError(f"{where}.id: expected a string or a whole number, got {_kind(value)}")
    return str(value)


def _parse_conversations(turns: Any, where: str) -> tuple[tuple[Message, ...], str]:
    """The prompt and the solution."""
    if not isinstance(turns, list) or not turns:
        raise RecordError(f"{where}: expected a list of turns {{'from': ..., 'value': ...}}, got {_kind(turns)}")
    messages = [_parse_turn(turn, f"{where}[{i}]") for i, turn in enumerate(turns)]
    for i, message in enumerate(messages[1:], start=1):
        if message.role == "system":
            raise RecordError(f"{where}[{i}].from: a system turn must be the first, this is turn {i + 1}")
    *prompt, last = messages
    if last.role != "assistant":
        raise RecordError(f'{where}[{len(prompt)}].from: expected the last turn to be "gpt", the solution')
    if not last.text.strip():
        raise RecordError(f"{where}[{len(prompt)}].value: the solution is empty")
    if not prompt or prompt[-1].role != "user":
        raise RecordError(f'{where}: expected a "human" turn before the last "gpt" turn')
    return tuple(prompt), last.text


def _parse_turn(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict):
        raise RecordError(f"{where}: expected {{'from': ..., 'value': ...}}, got {_kind(turn)}")
    speaker, text = turn.get("from"), turn.get("value")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise RecordError(f'{where}.from: expected "human" or "gpt" (or a first "system"), got {json.dumps(speaker)}')
    if not isinstance(text, str):
        raise RecordError(f"{where}.value: expected a string, got {_kind(text)}")
    for token in VISION_TOKENS:
        if token in text:
            raise RecordError(
                f"{where}.value: contains the model's own token {token}; write <video> or <image> where media belongs"
            )
    return Message(ROLES[speaker], text)


def _media_paths(
    row: dict[str, Any], key: str, where: str, media_root: Path, allow_outside_media: bool
) -> tuple[str, ...]:
    value = row.get(key)
    if value is None:
        return ()
    paths = value if isinstance(value, list) else [value]
    resolved = []
    for i, path in enumerate(paths):
        place = f"{where}.{key}[{i}]" if isinstance(value, list) else f"{where}.{key}"
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            raise RecordError(f"{place}: expected a path, got {_kind(path)}")
        full = Path(os.path.realpath(media_root / path))
        if not allow_outside_media and not full.is_relative_to(media_root):
            raise RecordError(
                f"{place}: {path!r} leads out of the media root {media_root}; move the file or the root, or pass "
                "--allow_outside_media"
            )
        resolved.append(str(full))
    return tuple(resolved)


def _check_tags(
    messages: tuple[Message, ...],
    videos: tuple[str, ...],
    images: tuple[str, ...],
    row: dict[str, Any],
    where: str,
) -> None:
    """As many tags in the prompt as media."""
    tags = [tag for message in messages for tag in MEDIA_TAG.findall(message.text)]
    for key, media in (("video", videos), ("image", images)):
        if tags.count(key) != len(media):
            plural = f"; the row has `{key}s`, did you mean `{key}`?" if f"{key}s" in row and not media else ""
            raise RecordError(
                f"{where}: the prompt has {tags.count(key)} <{key}> tags but `{key}` names {len(media)} files; "
                f"expected one tag for each{plural}"
            )


def _parse_metas(value: Any, n_videos: int, where: str) -> tuple[ClipMeta | None, ...]:
    """One entry per video; an object speaks of the only video, a list of each (null where nothing is known)."""
    if value is None:
        return (None,) * n_videos
    if isinstance(value, list):
        if len(value) != n_videos:
            raise RecordError(f"{where}: expected one entry per video ({n_videos}), got {len(value)}")
        return tuple(None if meta is None else _parse_meta(meta, f"{where}[{i}]") for i, meta in enumerate(value))
    if n_videos != 1:
        raise RecordError(f"{where}: expected a list, one entry for each of {n_videos} videos, got {_kind(value)}")
    return (_parse_meta(value, where),)


def _parse_meta(meta: Any, where: str) -> ClipMeta:
    if not isinstance(meta, dict):
        raise RecordError(f"{where}: expected an object with some of {', '.join(META_KEYS)}, got {_kind(meta)}")
    counts = meta.get("frame_cnts")
    if counts is not None:
        if not isinstance(counts, list) or not counts:
            raise RecordError(f"{where}.frame_cnts: expected a list of frame counts, got {_kind(counts)}")
        for i, count in enumerate(counts):
            if isinstance(count, bool) or not isinstance(count, int | float) or not 0 < count < 1e9:
                raise RecordError(f"{where}.frame_cnts[{i}]: expected a number of frames above 0, got {_kind(count)}")
        counts = tuple(float(count) for count in counts)
    low, high = (_frame_bound(meta, key, where) for key in ("min_frames", "max_frames"))
    if low is not None and high is not None and low > high:
        raise RecordError(f"{where}: expected min_frames <= max_frames, got {low} and {high}")
    dynamic = meta.get("dynamic_sample", False)
    if not isinstance(dynamic, bool):
        raise RecordError(f"{where}.dynamic_sample: expected true or false, got {_kind(dynamic)}")
    return ClipMeta(counts, low, high, dynamic)


def _frame_bound(meta: dict[str, Any], key: str, where: str) -> int | None:
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 1:
        raise RecordError(f"{where}.{key}: expected a whole number of frames of at least 1, got {_kind(value)}")
    return int(value)


def _kind(value: Any) -> str:
    """A value as an error shows it: its JSON type and its beginning."""
    if value is None:
        return "nothing"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return f"{names.get(type(value), type(value).__name__)} {shown if len(shown) <= 80 else shown[:77] + '...'}"
