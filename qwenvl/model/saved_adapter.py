"""The adapter that PEFT has written into a folder: the model that it belongs to, and its weights, loaded strictly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from qwenvl.model.loading import MisfitError, unwrap
from qwenvl.model.weight_files import ADAPTER, ADAPTER_CONFIG, COPY_ADAPTER, has_weights, weights_problem

_MISFIT_ADVICE = (
    "it was saved with another model, other settings in adapter_config.json or, of a run, other --lora_targets: take "
    f"those, or {COPY_ADAPTER}"
)


def with_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """The model with the trained adapter of a folder on it, as PEFT writes it.

    Raises:
        ValueError: PEFT can't make the adapter that its settings describe, or it changes no layers.
        MisfitError: its weights are missing, cut short, or do not fit the model.
    """
    from peft import PeftConfig, get_peft_model

    problem = weights_problem(folder)
    if problem is None and not has_weights(folder):
        problem = f"{folder}: no weights in it"
    if problem:
        raise ValueError(problem)
    file = Path(folder) / ADAPTER_CONFIG
    try:
        settings = PeftConfig.from_pretrained(str(folder))
        settings.inference_mode = True
        settings.base_model_name_or_path = unwrap(model).name_or_path  # PEFT warns where the model has moved
        adapted = None if settings.is_prompt_learning else get_peft_model(model, settings)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # any, as types of settings are not checked before they are used
        found = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise ValueError(f"{file}: PEFT can't make this adapter: {found}; {COPY_ADAPTER}") from None
    if adapted is None:
        raise ValueError(
            f"{file}: peft_type {settings.peft_type.value} adds tokens to prompts, which has no effect here; expected "
            "an adapter of layers, such as LORA"
        )
    load_adapter_weights(adapted, folder)
    return adapted


def load_adapter_weights(adapted: nn.Module, folder: str | Path, trainable: bool = False) -> None:
    """Load the weights that PEFT wrote into the adapter that a model has, strictly.

    PEFT raises for other shapes alone. A weight without a match keeps its first value, which for LoRA changes nothing.

    Args:
        trainable: the adapter learns. Else it is frozen, and the model is in eval mode.

    Raises:
        MisfitError: a weight is missing, left over or of another shape.
    """
    file = Path(folder) / ADAPTER
    adapter = adapted.active_adapters[0]
    try:
        with explained_misfit(folder):
            found = adapted.load_adapter(
                str(folder),
                adapter,
                is_trainable=trainable,
                torch_device=str(next(adapted.parameters()).device),
            )
    except KeyError as error:  # PEFT looks the weights of modules that are saved whole up by their names
        raise MisfitError(f"{file}: {error.args[0]} is missing; {_MISFIT_ADVICE}") from None
    # In the file the names are without that of the adapter.
    missing = [name.replace(f".{adapter}", "") for name in found.missing_keys]
    unknown = [name.replace(f".{adapter}", "") for name in found.unexpected_keys]
    misfits = []
    if missing:
        expected = sum(f".{adapter}" in name for name, _ in adapted.named_parameters())
        misfits.append(f"{len(missing)} of {expected} weights of the adapter are missing, such as {min(missing)}")
    if unknown:
        with safe_open(file, framework="np") as weights:
            count = len(weights.keys())
        misfits.append(f"{len(unknown)} of {count} weights in the file are unknown, such as {min(unknown)}")
    if misfits:
        raise MisfitError(f"{file}: {'; '.join(misfits)}; {_MISFIT_ADVICE}")


_OF_TORCH = "Error(s) in loading state_dict"  # the first line of torch's message


@contextmanager
def explained_misfit(folder: str | Path) -> Iterator[None]:
    """Raise MisfitError with one line instead of torch's RuntimeError with a line for each weight that does not fit."""
    try:
        yield
    except RuntimeError as error:
        if _OF_TORCH not in str(error):
            raise
        _, first, *more = [line.strip().rstrip(".") for line in str(error).strip().splitlines()] + [""]
        others = f", and {len(more) - 1} lines like this" if len(more) > 1 else ""
        raise MisfitError(f"{folder}: does not fit the model, which may be another one: {first}{others}") from None
