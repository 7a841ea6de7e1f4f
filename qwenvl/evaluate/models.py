"""The models of a command line: folders of weights, adapters, runs, and names on the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings
from qwenvl.model.weight_files import has_weights, weights_problem


@dataclass(frozen=True)
class ModelSource:
    """A model of a command line.

    Attributes:
        name: its name in tables.
        path: a folder or a name on the hub, with the weights or the adapter.
        run: the folder of the run that trained it. None if unknown.
    """

    name: str
    path: str
    run: str | None = None

    def prompt_settings(self) -> PromptSettings | None:
        """The settings of its prompts, from beside its weights or from the hub. None where none were saved."""
        if Path(self.path).is_dir():
            return PromptSettings.load(self.path) if (Path(self.path) / SETTINGS_FILE).is_file() else None
        from transformers.utils import cached_file

        quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        try:
            file = cached_file(self.path, SETTINGS_FILE, **quietly)
        except OSError:  # no such model: loading its weights reports that
            return None
        return None if file is None else PromptSettings.load(Path(file).parent)


def model_source(word: str | Path, taken: Sequence[str] = ()) -> ModelSource:
    """The model that a word of a command line names.

    Its name is the shortest end of its path that is not in ``taken``: at least the name of its folder, and for a
    checkpoint also that of its run.

    Args:
        word: a checkpoint, an adapter's folder, a run's folder or a name on the hub. Of a run that has not ended it is
            the newest checkpoint with whole weights.

    Raises:
        FileNotFoundError: no such folder, or one without weights.
    """
    path, run = str(word), None
    if (folder := Path(word)).is_dir():
        folder = folder if has_weights(folder) else _newest_checkpoint(folder)
        path = str(folder)
        run = next((str(each) for each in (folder, folder.parent) if (each / "run.json").is_file()), None)
    elif path.startswith(("/", ".", "~")):
        raise FileNotFoundError(f"{word}: no such folder; expected a checkpoint, or a name on the hub")
    parts = Path(path).parts
    length = min(len(parts), 2 if parts[-1].startswith("checkpoint-") else 1)
    while length < len(parts) and "/".join(parts[-length:]) in taken:
        length += 1
    return ModelSource("/".join(parts[-length:]), path, run)


def named_models(words: Sequence[str]) -> list[ModelSource]:
    """The models of an evaluation, each with a name of its own. Names stay when further models are added.

    Raises:
        ValueError: a model is given twice.
        FileNotFoundError: no such folder, or one without weights.
    """
    models: list[ModelSource] = []
    for word in words:
        model = model_source(word, [other.name for other in models])
        if any(other.path == model.path for other in models):
            raise ValueError(f"MODEL {model.path} is given twice")
        models.append(model)
    return models


def _newest_checkpoint(run: Path) -> Path:
    steps = {int(each.name.rpartition("-")[2]): each for each in run.iterdir() if re.fullmatch(r".+-\d+", each.name)}
    whole = [steps[n] for n in sorted(steps) if has_weights(steps[n]) and weights_problem(steps[n]) is None]
    if not whole:
        raise FileNotFoundError(
            f"{run}: no weights in it; expected a model, an adapter, or a run's folder with a checkpoint"
        )
    return whole[-1]
