"""Rows of Arrow tables: parquet files, folders written by ``save_to_disk``, data sets of the hub.

Pictures and clips stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.rows import Row, Rows, stem_of
from qwenvl.files import cache_root, require

HUB_PREFIX = "hf:"


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
    return table_rows(data, str(path), stem_of(path))


def saved_rows(path: Path) -> Rows:
    """The rows of a folder that ``save_to_disk`` wrote.

    Raises:
        RecordError: the folder is another one, or holds several splits.
    """
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
    return Rows(len(data), data.data.nbytes, partial(_row, data.with_format("arrow"), where, stem))


def require_format(module: str, what: str) -> Any:
    """A module of the extra ``formats``.

    Raises:
        RecordError: it is not installed. The message says what to install.
    """
    try:
        return require(module, "formats")
    except ImportError as error:
        raise RecordError(f"{what}: {error}") from None


def _row(data: Any, where: str, stem: str, index: int) -> Row:
    return Row(f"{where}[{index}]", f"{stem}-{index}", partial(_values, data, index))


def _values(data: Any, index: int) -> dict[str, Any]:
    """The values of a row. Tables give every row every column: one without a value counts as missing."""
    (values,) = data[index].to_pylist()
    return {name: value for name, value in values.items() if value is not None}
