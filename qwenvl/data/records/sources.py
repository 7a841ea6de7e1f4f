"""The rows of a source: of a file by its content, of a folder, of the hub, or of what a program hands over.

Pictures and clips of tables stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from qwenvl.data.errors import RecordError, kind_of
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
        source: a file, a folder that ``datasets``' ``save_to_disk`` wrote, or ``hf:name`` or ``hf:name:split``.

    Raises:
        RecordError: the file as a whole can't be read.
    """
    if str(source).startswith(HUB_PREFIX):
        return hub_rows(str(source))
    path = Path(source)
    if path.is_dir():
        return saved_rows(path)
    if path.exists() and not path.is_file():
        message = "expected a regular file, this is a pipe, socket or device; write the records to a file first"
        raise RecordError(f"{path}: {message}", "file")
    with open(path, "rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    return parquet_rows(path) if is_parquet else _object_rows(path) or _charades_rows(path) or text_rows(path)


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
            if more.strip() and _is_json(first):
                return None
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
    listed = [Row(f"{path}:{place}", f"{path.stem}-{i}", partial(dict, row)) for i, (place, row) in enumerate(rows)]
    return Rows(len(listed), path.stat().st_size, listed.__getitem__)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parquet_rows(path: Path) -> Rows:
    """The rows of a parquet file. ``datasets`` makes a copy of it in the cache folder, once for each of its states.

    Raises:
        RecordError: not a readable parquet file.
    """
    datasets = require_format("datasets", "parquet files")
    try:
        data = datasets.Dataset.from_parquet(str(path), cache_dir=str(cache_root() / "tables"))
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        message = f"{path}: not a readable parquet file: {error.__cause__ or error}"
        raise RecordError(message, "parquet") from None
    return table_rows(data, str(path), path.stem)


def saved_rows(path: Path) -> Rows:
    """The rows of a folder that ``save_to_disk`` wrote.

    Raises:
        RecordError: the folder is another one, or holds several splits.
    """
    if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        message = f"expected a folder written by `save_to_disk`; of clips, qwenvl data from-folder {path} makes records"
        raise RecordError(f"{path}: {message}", "data set")
    datasets = require_format("datasets", "data sets saved to a folder")
    try:
        data = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: expected a data set written by `save_to_disk`: {error}", "data set") from None
    if not isinstance(data, datasets.Dataset):
        raise RecordError(f"{path}: holds the splits {', '.join(data)}; name the folder of one of them", "data set")
    return table_rows(data, str(path), path.name)


def hub_rows(name: str) -> Rows:
    """The rows of ``hf:name`` or ``hf:name:split``. The default split is ``train``.

    Raises:
        RecordError: the data set can't be loaded.
    """
    datasets = require_format("datasets", "data sets of the hub")
    repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
    try:
        data = datasets.load_dataset(repository, split=split or "train")
    except (OSError, ValueError) as error:  # its own errors are these
        raise RecordError(f"{name}: can't be loaded: {error}", "data set") from None
    return table_rows(data, name, repository.rpartition("/")[2])


def table_rows(data: Any, where: str, stem: str) -> Rows:
    """The rows of a ``datasets.Dataset``, which is on disk or in memory as Arrow tables."""
    return Rows(len(data), data.data.nbytes, partial(_table_row, data.with_format("arrow"), where, stem))


def require_format(module: str, what: str) -> Any:
    """A module of the extra ``formats``.

    Raises:
        RecordError: it is not installed. The message says what to install.
    """
    try:
        return require(module, "formats")
    except ImportError as error:
        raise RecordError(f"{what}: {error}") from None


def _table_row(data: Any, where: str, stem: str, index: int) -> Row:
    return Row(f"{where}[{index}]", f"{stem}-{index}", partial(_table_values, data, index))


def _table_values(data: Any, index: int) -> dict[str, Any]:
    """The values of a row. Tables give every row every column: one without a value counts as missing."""
    (values,) = data[index].to_pylist()
    return {name: value for name, value in values.items() if value is not None}


def given_rows(given: Any, name: str) -> Rows | None:
    """The rows that a program hands over, None where it hands over something else, such as samples.

    Args:
        given: a list of dicts, a ``datasets.Dataset``, or one of torch whose items are dicts.
        name: of these rows, for errors.

    Raises:
        RecordError: several splits, no rows, or a stream.
    """
    from torch.utils.data import Dataset, IterableDataset  # late: reading files needs no torch

    datasets = sys.modules.get("datasets")  # who hands over one of its data sets has imported it
    if datasets is not None and isinstance(given, dict) and hasattr(given, "num_rows"):
        raise RecordError(f"{name}: holds the splits {', '.join(given)}; give one of them", "data set")
    if datasets is not None and isinstance(given, datasets.Dataset) and given.format["type"] != "custom":
        return table_rows(given, name, name)
    if isinstance(given, IterableDataset) or (datasets is not None and isinstance(given, datasets.IterableDataset)):
        raise RecordError(
            f"{name}: an IterableDataset has no length and no order to resume in; give its rows as a list: "
            "list(stream.take(10000))",
            "data set",
        )
    sized = (list, tuple, Dataset) if datasets is None else (list, tuple, Dataset, datasets.Dataset)
    if not isinstance(given, sized) or not hasattr(given, "__len__"):
        return None
    if not len(given):
        raise RecordError(f"{name}: no rows", "data set")
    if not isinstance(given[0], dict):
        if isinstance(given, Dataset):
            return None
        raise RecordError(f"{name}[0]: expected a row, a dict, got {kind_of(given[0])}")
    return Rows(len(given), 0, partial(_given_row, given, name))


def _given_row(given: Any, name: str, index: int) -> Row:
    return Row(f"{name}[{index}]", f"{name}-{index}", partial(_plain_row, given, index))


def _plain_row(given: Any, index: int) -> Any:
    row = given[index]
    return {key: _plain(one) for key, one in row.items() if one is not None} if isinstance(row, dict) else row


def _plain(value: Any) -> Any:
    """A value with its pictures as the bytes of a PNG file, which loses nothing."""
    if isinstance(value, Image):
        data = io.BytesIO()
        (value if value.mode in _PNG_MODES else value.convert("RGB")).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
