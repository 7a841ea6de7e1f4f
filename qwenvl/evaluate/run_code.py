"""Code and servers that the settings of a run name: printed before a command uses them, or refused."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NAMING_CODE = ("reward_funcs", "external_plugins", "tools")
"""Settings of a run that may name Python files, or servers."""


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
    for setting in NAMING_CODE:
        values = chosen.get(setting) or []
        for value in [values] if isinstance(values, str) else values:
            text = str(value)
            files = [Path(os.path.realpath(file)) for file in _files_of_python(text)]
            if any(_is_within(file, folders) for file in files):
                raise ValueError(
                    f"{run}: the settings of the run name code in the model's own folder, --{setting} {text}, "
                    f"which may be somebody else's; read it, and give --{setting} {text} yourself to run it"
                )
            if files or "base_url" in text:
                named.append(f"--{setting} {text}")
    if named and int(os.environ.get("RANK", "0")) == 0:
        print(f"as the run {run} was trained: {'; '.join(named)}", file=sys.stderr, flush=True)


def code_hashes(config: Any) -> dict[str, str]:
    """The SHA-256 of each file of Python that settings name, by the file's name."""
    hashes = {}
    for setting in NAMING_CODE:
        values = getattr(config, setting, None) or []
        for value in [values] if isinstance(values, str) else values:
            for file in _files_of_python(str(value)):
                path = Path(file)
                if path.is_file():
                    hashes[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def _is_within(file: Path, folders: Sequence[str]) -> bool:
    """True for a file in one of the folders, or below it."""
    return any(file.is_relative_to(folder) for folder in folders)


def _files_of_python(text: str) -> Iterator[str]:
    """The parts of a setting's value that may be the name of a file of Python.

    Values are such as ``verl:my rewards.py:right`` or ``cosine(correctness_func=a.py:f)``. Names may hold spaces and
    brackets: every part that ends in ``.py`` and begins at one of these counts.
    """
    for ending in re.finditer(r"\.py\b", text):
        before = text[: ending.end()]
        starts = {0, *(border.end() for border in re.finditer(r"[\s,'\"=(:]", before))}
        for start in starts:
            yield before[start:]
