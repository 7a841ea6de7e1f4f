"""Folds a LoRA adapter into its model, as a whole checkpoint."""

from __future__ import annotations

from pathlib import Path

from qwenvl.files import written_whole
from qwenvl.model.loading import load_model, load_processor, merged_weights
from qwenvl.model.saved_adapter import with_adapter
from qwenvl.model.weight_files import require_adapter
from qwenvl.train.card import describe_merged


def merge(adapter: str | Path, out: str | Path, base: str | None = None) -> str:
    """Write the model of an adapter with the adapter folded in, its processor and the files that describe its training.

    The folder is written as a whole or not at all.

    Args:
        adapter: the folder of a finished run with ``--lora_enable``, or one of its checkpoints.
        out: a folder that is new or empty.
        base: a model in place of the one that the adapter names.

    Returns:
        The model that the adapter was folded into.

    Raises:
        ValueError: ``adapter`` holds no adapter, or one that does not fit its model or is of a kind that is not merged.
        FileNotFoundError: the model is not there.
        FileExistsError: ``out`` holds something.
    """
    adapter = Path(adapter)
    out = Path(out)
    named = require_adapter(adapter)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise FileExistsError(f"--out {out}: holds something already; give a folder that is new or empty")
    if out.is_symlink():
        raise FileExistsError(f"--out {out}: is a link; give the folder itself, {out.resolve()}")
    base = base or named
    try:
        model = load_model(base)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}. The adapter names this model; where it is elsewhere, give --base") from None
    processor = load_processor(adapter if (adapter / "tokenizer_config.json").is_file() else base)
    weights = merged_weights(with_adapter(model, adapter))
    with written_whole(out) as partial:
        model.save_pretrained(partial, state_dict=weights)
        processor.save_pretrained(partial)
        describe_merged(adapter, partial, base)
    return base
