"""The rows of a source: of a file by its content, of a folder, of the hub, or of what a program hands over.

Pictures and clips of tables stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import HUB_PREFIX
from qwenvl.data.records.parse import Row, Rows
from qwenvl.data.records.presets import activitynet_rows, charades_row
from qwenvl.data.records.text import BOM, text_rows
from qwenvl.files import cache_root, require

EXPECTED = "expected what --dataset_use takes, rows (a list of dicts or a data set of dicts) or a GRPODataset"
MAX_OBJECT_BYTES = 2**30  # of a file that is one JSON object: it takes several times that in memory
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


def open_rows(source: Path | str) -> Rows:
    """The rows of a file. Its content tells whether it is a JSON array, JSON lines, CSV or parquet.

    Args:
        source: a file, a folder that ``datasets``' ``save_to_disk`` wrote, or ``hf:name`` or ``hf:name:split``. The
            default split is ``train``.

    Raises:
        RecordError: the file as a whole can't be read.
    """
    if (name := str(source)).startswith(HUB_PREFIX):
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
    if is_parquet:  # of which the library makes a copy in the cache folder, once for each state of the file
        cache = str(cache_root() / "tables")
        return _loaded(lambda datasets: datasets.Dataset.from_parquet(name, cache_dir=cache), name, path.stem)
    return _object_rows(path) or _charades_rows(path) or text_rows(path)


def _object_rows(path: Path) -> Rows | None:
    """The rows of a ``.json`` file that is one object, ``{"data": [...]}`` or of ActivityNet. None for other files."""
    if ".json" not in path.suffixes:
        return None
    try:
        with open(path, "rb") as file:
            if not file.read(64).removeprefix(BOM).lstrip().startswith(b"{"):
                return None
            file.seek(0)
            first, more = file.readline(MAX_OBJECT_BYTES), file.readline()
            if more.strip():
                with suppress(ValueError, RecursionError):
                    json.loads(first)
                    return None  # JSON lines
            content = json.loads((first + more + file.read(MAX_OBJECT_BYTES)).removeprefix(BOM))
    except (ValueError, RecursionError):  # JSON lines with damage, which ``text_rows`` reports
        return None
    listed = content.get("data")
    if isinstance(listed, list) and all(isinstance(row, dict) for row in listed):
        return _listed(path, [(f" data[{i}]", row) for i, row in enumerate(listed)])
    try:
        return _listed(path, [(f" {place}", row) for place, row in activitynet_rows(content)])
    except (TypeError, KeyError):
        return None


def _charades_rows(path: Path) -> Rows | None:
    """The rows of a text file of Charades-STA, a line each. None for files of other kinds."""
    with open(path, "rb") as file:
        head = file.read(4096).removeprefix(BOM).lstrip().partition(b"\n")[0]
        if "sentence" not in charades_row(head.decode("utf-8", "replace")):
            return None
        file.seek(0)
        lines = file.read().decode("utf-8-sig", "replace").splitlines()
    return _listed(path, [(str(i), charades_row(line)) for i, line in enumerate(lines, start=1) if line.strip()])


def _listed(path: Path, rows: list[tuple[str, dict[str, Any]]]) -> Rows:
    """Rows by their places in the file."""
    listed = [Row(f"{path}:{place}", f"{path.stem}-{i}", row) for i, (place, row) in enumerate(rows)]
    return Rows(len(listed), path.stat().st_size, listed.__getitem__)


def _loaded(load: Callable[[Any], Any], where: str, stem: str) -> Rows:
    """The rows of a table that ``load`` makes by the ``datasets`` library.

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
    return Rows(len(data), data.data.nbytes, partial(_table_row, data.with_format("arrow"), where, stem))


def _table_row(data: Any, where: str, stem: str, index: int) -> Row:
    """Tables give every row every column: one without a value counts as missing."""
    (values,) = data[index].to_pylist()
    return Row(f"{where}[{index}]", f"{stem}-{index}", {name: one for name, one in values.items() if one is not None})


def given_rows(given: Any, name: str) -> Rows | None:
    """The rows that a program hands over, None where it hands over something else, such as samples.

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
        return None  # of samples
    return Rows(len(given), 0, partial(_given_row, given, name))


def _given_row(given: Any, name: str, index: int) -> Row:
    row = given[index]
    if isinstance(row, dict):
        row = {key: _plain(one) for key, one in row.items() if one is not None}
    return Row(f"{name}[{index}]", f"{name}-{index}", row)


def _plain(value: Any) -> Any:
    """A value with its pictures as the bytes of a PNG file, which loses nothing."""
    if isinstance(value, Image):
        data = io.BytesIO()
        (value if value.mode in _PNG_MODES else value.convert("RGB")).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
