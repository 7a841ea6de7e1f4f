"""What a training run left behind: where its weights lie, and the settings that shaped its prompts and completions."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwenvl.data.options import ReadingOptions
from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings
from qwenvl.evaluate.settings import OF_A_RUN
from qwenvl.model.weight_files import has_weights, weights_problem
from qwenvl.option import all_options
from qwenvl.runlog import RunLogError, read_config

_TAKEN = OF_A_RUN - {each.name for each in all_options(ReadingOptions)}


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and what is known of the run that made it.

    Attributes:
        model: the folder or the hub name that has the weights or the adapter.
        prompts: what shaped its prompts. None where nothing of it was saved.
        settings: how the run sampled and scored, by the names of the flags. Empty where no run is known.
    """

    model: str
    prompts: PromptSettings | None
    settings: dict[str, Any]

    def flags(self) -> dict[str, Any]:
        """The settings of the run by the names of the flags, without the system turn and the prompt template.

        Those two are texts here and may be files as flags.
        """
        if self.prompts is None:
            return self.settings
        known = asdict(self.prompts.frames) | asdict(self.prompts.prompts)
        known.pop("on_long_prompt")  # of training: a prompt that is asked on its own is never left out
        return self.settings | known


def trained(model: str | Path) -> Trained:
    """What is known of ``model``.

    Args:
        model: a checkpoint, an adapter's folder, a run's folder or a name on the hub. Of a run that has not ended it is
            the newest checkpoint with whole weights.

    Raises:
        FileNotFoundError: no such folder, or one without weights.
    """
    weights, run = weights_of(model)
    if not Path(weights).is_dir():
        return Trained(weights, _prompts_on_the_hub(weights), {})
    prompts = PromptSettings.load(weights) if (Path(weights) / SETTINGS_FILE).is_file() else None
    return Trained(weights, prompts, {} if run is None else _settings(run))


def weights_of(model: str | Path) -> tuple[str, Path | None]:
    """The folder or hub name that has the weights of a model, and the folder of its run. None where there is no run.

    Args:
        model: as for ``trained``.

    Raises:
        FileNotFoundError: no such folder, or one without weights.
    """
    folder = Path(model)
    if not folder.is_dir():
        if str(model).startswith(("/", ".", "~")):
            raise FileNotFoundError(f"{model}: no such folder; expected a checkpoint, or a name on the hub")
        return str(model), None
    if not has_weights(folder):
        folder = _newest_checkpoint(folder)
    return str(folder), next((each for each in (folder, folder.parent) if (each / "run.json").is_file()), None)


def _newest_checkpoint(run: Path) -> Path:
    steps = {int(each.name.rpartition("-")[2]): each for each in run.iterdir() if re.fullmatch(r".+-\d+", each.name)}
    whole = [steps[n] for n in sorted(steps) if has_weights(steps[n]) and weights_problem(steps[n]) is None]
    if not whole:
        raise FileNotFoundError(
            f"{run}: no weights in it; expected a model, an adapter, or a run's folder with a checkpoint"
        )
    return whole[-1]


def _settings(run: Path) -> dict[str, Any]:
    """How a run sampled and scored. Of a folder of another version, what is known here."""
    try:
        config = read_config(run)["config"]
    except (RunLogError, KeyError):
        return {}
    return {name: value for name, value in config.items() if name in _TAKEN and value not in (None, [])}


def _prompts_on_the_hub(name: str) -> PromptSettings | None:
    """The settings that a push to the hub took along."""
    from transformers.utils import cached_file

    quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    try:
        file = cached_file(name, SETTINGS_FILE, **quietly)
    except OSError:  # no such model: whoever loads it says so
        return None
    return None if file is None else PromptSettings.load(Path(file).parent)
