"""Opens the rows of a source: a file by its content, a folder, a data set of the hub, or rows that a program gives.

Pictures and clips of tables stay the bytes that they are, since decoding them here would be slow and change them.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ImageOps
from PIL.Image import Image

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import HUB_PREFIX
from qwenvl.data.records.keys import (
    ASKING_KEYS,
    MEDIA_KEYS,
    SOLUTION_KEYS,
    TURN_KEYS,
    is_named_like_a_medium,
    medium_in,
)
from qwenvl.data.records.parse import Row, Rows
from qwenvl.data.records.text import BOM, decode_json, lower_suffixes, text_rows, whole_lines
from qwenvl.files import cache_root, require

EXPECTED = "expected what --dataset_use takes, rows (a list of dicts or a data set of dicts) or a GRPODataset"
MAX_OBJECT_BYTES = 2**30  # of a file that is one JSON object: it takes several times that in memory
_CHARADES = re.compile(r"(\S+) ([0-9]+\.?[0-9]*) ([0-9]+\.?[0-9]*)\s?##\s?(.+)")  # clip, start, end, sentence
# Modes of Pillow that PNG holds. Pictures of all other modes become RGB.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


def open_rows(source: Path | str) -> Rows:
    """The rows of a file. Its content tells whether it is a JSON array, JSON lines, CSV or parquet.

    Args:
        source: a file, a folder that ``datasets``' ``save_to_disk`` wrote, or ``hf:name`` or ``hf:name:split``. The
            default split is ``train``.

    Raises:
        RecordError: the file as a whole can't be read.
    """
    name = str(source)
    if name.startswith(HUB_PREFIX):
        repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
        stem = repository.rpartition("/")[2]
        return _loaded(lambda datasets: datasets.load_dataset(repository, split=split or "train"), name, stem)
    path = Path(source)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            clips = f"of clips, qwenvl data from-folder {path} makes records"
            raise RecordError(f"{path}: expected a folder written by `save_to_disk`; {clips}", "data set")
        return _loaded(lambda datasets: datasets.load_from_disk(str(path)), str(path), path.name)
    if path.exists() and not path.is_file():
        message = "expected a regular file, this is a pipe, socket or device; write the records to a file first"
        raise RecordError(f"{path}: {message}", "file")
    with open(path, "rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        # The library makes a copy in the cache folder for each path and time of change. Another file may be put there
        # with the time of the first one (cp -p), so each state of the file has a folder of its own.
        status = path.stat()
        state = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"
        cache = str(cache_root() / "tables" / state)
        return _loaded(lambda datasets: datasets.Dataset.from_parquet(name, cache_dir=cache), name, path.stem)
    return _object_rows(path) or _charades_rows(path) or text_rows(path)


def _object_rows(path: Path) -> Rows | None:
    """The rows of a file that is one object: ``{"data": [...]}``, of ActivityNet, or a record. None for other files.

    Raises:
        RecordError: the object holds no list of records, or the file is several objects over several lines.
    """
    suffixes = lower_suffixes(path)
    if not {".json", ".jsonl"} & set(suffixes):
        return None
    with open(path, "rb") as file:
        if not file.read(64).removeprefix(BOM).lstrip().startswith(b"{"):
            return None
        file.seek(0)
        first = file.readline(MAX_OBJECT_BYTES)
        more = file.readline()
        spans_lines = first.removeprefix(BOM).strip() == b"{"  # which no line of JSON lines is
        has_json_lines = bool(more.strip()) and _is_json(first.removeprefix(BOM))
        may_be_one_object = spans_lines or (".json" in suffixes and not has_json_lines)
        if not may_be_one_object:
            return None
        text = (first + more + file.read(MAX_OBJECT_BYTES)).removeprefix(BOM)
    try:
        content = decode_json(text.decode())
    except (ValueError, RecursionError) as error:
        if spans_lines or not isinstance(error, json.JSONDecodeError):  # the latter: a key that stands twice
            raise _no_object(path, error) from None
        return None  # JSON lines with damage, which ``text_rows`` reports
    # Of an object on one line ``text_rows`` makes the same record.
    as_one_record = _listed(path, [("1", content)]) if spans_lines else None
    keys_of_lists = [key for key, value in content.items() if _is_list_of_objects(value)]
    if _is_record(content, keys_of_lists):
        return as_one_record
    if len(keys_of_lists) == 1:
        key = keys_of_lists[0]
        _check_no_medium_beside(content, key, path)
        return _listed(path, [(f" {key}[{i}]", row) for i, row in enumerate(content[key])])
    try:
        return _listed(path, [(f" {place}", row) for place, row in activitynet_rows(content)])
    except (TypeError, KeyError):
        pass
    if not content or not all(isinstance(value, dict | list) for value in content.values()):
        return as_one_record
    keys = ", ".join(list(content)[:3])
    if len(content) > 3:
        keys += ", ..."
    raise RecordError(
        f"{path}: one object with the keys {keys}, and not a list of records; write each of its entries as a record, "
        "one object a line (docs/public_sets.md has the lines of Python)",
        "JSON",
    )


def _is_json(text: bytes) -> bool:
    """Whether a line is a JSON value by itself."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_record(content: dict[str, Any], keys_of_lists: list[str]) -> bool:
    """Whether an object is a record itself, with turns or a timeline, and not one that holds a list of records."""
    of_a_record = (*TURN_KEYS, *SOLUTION_KEYS)
    for key in keys_of_lists:
        holds_records = any(name in content[key][0] for name in TURN_KEYS)
        if key in of_a_record and not holds_records:
            return True
    asking = (*TURN_KEYS, *ASKING_KEYS)
    asks = any(isinstance(content.get(name), str) for name in asking)
    return asks and not any(name in content[key][0] for key in keys_of_lists for name in asking)


def _check_no_medium_beside(content: dict[str, Any], list_key: str, path: Path) -> None:
    """Raise RecordError where a clip or a picture stands beside the list of records, which would lack it."""
    for key, value in content.items():
        if key != list_key and (key in MEDIA_KEYS or (is_named_like_a_medium(key) and medium_in(value))):
            raise RecordError(
                f"{path}: one object with `{key}` beside the list `{list_key}`; write the medium into each record of "
                "the list",
                "JSON",
            )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _no_object(path: Path, error: ValueError | RecursionError) -> RecordError:
    """The error about a file that begins with the line ``{`` and can't be read as one object."""
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        reason = "objects that take several lines each; expected one object a line: jq -c . IN.json > OUT.jsonl"
    elif isinstance(error, json.JSONDecodeError):
        reason = f"not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
    else:
        reason = "not valid JSON: nested too deeply" if isinstance(error, RecursionError) else str(error)
    return RecordError(f"{path}: {reason}", "JSON")


def _charades_rows(path: Path) -> Rows | None:
    """The rows of a text file of Charades-STA, a line each. None for files of other kinds."""
    with open(path, "rb") as file:
        first_line = file.read(4096).removeprefix(BOM).lstrip().partition(b"\n")[0]
        if "sentence" not in charades_row(first_line.decode("utf-8", "replace")):
            return None
    lines = whole_lines(path)
    return _listed(path, [(str(i), charades_row(line)) for i, line in enumerate(lines, start=1) if line.strip()])


def activitynet_rows(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and row of each sentence of an object that holds ``timestamps`` and ``sentences`` by clip.

    Raises:
        TypeError, KeyError: an object of another format.
    """
    for clip, entry in content.items():
        for i, (times, sentence) in enumerate(zip_longest(entry["timestamps"], entry["sentences"])):
            row = {"video_id": clip, "duration": entry.get("duration"), "timestamp": times, "sentence": sentence}
            yield f"{clip}[{i}]", row


def charades_row(line: str) -> dict[str, Any]:
    """The row of ``3MSZA 24.3 30.4##person turn a light on.``, and a row that is refused of any other line."""
    found = _CHARADES.fullmatch(line.strip())
    if found is None:
        return {"line": line}
    return {"video_id": found[1], "start": float(found[2]), "end": float(found[3]), "sentence": found[4]}


def _listed(path: Path, rows: list[tuple[str, dict[str, Any]]]) -> Rows:
    """Rows in memory, each with its place in the file."""
    listed: list[Row] = []
    for number, (place, content) in enumerate(rows):
        listed.append(Row(where=f"{path}:{place}", default_id=f"{path.stem}-{number}", content=content))
    return Rows(length=len(listed), size=path.stat().st_size, row=listed.__getitem__)


def _loaded(load: Callable[[Any], Any], where: str, stem: str) -> Rows:
    """The rows of a table that ``load`` makes with the ``datasets`` library, which it is given.

    Raises:
        RecordError: the library is not installed, or the table can't be read or has several splits.
    """
    try:
        datasets = require("datasets", "formats")
        data = load(datasets)
    except ImportError as error:
        raise RecordError(f"{where}: {error}") from None
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise RecordError(f"{where}: can't be loaded: {error.__cause__ or error}", "data set") from None
    if isinstance(data, dict):
        raise RecordError(f"{where}: holds the splits {', '.join(data)}; name the folder of one of them", "data set")
    return table_rows(data, where, stem)


def table_rows(data: Any, where: str, stem: str) -> Rows:
    """The rows of a ``datasets.Dataset``, which is on disk or in memory as Arrow tables."""
    labels: dict[str, list[str]] = {}
    for name, feature in data.features.items():
        names = _label_names(feature)
        if names:
            labels[name] = names
    row = partial(_table_row, data.with_format("arrow"), labels, where, stem)
    return Rows(length=len(data), size=data.data.nbytes, row=row)


def _label_names(feature: Any) -> list[str] | None:
    """The names of the labels of a column, or of a column of lists of labels. None for all other columns."""
    inner = getattr(feature, "feature", feature)  # of a list
    return list(inner.names) if type(inner).__name__ == "ClassLabel" else None


def _table_row(data: Any, labels: dict[str, list[str]], where: str, stem: str, index: int) -> Row:
    """A row of a table. Labels are stored as numbers and become their names.

    Tables give every row every column, so that a column without a value counts as missing.
    """
    (values,) = data[index].to_pylist()
    content: dict[str, Any] = {}
    for name, value in values.items():
        if name in labels:
            value = _named(value, labels[name])
        if value is not None:
            content[name] = value
    return Row(where=f"{where}[{index}]", default_id=f"{stem}-{index}", content=content)


def _named(value: Any, names: list[str]) -> Any:
    """The name of a label, or of each label in a list. -1 stands for a row without a label."""
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def given_rows(given: Any, name: str) -> Rows | None:
    """The rows that a program gives, None where it gives something else, such as samples.

    Args:
        given: a list of dicts, a ``datasets.Dataset``, or one of torch whose items are dicts.
        name: of these rows, for errors.

    Raises:
        RecordError: several splits, or a stream.
    """
    from torch.utils.data import Dataset, IterableDataset  # late: reading files needs no torch

    datasets = sys.modules.get("datasets")  # who hands over one of its data sets has imported it
    known = (datasets.Dataset, datasets.IterableDataset, datasets.DatasetDict) if datasets else ()
    if isinstance(given, known) and isinstance(given, dict):
        raise RecordError(f"{name}: holds the splits {', '.join(given)}; give one of them", "data set")
    if not isinstance(given, (list, tuple, Dataset, *known)):
        return None
    if isinstance(given, IterableDataset) or not hasattr(given, "__len__"):
        raise RecordError(
            f"{name}: an IterableDataset has no length and no order to resume in; give its rows as a list: "
            "list(stream.take(10000))",
            "data set",
        )
    if isinstance(given, known) and given.format["type"] != "custom":
        return table_rows(given, name, name)
    if isinstance(given, Dataset) and len(given) and not isinstance(given[0], dict):
        return None  # samples
    return Rows(length=len(given), size=0, row=partial(_given_row, given, name))


def _given_row(given: Any, name: str, index: int) -> Row:
    """A row that a program gives, without its empty columns."""
    row = given[index]
    if isinstance(row, dict):
        row = {key: _plain(one) for key, one in row.items() if one is not None}
    return Row(f"{name}[{index}]", f"{name}-{index}", row)


def _plain(value: Any) -> Any:
    """A value with its pictures as the bytes of an upright PNG file, which loses nothing, and numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim <= 2:  # those of more dimensions are pictures
        return [_plain(one) for one in value]
    if isinstance(value, Image):
        data = io.BytesIO()
        picture = ImageOps.exif_transpose(value)  # the file that is made here has no EXIF data
        picture = picture if picture.mode in _PNG_MODES else picture.convert("RGB")
        picture.save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
