"""Finds the files of data sets by their names: ``--dataset_use demo:0.3,my/steps.jsonl%20:0.7``."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from qwenvl.data.records.presets import check_name
from qwenvl.option import did_you_mean, nearest
from qwenvl.yaml_text import read_yaml

_PACKAGE = Path(__file__).resolve().parents[2]
_SHIPPED = _PACKAGE / "shipped_data" / "datasets.yaml"  # in a wheel alone: see setup.py
DEFAULT_CATALOG = _SHIPPED if _SHIPPED.is_file() else _PACKAGE.parent / "data" / "datasets.yaml"
HUB_PREFIX = "hf:"
ANNOTATION_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class DatasetSource:
    """One data set to read.

    Attributes:
        name: as written in ``dataset_use``, without percentage and weight.
        annotation_path: the file of records, a folder written by ``save_to_disk``, or ``hf:name:split``.
        media_root: the folder that the media paths of the records start from and may not leave.
        percent: share of the records to take, in (0, 100].
        weight: its share of the draws, relative to the other data sets. None: each record has one turn an epoch.
        format: the preset by which its rows are read, where the catalog names one.
    """

    name: str
    annotation_path: Path
    media_root: Path
    percent: float = 100.0
    weight: float | None = None
    format: str | None = None


def resolve_datasets(
    dataset_use: str, catalog_path: str | Path | None = None, flag: str = "dataset_use"
) -> list[DatasetSource]:
    """The data sets that a list of ``name[%percent][:weight]``, separated by commas, names.

    A name that ends in one of ``ANNOTATION_SUFFIXES`` or contains a slash is a path. Its media root is its folder.
    ``hf:name:split`` is a data set of the hub. Any other name is in the catalog, or is that of a folder. A number after
    the last colon is a weight, so a name that itself ends in a colon and a number needs a weight after it.

    Args:
        catalog_path: a YAML file of ``name: {annotation_path, media_root, format}``, whose relative paths start at its
            folder. None takes the repository's ``data/datasets.yaml``, of which a wheel carries a copy.
        flag: the flag that names the data sets, with which messages begin.

    Raises:
        ValueError: an unknown name (the message lists similar ones), a bad percentage or weight, a malformed catalog,
            or weights that mean nothing: some data sets have one and others do not, or there is only one data set.
        FileNotFoundError: an annotation file or the catalog does not exist.

    Example:
        >>> [source.percent for source in resolve_datasets("example%50")]
        [50.0]
    """
    path = None if catalog_path is None else Path(catalog_path)
    try:
        entries = [entry.strip() for entry in dataset_use.split(",") if entry.strip()]
        if not entries:
            raise ValueError(f"expected names or paths separated by commas, got {dataset_use!r}")
        sources = [_resolve_entry(entry, path) for entry in entries]
        seen: set[Path] = set()
        for source in sources:
            if source.annotation_path in seen:
                raise ValueError(f"{source.name!r} is named twice in {dataset_use!r}: leave one of them out")
            seen.add(source.annotation_path)
        _check_weights(sources)
    except (FileNotFoundError, ValueError) as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{flag}: {error}") from None
    return sources


def read_catalog(catalog_path: Path | None = None) -> dict[str, DatasetSource]:
    """All data sets of a catalog file. Their form is checked, and their annotation files need not exist."""
    path = catalog_path or DEFAULT_CATALOG
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such catalog; name one with --dataset_catalog, or give dataset_use a path of "
            f"a file ({', '.join(ANNOTATION_SUFFIXES)})"
        )
    try:
        entries = read_yaml(path.read_text(encoding="utf-8-sig")) or {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: expected a mapping of data set names, got {type(entries).__name__}")
    return {name: _catalog_source(name, entry, path) for name, entry in entries.items()}


def _catalog_source(name: object, entry: object, path: Path) -> DatasetSource:
    """The data set of an entry of the catalog at ``path``."""
    where = f"{path}: {name}"
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"{where}: expected a name of letters, digits, '_', '-' and '.'; rename the data set")
    if (
        not isinstance(entry, dict)
        or not {"annotation_path"} <= entry.keys() <= {"annotation_path", "media_root", "format"}
        or not all(isinstance(value, str) for value in entry.values())
    ):
        form = "annotation_path: PATH, and if needed media_root: PATH and format: NAME"
        raise ValueError(f"{where}: expected {form}, got {entry!r}")
    if "format" in entry:
        check_name(entry["format"], f"{where}: format")
    annotation_path = path.parent / Path(entry["annotation_path"]).expanduser()
    root = entry.get("media_root")
    media_root = path.parent / Path(root).expanduser() if root is not None else annotation_path.parent
    return DatasetSource(name, annotation_path, media_root, format=entry.get("format"))


def _check_weights(sources: list[DatasetSource]) -> None:
    """Refuse weights that mean nothing, since weights are relative to each other."""
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        without = next(source for source in sources if source.weight is None)
        raise ValueError(
            f"{weighted[0].name!r} has a weight and {without.name!r} has none; give each data set one, "
            "relative to the others, or none"
        )
    if len(sources) == 1 and weighted and weighted[0].weight != 1:
        raise ValueError(
            f"the weight of {weighted[0].name!r} has no effect: weights mix several data sets. "
            f"{weighted[0].name}%NN takes a part of one; a name that itself ends in a colon and a number is followed "
            "by a weight, :1"
        )


def _resolve_entry(entry: str, catalog_path: Path | None) -> DatasetSource:
    """The data set that one entry of ``--dataset_use`` names. Its annotation file exists."""
    name, percent, weight = _split_numbers(entry)
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        advice = "write the path itself" if scheme[0] == "file://" else "download it, and name the file"
        raise ValueError(f"{name!r}: records can't be read from {scheme[0]}; {advice}")
    if name.startswith(HUB_PREFIX):
        return DatasetSource(name, Path(name), Path.cwd(), percent, weight)
    is_path = name.lower().endswith(ANNOTATION_SUFFIXES) or "/" in name
    catalog = {} if is_path else read_catalog(catalog_path)
    if name in catalog:
        source = replace(catalog[name], percent=percent, weight=weight)
    elif is_path or Path(name).is_dir():
        path = Path(name).expanduser()
        media_root = path if path.is_dir() else path.parent
        source = DatasetSource(name, path, media_root, percent, weight)
    else:
        near = nearest(name, sorted(catalog))
        raise ValueError(
            f"no data set {name!r} in {catalog_path or DEFAULT_CATALOG}: {near}{'' if near.endswith('?') else '.'} "
            f"A file is given by a path that ends in {', '.join(ANNOTATION_SUFFIXES)}"
        )
    path = source.annotation_path
    if not path.exists():
        beside = [each.name for each in path.parent.glob("*") if each.name.lower().endswith(ANNOTATION_SUFFIXES)]
        where = path if name == str(path) else f"{name}: {path}"
        raise FileNotFoundError(f"{where}: no such file{did_you_mean(path.name, beside)}")
    return source


def _split_numbers(entry: str) -> tuple[str, float, float | None]:
    """Name, percentage and weight of ``name[%percent][:weight]``. A colon without a number behind it is in the name."""
    unweighted, colon, text = entry.rpartition(":")
    weight = None
    if colon:
        with suppress(ValueError):
            weight = float(text)
    if weight is None:
        unweighted = entry
    elif not 0 < weight < math.inf:
        raise ValueError(f"{entry!r}: expected a weight above 0 after ':'; leave a data set out that has none")
    name, sign, number = unweighted.rpartition("%")
    if not sign:
        return unweighted, 100.0, weight
    with suppress(ValueError):
        if 0 < float(number) <= 100:
            return name, float(number), weight
    raise ValueError(f"{entry!r}: expected name%percent:weight, with a percentage above 0 and at most 100")
