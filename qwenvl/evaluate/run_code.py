"""Code and servers that the settings of a run name: printed before a command uses them, or refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwenvl.own_code import files_of_python, values_naming_code


def tell_of_code(run: str, model: str, chosen: Mapping[str, Any]) -> None:
    """Say in the first process which files of Python and which servers the settings of a model's run name.

    Files in the folder of the model are refused: they may have come with it from somebody else.

    Args:
        run, model: their folders, that of the model with its weights.
        chosen: the settings of the run that no flag sets.

    Raises:
        ValueError: a file is in the folder of the model or of its run.
    """
    folders = [os.path.realpath(run), os.path.realpath(model)]
    named = []
    for setting, text in values_naming_code(chosen):
        files = [Path(os.path.realpath(file)) for file in files_of_python(text)]
        if any(_is_within(file, folders) for file in files):
            raise ValueError(
                f"{run}: the settings of the run name code in the model's own folder, --{setting} {text}, "
                f"which may be somebody else's; read it, and give --{setting} {text} yourself to run it"
            )
        if files or "base_url" in text:
            named.append(f"--{setting} {text}")
    if named and int(os.environ.get("RANK", "0")) == 0:
        print(f"as the run {run} was trained: {'; '.join(named)}", file=sys.stderr, flush=True)


def _is_within(file: Path, folders: Sequence[str]) -> bool:
    """True for a file in one of the folders, or below it."""
    return any(file.is_relative_to(folder) for folder in folders)
