"""The models of a command line: checkpoints and run folders, each with the run and the settings of its training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qwenvl.data.prompt_settings import PromptSettings


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
        from qwenvl.data.prompt_settings import SETTINGS_FILE, PromptSettings

        if Path(self.path).is_dir():
            return PromptSettings.beside(self.path)
        from transformers.utils import cached_file

        quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        try:
            file = cached_file(self.path, SETTINGS_FILE, **quietly)
        except OSError:  # no such model: loading its weights reports that
            return None
        return None if file is None else PromptSettings.load(Path(file).parent)


def model_source(word: str | Path, taken: Sequence[str] = (), present: bool = False) -> ModelSource:
    """The model that a word of a command line names.

    Its name is the shortest end of its path that is not in ``taken``: at least the name of its folder, and for a
    checkpoint also that of its run.

    Args:
        word: a checkpoint, an adapter's folder, a run's folder or a name on the hub. Of a run that has not ended it is
            the newest checkpoint with whole weights.
        present: a name on the hub must be one that can be read from here.

    Raises:
        FileNotFoundError: no such folder, or one without weights.
        OSError: the hub does not answer, and its cache lacks the model.
    """
    from qwenvl.model.hub import require_model
    from qwenvl.model.weight_files import has_weights

    path = str(word)
    run = None
    folder = Path(word)
    if folder.is_dir():
        if not has_weights(folder):
            folder = _newest_checkpoint(folder)
        path = str(folder)
        # The weights are in the folder of the run, or in a checkpoint in it.
        run = next((str(each) for each in (folder, folder.parent) if (each / "run.json").is_file()), None)
    elif present or folder.is_file() or path.startswith(("/", ".", "~")):
        require_model(path)
    # Of a folder in full: a relative path may be too short to tell two folders of the same name apart.
    whole = Path(os.path.abspath(path)) if folder.is_dir() else Path(path)
    parts = whole.relative_to(whole.anchor).parts
    length = min(len(parts), 2 if parts[-1].startswith("checkpoint-") else 1)
    while length < len(parts) and "/".join(parts[-length:]) in taken:
        length += 1
    name = "/".join(parts[-length:])
    if name in taken:  # /m, behind /runs/m
        name = str(whole)
    return ModelSource(name=name, path=path, run=run)


def named_models(words: Sequence[str], present: bool = False) -> list[ModelSource]:
    """The models of an evaluation, each with a name of its own. Names stay when further models are added.

    Args:
        words, present: as for ``model_source``.

    Raises:
        ValueError: a model is given twice, or two cannot be told apart by names.
        FileNotFoundError: no such folder, or one without weights.
    """
    models: list[ModelSource] = []
    for word in words:
        model = model_source(word, [other.name for other in models], present)
        if any(os.path.abspath(other.path) == os.path.abspath(model.path) for other in models):
            raise ValueError(f"MODEL {model.path} is given twice")
        if any(other.name == model.name for other in models):
            raise ValueError(f"MODEL {model.path}: another model has the name {model.name}; rename a folder of them")
        models.append(model)
    return models


def _newest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run with whole weights.

    Raises:
        FileNotFoundError: there is none.
    """
    if any(run.glob("checkpoint-*")):  # else there is no reason to load torch, with which checkpoints are read
        from qwenvl.model.weight_files import has_weights, weights_problem
        from qwenvl.run_log.checkpoints import checkpoints_of

        for checkpoint in reversed(checkpoints_of(run)):
            if has_weights(checkpoint) and weights_problem(checkpoint) is None:
                return checkpoint
    raise FileNotFoundError(
        f"{run}: no weights in it; expected a model, an adapter, or a run's folder with a checkpoint"
    )
