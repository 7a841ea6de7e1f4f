"""The weight files of a folder: which ones there are, whether each is whole, and what model an adapter belongs to."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

WHOLE_MODEL = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
COPY_ADAPTER = "copy the adapter again from where it came from"
REFERENCE = "reference.safetensors"
"""In a checkpoint of a run whose reference moves: what the reference does not share with the policy."""


def has_weights(folder: str | Path) -> bool:
    """Whether the folder holds the weights of a model or of an adapter, whole or not."""
    names = (WHOLE_MODEL, ADAPTER, f"{WHOLE_MODEL}.index.json")
    return any((Path(folder) / name).is_file() for name in names)


def weights_problem(folder: str | Path) -> str | None:
    """A sentence if the safetensors files of a folder can't be loaded, beginning with the file. None if they can.

    Only headers are read, so it takes no time. A folder without any of these files has no problem here.
    """
    folder = Path(folder)
    index = folder / f"{WHOLE_MODEL}.index.json"
    files = [folder / name for name in (WHOLE_MODEL, ADAPTER) if (folder / name).is_file()]
    if index.is_file():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError, TypeError):
            return f"{index}: not an index of weight files"
    files += [folder / REFERENCE] if (folder / REFERENCE).is_file() else []
    for file in files:
        if not file.is_file():
            return f"{file}: no such file, although the index beside it names it"
        try:
            with safe_open(file, framework="np"):  # it compares the length of the file with its header
                pass
        except SafetensorError as error:
            return f"{file}: cut short or damaged: {error}"
    return None


def require_adapter(path: str | Path) -> str:
    """The model that an adapter was trained on.

    Raises:
        ValueError: ``path`` is no adapter's folder, or the adapter does not say it.
    """
    if Path(path).is_file():
        expected = "the folder of an adapter: a run with --lora_enable, or one of its checkpoints"
        raise ValueError(f"{path}: a file; expected {expected}")
    base = base_of_adapter(path)
    if base is None:
        raise ValueError(
            f"{path}: no adapter in it (adapter_config.json); expected the folder of a finished run with "
            "--lora_enable, or one of its checkpoints"
        )
    return base


def base_of_adapter(path: str | Path) -> str | None:
    """The folder or name of the model that an adapter was trained on. None where ``path`` is no adapter's folder.

    Raises:
        ValueError: the adapter does not say it.
    """
    file = Path(path) / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}; {COPY_ADAPTER}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: expected an object, got {type(settings).__name__}; {COPY_ADAPTER}")
    base = settings.get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        found = "none" if base is None else repr(base)
        raise ValueError(
            f"{file}: expected the model that the adapter belongs to in base_model_name_or_path, got {found}; write "
            "its folder or name there"
        )
    return base
