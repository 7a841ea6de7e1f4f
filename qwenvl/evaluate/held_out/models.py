"""The models of an evaluation: what their words on the command line mean, and the runs that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings
from qwenvl.evaluate.trained import weights_of
from qwenvl.runlog import read_config


@dataclass(frozen=True)
class NamedModel:
    """A model that is asked.

    Attributes:
        name: what tables call it.
        path: a folder or a name on the hub, with the weights or the adapter.
        run: the folder of the run that it comes from. None where it does not say.
    """

    name: str
    path: str
    run: str | None = None

    def run_settings(self) -> dict[str, Any]:
        """The settings of its run by the names of the flags. The system turn is its text, not the file that held it.

        Empty without a run.

        Raises:
            RunLogError: ``run.json`` can't be read.
        """
        if self.run is None:
            return {}
        settings = dict(read_config(self.run)["config"])
        if (Path(self.path) / SETTINGS_FILE).is_file():
            settings["system"] = PromptSettings.load(self.path).system
        return settings


def named_models(words: Sequence[str]) -> list[NamedModel]:
    """The models that words name, each by the shortest end of its path that no earlier one has.

    So the names of an evaluation stay when further models are asked.

    Raises:
        ValueError: a word comes twice.
        FileNotFoundError: no such folder, or one without weights.
    """
    found = [weights_of(word) for word in words]
    names: list[str] = []
    for word, (path, _) in zip(words, found, strict=True):
        if [other for other, _ in found].count(path) > 1:
            raise ValueError(f"MODEL {word} is given twice")
        names.append(_name(path, names))
    return [
        NamedModel(name, path, None if run is None else str(run))
        for name, (path, run) in zip(names, found, strict=True)
    ]


def _name(path: str, taken: Sequence[str]) -> str:
    """At least the name of its folder, and of the run above it for a checkpoint."""
    parts = Path(path).parts
    length = min(len(parts), 2 if parts[-1].startswith("checkpoint-") else 1)
    while length < len(parts) and "/".join(parts[-length:]) in taken:
        length += 1
    return "/".join(parts[-length:])
