"""Files to raw rows, one reader for each kind of file, told by content and not by name.

What the rows mean is settled in ``schemas``: any kind of file may hold any of them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError

HUB_PREFIX = "hf:"


@dataclass(frozen=True)
class Row:
    """One row as it was read.

    Attributes:
        where: file and place, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: its id where it has none of its own.
        value: what the row holds, a dict if it is sound; the ``RecordError`` of a row that can't be read.
        untyped: every value is text, as in CSV, where a number or a list can't be told from one.
    """

    where: str
    default_id: str
    value: Any
    untyped: bool = False


def iter_rows(source: Path | str) -> Iterator[Row]:
    """The rows of a JSON array, JSON lines (both also gzipped), parquet or CSV file, of a data set folder or the hub.

    Args:
        source: a file; a folder written by ``datasets``' ``save_to_disk``; or ``hf:name`` or ``hf:name:split``.

    Raises:
        RecordError: the file as a whole can't be read, with line and column where there are such.
    """
    text = str(source)
    if text.startswith(HUB_PREFIX):
        return _hub_rows(text)
    path = Path(source)
    if path.is_dir():
        return _folder_rows(path)
    return _reader_of(path)(path)


def _reader_of(path: Path) -> Callable[[Path], Iterator[Row]]:
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"PAR1"):
        return _parquet_rows
    if head.startswith(b"\x1f\x8b"):
        with gzip.open(path) as file:
            head = _guarded(lambda: file.read(4096), path)
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first == b"[":
        return _array_rows
    if (first != b"{" and ".csv" in path.suffixes) or ".tsv" in path.suffixes:
        return _csv_rows
    return _line_rows


def _array_rows(path: Path) -> Iterator[Row]:
    with _open_text(path) as file:
        rows = _parse_json(_guarded(file.read, path), str(path))
    for i, row in enumerate(rows):
        yield Row(f"{path}[{i}]", f"{_stem(path)}-{i}", row)


def _line_rows(path: Path) -> Iterator[Row]:
    with _open_text(path) as file:
        number = 0
        while line := _guarded(file.readline, path):
            number += 1
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                value = _parse_json(line, where)
            except RecordError as error:
                value = error
            yield Row(where, f"{_stem(path)}-{number - 1}", value)


def _csv_rows(path: Path) -> Iterator[Row]:
    """Cells are strings; empty ones count as missing."""
    csv.field_size_limit(2**31 - 1)
    with _open_text(path, newline="") as file:
        reader = csv.reader(file, delimiter="\t" if ".tsv" in path.suffixes else ",")
        names = _guarded(lambda: next(reader, []), path)
        number, begins = 0, reader.line_num + 1
        while (cells := _guarded(lambda: next(reader, None), path)) is not None:
            where = f"{path}:{begins}"
            begins = reader.line_num + 1
            if not cells:
                continue
            value: Any = {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
            if len(cells) != len(names):
                value = RecordError(
                    f"{where}: expected {len(names)} cells as in the first line, got {len(cells)}", "CSV"
                )
            yield Row(where, f"{_stem(path)}-{number}", value, untyped=True)
            number += 1


def _parquet_rows(path: Path) -> Iterator[Row]:
    parquet = _require("pyarrow.parquet", "parquet files")
    try:
        file = parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield Row(f"{path}[{number}]", f"{_stem(path)}-{number}", _without_nulls(row))
                number += 1
    except (OSError, ValueError) as error:  # pyarrow's errors are these
        raise RecordError(f"{path}: not a readable parquet file: {error}", "parquet") from None


def _folder_rows(path: Path) -> Iterator[Row]:
    datasets = _require("datasets", "data sets saved to a folder")
    try:
        table = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: expected a data set written by `save_to_disk`: {error}", "data set") from None
    if not isinstance(table, datasets.Dataset):
        raise RecordError(f"{path}: holds the splits {', '.join(table)}; name the folder of one of them", "data set")
    return _table_rows(datasets, table, str(path), path.name)


def _hub_rows(name: str) -> Iterator[Row]:
    datasets = _require("datasets", "data sets of the hub")
    repository, _, split = name.removeprefix(HUB_PREFIX).partition(":")
    table = datasets.load_dataset(repository, split=split or "train")
    return _table_rows(datasets, table, name, repository.rpartition("/")[2])


def _table_rows(datasets: Any, table: Any, where: str, stem: str) -> Iterator[Row]:
    # Pictures stay the bytes that they are: decoding here would change and slow them.
    for column, feature in table.features.items():
        inner = getattr(feature, "feature", feature)
        if type(inner).__name__ in ("Image", "Video"):
            plain = type(inner)(decode=False)
            table = table.cast_column(column, plain if inner is feature else type(feature)(plain))
    for i, row in enumerate(table):
        yield Row(f"{where}[{i}]", f"{stem}-{i}", _without_nulls(row))


def _open_text(path: Path, newline: str | None = "\n") -> io.TextIOBase:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return (gzip.open if zipped else open)(path, "rt", encoding="utf-8-sig", newline=newline)


def _guarded(read: Callable[[], Any], path: Path) -> Any:
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{path}: expected UTF-8 text, found {error.object[error.start : error.start + 1]!r}", "JSON"
        ) from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise RecordError(f"{path}: damaged gzip file: {error}", "JSON") from None
    except csv.Error as error:
        raise RecordError(f"{path}: not readable as CSV: {error}", "CSV") from None


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"at line {error.lineno} column {error.colno}"
        raise RecordError(f"{where}: not valid JSON: {error.msg} {place}", "JSON") from None
    except RecursionError:
        raise RecordError(f"{where}: not readable JSON: nested too deeply", "JSON") from None


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Tables give every row every column; one without a value is one that the row does not have."""
    return {name: value for name, value in row.items() if value is not None}


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def _require(module: str, what: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise RecordError(
            f"{what} need the package {module.partition('.')[0]}: `pip install qwenvl[formats]`"
        ) from None
