"""The weights of a checkpoint, loaded into a live model without a key left over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from qwenvl.model.loading import MisfitError, load_whole, unwrap
from qwenvl.model.sharding import is_partitioned
from qwenvl.model.weight_files import has_weights, weights_problem
from qwenvl.train.run.checkpoints import require_same_tuning

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


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Loads the weights that ``save_pretrained`` wrote into a live model of the same class, strictly.

    The names of weights in checkpoints of Qwen-VL differ from those in live models, and transformers renames them in
    ``from_pretrained`` alone. Its Trainer loads the file as it is, drops names without a match with a warning, and
    continues with the weights that the model had.

    Raises:
        MisfitError: a weight is missing, left over or of another shape.
    """
    with explained_misfit(folder):
        saved = load_whole(type(model), folder, dtype="auto")
        model.load_state_dict(saved.state_dict(), strict=True)


def start_from_weights(model: nn.Module, folder: str | Path) -> None:
    """Load the weights, or the adapter, of a checkpoint into a model before training.

    Raises:
        ValueError: the folder has none, or one that does not fit the model.
    """
    if not has_weights(folder):
        raise ValueError(f"--start_from_weights {folder}: no weights in it; expected a checkpoint of a run")
    if problem := weights_problem(folder):
        raise ValueError(f"--start_from_weights {problem}")
    if is_partitioned(model):
        raise ValueError("--start_from_weights: DeepSpeed ZeRO-3 has split the model already: use --model_name_or_path")
    adapter = unwrap(model) is not model
    require_same_tuning(folder, adapter)
    try:
        if adapter:
            with explained_misfit(folder):
                model.load_adapter(str(folder), model.active_adapters[0], is_trainable=True)
        else:
            load_weights(model, folder)
    except MisfitError as error:
        raise MisfitError(f"--start_from_weights {error}") from None
