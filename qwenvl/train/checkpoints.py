"""Finding checkpoints that are whole, and loading them into a live model without a key left over."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

_STATE = "trainer_state.json"


def find_checkpoint(resume: str | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint to resume from.

    Args:
        resume: a folder; ``True`` (or "true", as it comes from a command line) for the newest whole checkpoint in
            ``output_dir``; None or False to start anew.

    Raises:
        FileNotFoundError: if what was asked for is not there. A run that silently began anew would be worse.
    """
    if resume in (None, False, "", "false", "False"):
        return None
    if resume not in (True, "true", "True"):
        if not (Path(str(resume)) / _STATE).is_file():
            raise FileNotFoundError(f"{resume}: not a checkpoint (no {_STATE} in it)")
        return str(resume)
    whole, unfinished = _checkpoints(output_dir)
    if not whole:
        raise FileNotFoundError(
            f"{output_dir}: no whole checkpoint to resume from ({unfinished} unfinished); leave out "
            "--resume_from_checkpoint to start anew"
        )
    return str(whole[-1])


def require_no_checkpoints(output_dir: str | Path) -> None:
    """Refuse a folder with the checkpoints of an earlier run to one that starts anew.

    They would stand among its own: resuming takes the highest step, ``save_total_limit`` deletes the lowest.

    Raises:
        FileExistsError: naming the newest of them.
    """
    whole, _ = _checkpoints(output_dir)
    if whole:
        raise FileExistsError(
            f"{whole[-1]}: a checkpoint of an earlier run, with which a new one would mix its own; give another "
            "--output_dir, go on with --resume_from_checkpoint True, or delete the folder"
        )


def require_same_tuning(checkpoint: str | Path, lora: bool) -> None:
    """Refuse a checkpoint of adapters to a run that trains whole weights, and one of whole weights to LoRA.

    Raises:
        ValueError: naming it, and how to go on from it.
    """
    adapters = (Path(checkpoint) / "adapter_config.json").is_file()
    if adapters and not lora:
        raise ValueError(f"{checkpoint}: holds LoRA adapters; go on with --lora_enable, as that run was made")
    if lora and not adapters:
        raise ValueError(f"{checkpoint}: holds a whole model, no LoRA adapters; go on without --lora_enable")


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Loads the weights that ``save_pretrained`` wrote into a live model of the same class, strictly.

    Checkpoints of Qwen-VL name their weights otherwise than live models do. transformers renames them in
    ``from_pretrained`` alone; its Trainer loads the file as it is, drops what does not match with a warning, and goes
    on from the weights the model had.

    Raises:
        RuntimeError: if a weight is missing or left over.
    """
    saved = type(model).from_pretrained(folder, dtype="auto")
    model.load_state_dict(saved.state_dict(), strict=True)


def _checkpoints(output_dir: str | Path) -> tuple[list[Path], int]:
    """The whole checkpoints of a folder, the newest last, and how many are unfinished."""
    folders = [f for f in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _step(f) is not None]
    # The state is the last file of a checkpoint to be written: without it the saving was cut short.
    whole = sorted((f for f in folders if (f / _STATE).is_file()), key=lambda folder: _step(folder) or 0)
    return whole, len(folders) - len(whole)


def _step(folder: Path) -> int | None:
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.name)
    return int(match[1]) if match else None
