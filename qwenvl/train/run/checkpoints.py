"""Checkpoints: finding one that is whole, and loading its weights into a live model without a key left over."""

from __future__ import annotations

import json
import logging
import re
import zipfile
from pathlib import Path
from typing import Any

from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qwenvl.model.loading import unwrap
from qwenvl.model.sharding import is_partitioned
from qwenvl.model.weight_files import ADAPTER, REFERENCE, has_weights, weights_problem
from qwenvl.train.run.manifest import NAME as MANIFEST
from qwenvl.train.run.manifest import is_sealed
from qwenvl.train.run.manifest import problem_of as manifest_problem

logger = logging.getLogger(__name__)

SEALED = "sealed"  # in the settings that the state keeps: the checkpoint is one with a manifest
_STATE = "trainer_state.json"
_ADAPTER_CONFIG = "adapter_config.json"


def find_checkpoint(resume: str | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint to resume from, with everything in it that a resumed run goes on from.

    Args:
        resume: a folder, or ``True`` ("true", as it comes from a command line) for the newest checkpoint in
            ``output_dir``. None or False to start anew. A checkpoint without its manifest, which is written last, is
            passed over.

    Raises:
        FileNotFoundError: there is no checkpoint, or it lacks a file.
        ValueError: a file of it is cut short.
    """
    if resume in (None, False, "", "false", "False"):
        return None
    if resume not in (True, "true", "True"):
        if not (Path(str(resume)) / _STATE).is_file():
            raise FileNotFoundError(f"{resume}: not a checkpoint (no {_STATE} in it)")
        require_whole(str(resume))
        return str(resume)
    whole, unfinished = _checkpoints(output_dir)
    if not whole:
        raise FileNotFoundError(
            f"{output_dir}: no whole checkpoint to resume from ({unfinished} unfinished); leave out "
            "--resume_from_checkpoint to start anew"
        )
    require_whole(whole[-1])
    return str(whole[-1])


def newest_or_none(output_dir: str | Path) -> str | None:
    """The newest whole checkpoint of ``output_dir``, or None where none was finished: what ``--resume auto`` takes.

    A newer one that is not whole is passed over, with a warning that says what it lacks.

    Raises:
        FileNotFoundError, ValueError: there are checkpoints, and none of them is whole.
    """
    checkpoints, _ = _checkpoints(output_dir)
    chosen = newest_whole(output_dir, read=True)
    if chosen is None and checkpoints:
        require_whole(checkpoints[-1])
    for each in reversed(checkpoints):
        if each == chosen:
            break
        lacking = _torn(each, read=True) or f"{each / str(_lacks_optimizer(each))}: no such file"
        logger.warning(f"{each} is passed over, and the run goes on from {chosen}: {lacking}")
    return None if chosen is None else str(chosen)


def require_whole(checkpoint: str | Path) -> None:
    """Refuse a checkpoint that lacks a file, or has one that was cut short.

    Raises:
        FileNotFoundError: it has no optimizer or no schedule: both would silently begin anew.
        ValueError: another file is missing, or a file is cut short. The message names it and an older checkpoint.
    """
    checkpoint = Path(checkpoint)
    if torn := _torn(checkpoint, read=True):
        whole = newest_whole(checkpoint.parent, before=_step(checkpoint))
        advice = (
            f"the newest older checkpoint that is whole is {whole}: go on with --resume_from_checkpoint {whole}"
            if whole
            else "no older checkpoint beside it is whole: start anew in another --output_dir"
        )
        raise ValueError(f"{torn}; {advice}")
    if lacking := _lacks_optimizer(checkpoint):
        raise FileNotFoundError(
            f"{checkpoint / lacking}: no such file, and without it the optimizer and the learning rate would begin "
            "anew. A run with --save_only_model can't be resumed. To begin a new run with these weights, give "
            f"--start_from_weights {checkpoint} and another --output_dir, without --resume_from_checkpoint"
        )


def newest_whole(output_dir: str | Path, before: int | None = None, read: bool = False) -> Path | None:
    """The checkpoint with the most steps, fewer than ``before``, that a run can be resumed from. None without one.

    Args:
        read: compare the checksums of its files too.
    """
    steps = [each for each in _checkpoints(output_dir)[0] if before is None or _step(each) < before]
    return next((each for each in reversed(steps) if not _torn(each, read) and not _lacks_optimizer(each)), None)


def _torn(checkpoint: Path, read: bool = False) -> str | None:
    """The first file of a checkpoint that is missing, cut short or damaged, and what is wrong with it.

    Args:
        read: look for damage too, which reads all of its files. Only checkpoints with a manifest tell of it.
    """
    if is_sealed(checkpoint):
        return manifest_problem(checkpoint, read)
    try:
        read_state(checkpoint)
    except ValueError as error:
        return str(error)
    if not _was_finished(checkpoint):
        return f"{checkpoint / MANIFEST}: no such file, so that saving was cut short"
    sharded = _engine_states(checkpoint)
    if not (checkpoint / _ADAPTER_CONFIG).is_file():
        if not (checkpoint / "config.json").is_file():
            return f"{checkpoint}/config.json: no such file"
        if not has_weights(checkpoint) and not sharded:
            return f"{checkpoint}/model.safetensors: no such file"
    elif not (checkpoint / ADAPTER).is_file():
        return f"{checkpoint / ADAPTER}: no such file"
    if problem := weights_problem(checkpoint):
        return problem
    if (kept_settings(checkpoint) or {}).get("sync_ref_model") and not (checkpoint / REFERENCE).is_file():
        return f"{checkpoint / REFERENCE}: no such file"
    # What torch.save writes is a zip archive, whose directory stands at its end.
    saved = (file for name in ("*.pt", "*.pth") for file in sorted(checkpoint.glob(name)))
    return next((f"{file}: cut short" for file in saved if not zipfile.is_zipfile(file)), None)


def _lacks_optimizer(checkpoint: Path) -> str | None:
    """The name of the file without which optimizer or schedule would begin anew. None where all are there."""
    if (checkpoint / "latest").is_file():  # DeepSpeed keeps both in the folder that this file names
        return None
    if not (checkpoint / "optimizer.pt").is_file() and not _engine_states(checkpoint):
        return "optimizer.pt"
    return None if (checkpoint / "scheduler.pt").is_file() else "scheduler.pt"


def _engine_states(checkpoint: Path) -> bool:
    """Whether DeepSpeed or FSDP wrote the optimizer's state, in files or folders of their own names."""
    if (checkpoint / "latest").is_file():
        return (checkpoint / (checkpoint / "latest").read_text().strip()).is_dir()
    return any(checkpoint.glob("optimizer.bin")) or any(checkpoint.glob("optimizer_*/"))


def read_state(checkpoint: str | Path) -> dict[str, Any]:
    """The Trainer's state in a checkpoint: its step, its log, and what callbacks keep in it.

    Raises:
        ValueError: the file is not whole.
    """
    path = Path(checkpoint) / _STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cut short or unreadable: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        raise ValueError(f"{path}: not the state of a run")
    return state


def kept_settings(checkpoint: str | Path) -> dict[str, Any] | None:
    """The settings that a run resumed from a checkpoint must share. None in one of a version that did not keep them."""
    kept = (read_state(checkpoint).get("stateful_callbacks") or {}).get("Resumed")
    return None if kept is None else kept["attributes"]["shared"]


def require_fresh_folder(output_dir: str | Path, overwrite: bool = False) -> None:
    """Refuse to begin a run in a folder that an earlier run has filled.

    New checkpoints would stand among old ones: resuming takes the highest step, ``save_total_limit`` deletes the
    lowest. The model of a run without checkpoints would be replaced.

    Args:
        overwrite: whether the model of an earlier run may be replaced. Its checkpoints may not.

    Raises:
        FileExistsError: naming what is there, and what to do.
    """
    whole, _ = _checkpoints(output_dir)
    if whole:
        raise FileExistsError(
            f"{whole[-1]}: a checkpoint of an earlier run, with which a new one would mix its own; give another "
            "--output_dir, go on with --resume_from_checkpoint True, or delete the folder"
        )
    if has_weights(output_dir) and not overwrite:
        raise FileExistsError(
            f"{output_dir}: holds a model, which this run would replace; give another --output_dir, or allow it with "
            "--overwrite_output_dir"
        )


def require_same_tuning(checkpoint: str | Path, lora: bool) -> None:
    """Refuse a checkpoint of adapters to a run that trains whole weights, and one of whole weights to LoRA.

    Raises:
        ValueError: naming it, and how to go on from it.
    """
    adapters = (Path(checkpoint) / _ADAPTER_CONFIG).is_file()
    if adapters and not lora:
        raise ValueError(f"{checkpoint}: holds LoRA adapters; go on with --lora_enable, as that run was made")
    if lora and not adapters:
        raise ValueError(f"{checkpoint}: holds a whole model, no LoRA adapters; go on without --lora_enable")


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Loads the weights that ``save_pretrained`` wrote into a live model of the same class, strictly.

    Checkpoints of Qwen-VL name their weights otherwise than live models do. transformers renames them in
    ``from_pretrained`` alone. Its Trainer loads the file as it is, drops what does not match with a warning, and goes
    on from the weights the model had.

    Raises:
        RuntimeError: if a weight is missing or left over.
    """
    saved = type(model).from_pretrained(folder, dtype="auto")
    model.load_state_dict(saved.state_dict(), strict=True)


def start_from_weights(model: nn.Module, folder: str | Path) -> None:
    """Loads the weights, or the adapter, of a checkpoint into a model that no training has begun with.

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
            model.load_adapter(str(folder), model.active_adapters[0], is_trainable=True)
        else:
            load_weights(model, folder)
    except RuntimeError as error:
        raise ValueError(f"--start_from_weights {folder}: does not fit the model: {error}") from None


def _checkpoints(output_dir: str | Path) -> tuple[list[Path], int]:
    """The whole checkpoints of a folder, the newest last, and how many are unfinished."""
    folders = [f for f in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _step(f) is not None]
    whole = sorted((f for f in folders if _was_finished(f)), key=lambda folder: _step(folder) or 0)
    return whole, len(folders) - len(whole)


def _step(folder: Path) -> int | None:
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.name)
    return int(match[1]) if match else None


def _was_finished(folder: Path) -> bool:
    """Whether a checkpoint was saved to its end: it has the file that is written last.

    That is the manifest, and in checkpoints of an earlier version, whose state does not speak of one, the state.
    """
    if is_sealed(folder):
        return True
    try:
        return not (kept_settings(folder) or {}).get(SEALED, False)
    except ValueError:
        return (folder / _STATE).is_file()
