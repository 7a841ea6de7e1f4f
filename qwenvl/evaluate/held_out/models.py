"""The models of an evaluation: what their words on the command line mean, and the runs that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.runlog import RunLogError, read_config

_OF_A_MODEL = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class NamedModel:
    """A model that is asked.

    Attributes:
        name: what tables call it.
        path: a folder or a name on the hub.
        run: the folder of the run that it comes from. None where it does not say.
    """

    name: str
    path: str
    run: str | None = None

    def run_settings(self) -> dict[str, Any]:
        """The settings of its run. Empty without one."""
        return {} if self.run is None else dict(read_config(self.run)["config"])


def named_models(words: Sequence[str]) -> list[NamedModel]:
    """The models that words name, each by the shortest end of its path that no earlier one has.

    So the names of an evaluation stay when further models are asked.

    Raises:
        ValueError: a word comes twice, or names a folder without a model.
    """
    paths = [word.rstrip("/") or word for word in words]
    if repeated := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"MODEL {repeated[0]} is given twice")
    for path in paths:
        _require_model(Path(path))
    names: list[str] = []
    for path in paths:
        names.append(_name(path, names))
    return [NamedModel(name, path, _run_of(Path(path))) for name, path in zip(names, paths, strict=True)]


def _name(path: str, taken: Sequence[str]) -> str:
    """At least the name of its folder, and of the run above it for a checkpoint."""
    parts = Path(path).parts
    length = min(len(parts), 2 if parts[-1].startswith("checkpoint-") else 1)
    while length < len(parts) and "/".join(parts[-length:]) in taken:
        length += 1
    return "/".join(parts[-length:])


def _run_of(path: Path) -> str | None:
    """The folder that holds ``run.json``: that of the model, or the one above a checkpoint."""
    for folder in (path, path.parent) if path.name.startswith("checkpoint-") else (path,):
        try:
            read_config(folder)
        except RunLogError:
            continue
        return str(folder)
    return None


def _require_model(path: Path) -> None:
    if not path.is_dir() or any((path / name).is_file() for name in _OF_A_MODEL):
        return
    checkpoints = sorted(path.glob("checkpoint-*"), key=lambda each: each.stat().st_mtime)
    if checkpoints:
        raise ValueError(
            f"MODEL {path}: the run has not saved its model yet; name a checkpoint, such as {checkpoints[-1]}"
        )
    raise ValueError(f"MODEL {path}: expected the folder of a checkpoint or an adapter, got one without config.json")
