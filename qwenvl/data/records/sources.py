"""The rows of a source: of a file by its content, of a folder, of the hub, or of what a program hands over.

Pictures and clips of tables stay the bytes that they are, since decoding here would change and slow them.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from PIL.Image import Image

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records.catalog import HUB_PREFIX, DatasetSource, resolve_datasets
from qwenvl.data.records.presets import PRESETS, Values
from qwenvl.data.records.rows import Row, Rows, stem_of
from qwenvl.data.records.text import BOM, bytes_of, text_rows
from qwenvl.files import cache_root, require

EXPECTED = "expected what --dataset_use takes, rows (a list of dicts or a data set of dicts) or a GRPODataset"
MAX_WHOLE_BYTES = 2**30  # of a file that is read as a whole: it takes several times that in memory
_HEAD = 2**20  # bytes that tell whether a file is read as a whole
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


def open_rows(source: Path | str, read_as: str | None = None) -> Rows:
    """The rows of a file. Its content tells whether it is a JSON array, JSON lines, CSV or parquet.

    Args:
        source: a file, which may be gzipped if it is text. Or a folder that ``datasets``' ``save_to_disk`` wrote. Or
            ``hf:name`` or ``hf:name:split``.
        read_as: the preset of the rows, where it is known: some have files of a kind of their own.

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
    return parquet_rows(path) if is_parquet else _whole_file(path, read_as) or text_rows(path)


def _whole_file(path: Path, read_as: str | None) -> Rows | None:
    """The rows of a file that is one JSON object, or lines that a preset reads. None for files of other kinds.

    ``{"data": [...]}`` holds rows of any form. Other objects are those of a preset. Both are named ``.json``.
    """
    try:
        with bytes_of(path) as file:
            head = file.read(_HEAD).removeprefix(BOM).lstrip()
    except RecordError:  # a damaged gzip file, which ``text_rows`` reports
        return None
    first, _, more = head.partition(b"\n")
    presets = {name: preset for name, preset in PRESETS.items() if read_as in (None, name)}
    for name, preset in presets.items():
        if preset.line is not None and preset.line(first.decode("utf-8", "replace")):
            return _listed(path, name, _lines(path, name))
    if not head.startswith(b"{") or (more.strip() and _is_json(first)) or ".json" not in path.suffixes:
        return None
    try:
        content = json.loads(_content(path))
    except (ValueError, RecursionError):
        return None  # JSON lines with damage, which is reported with its place
    listed = content.get("data")
    if isinstance(listed, list) and all(isinstance(row, dict) for row in listed):
        return _listed(path, read_as, ((f" data[{i}]", row) for i, row in enumerate(listed)))
    for name, preset in presets.items():
        try:
            entries = list(preset.entries(content)) if preset.entries is not None else []
        except (KeyError, TypeError, AttributeError):
            continue
        except ValueError as error:
            raise RecordError(f"{path}: read as {name}: {error}") from None
        if entries:
            return _listed(path, name, ((f" {place}", row) for place, row in entries))
    return None


def _listed(path: Path, read_as: str | None, entries: Iterator[tuple[str, Values | RecordError]]) -> Rows:
    """Rows by their places in the file and their values, or the errors that reading them raises."""
    stem = stem_of(path)
    rows = [Row(f"{path}:{place}", f"{stem}-{i}", partial(_read, value)) for i, (place, value) in enumerate(entries)]
    return Rows(len(rows), path.stat().st_size, rows.__getitem__, read_as)


def _read(value: Values | RecordError) -> Values:
    if isinstance(value, RecordError):
        raise value
    return dict(value)


def _lines(path: Path, name: str) -> Iterator[tuple[str, Values | RecordError]]:
    """Place and row of each line that is not blank."""
    line_row: Any = PRESETS[name].line
    for number, line in enumerate(_content(path).decode("utf-8-sig", "replace").splitlines(), start=1):
        if line.strip():
            error = RecordError(f"{path}:{number}: read as {name}: no line of this format: {line[:80]!r}")
            yield str(number), line_row(line) or error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _content(path: Path) -> bytes:
    with bytes_of(path) as file:
        content = file.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        raise RecordError(f"{path}: a file of this kind is read as a whole, up to {MAX_WHOLE_BYTES >> 30} GB; split it")
    return content


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


def sources_of(
    dataset_use: Any, catalog_path: str | Path | None, name: str, most_rows: int | None
) -> list[tuple[DatasetSource, Rows | None]]:
    """The sources that are named or given, with the rows of those that are in no file. See ``load_dataset``."""
    if isinstance(dataset_use, str | Path):
        return [(source, None) for source in resolve_datasets(str(dataset_use), catalog_path)]
    rows = given_rows(dataset_use, name, most_rows)
    if rows is None:
        raise TypeError(f"{name}: {EXPECTED}, got {type(dataset_use).__name__}")
    return [(DatasetSource(name, Path(name), Path.cwd()), rows)]


def given_rows(given: Any, name: str, most: int | None = None) -> Rows | None:
    """The rows that a program hands over, None where it hands over something else, such as samples.

    Args:
        given: a list of dicts, a ``datasets.Dataset`` or ``IterableDataset``, or one of torch whose items are dicts.
        name: of these rows, for errors.
        most: rows that are read of a stream. None reads it to its end.

    Raises:
        RecordError: several splits, or no rows.
    """
    from torch.utils.data import Dataset  # late: reading files needs no torch

    datasets = sys.modules.get("datasets")  # who hands over one of its data sets has imported it
    if datasets is not None and isinstance(given, dict) and hasattr(given, "num_rows"):
        raise RecordError(f"{name}: holds the splits {', '.join(given)}; give one of them", "data set")
    if datasets is not None and isinstance(given, datasets.Dataset) and given.format["type"] != "custom":
        return table_rows(given, name, name)
    if is_stream(given):
        if hasattr(given, "decode") and getattr(given, "features", None):
            given = given.decode(False)  # pictures and clips as the bytes or paths that they are
        given = list(islice(iter(given), most))
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


def is_stream(given: Any) -> bool:
    """Whether rows come in order and without a length: an ``IterableDataset`` of `datasets` or of torch."""
    from torch.utils.data import IterableDataset

    datasets = sys.modules.get("datasets")
    return isinstance(given, IterableDataset) or (datasets is not None and isinstance(given, datasets.IterableDataset))


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
