"""Checkpoints: written whole or not at all, sealed by a manifest, found again, and deleted in order."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qwenvl.files import UNFINISHED, written_whole
from qwenvl.model.weight_files import ADAPTER, REFERENCE, has_weights, weights_problem

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
        _require_checkpoint(Path(str(resume)))
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

    Newer ones that are not whole are passed over, each with a warning that says what it lacks.

    Raises:
        FileNotFoundError, ValueError: there are checkpoints, and none of them is whole.
    """
    checkpoints, _ = _checkpoints(output_dir)
    chosen = newest_whole(output_dir, read=True)
    if chosen is None and checkpoints:
        require_whole(checkpoints[-1])
    then = "begins anew" if chosen is None else f"goes on from {chosen}"
    for each in sorted(_folders(output_dir), key=lambda folder: _step(folder) or 0, reverse=True):
        if each == chosen:
            break
        lacking = _torn(each, read=True) or f"{each / str(_lacks_optimizer(each))}: no such file"
        logger.warning(f"{each} is passed over, and the run {then}: {lacking}")
    return None if chosen is None else str(chosen)


def newer_ones(checkpoint: str | Path) -> list[Path]:
    """The whole checkpoints beside one that have more steps, the newest last."""
    checkpoint = Path(checkpoint)
    step = _step(checkpoint)
    return [] if step is None else [each for each in _checkpoints(checkpoint.parent)[0] if (_step(each) or 0) > step]


def first_to_go(output_dir: str | Path, newest: Path) -> list[Path]:
    """The checkpoints of a folder but ``newest``, those first that are missed least.

    These are the ones that were not finished, then those of more steps, which the run left when it went on from an
    earlier one, then the others by their steps. Their times tell nothing: machines and file systems differ in them.
    """
    last = _step(newest) or 0
    others = [each for each in _folders(output_dir) if each != newest]
    return sorted(others, key=lambda each: (_was_finished(each), (_step(each) or 0) <= last, _step(each)))


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


def newest_whole(
    output_dir: str | Path, before: int | None = None, read: bool = False, lacks_optimizer: bool = False
) -> Path | None:
    """The checkpoint with the most steps, fewer than ``before``, that a run can be resumed from. None without one.

    Args:
        read: compare the checksums of its files too.
        lacks_optimizer: only those with all but the optimizer or the schedule, as ``--save_only_model`` leaves them.
    """
    steps = [each for each in _checkpoints(output_dir)[0] if before is None or _step(each) < before]
    fits = (
        each for each in reversed(steps) if not _torn(each, read) and bool(_lacks_optimizer(each)) == lacks_optimizer
    )
    return next(fits, None)


def _torn(checkpoint: Path, read: bool = False) -> str | None:
    """The first file of a checkpoint that is missing, cut short or damaged, and what is wrong with it.

    Args:
        read: look for damage too, which reads all of its files. Only checkpoints with a manifest tell of it.
    """
    if is_sealed(checkpoint):
        return problem_of(checkpoint, read)
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


def _require_checkpoint(folder: Path) -> None:
    """Refuse a folder that is no checkpoint, whole or not."""
    if not folder.is_dir():
        why = "that is no folder" if folder.exists() else "no such folder"
        raise FileNotFoundError(f"{folder}: not a checkpoint ({why})")
    if not (folder / _STATE).is_file():
        newest = newest_whole(folder)
        advice = f": the folder of a run; its newest whole checkpoint is {newest}" if newest else ""
        raise FileNotFoundError(f"{folder}: not a checkpoint (no {_STATE} in it){advice}")


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
            "--overwrite_output_dir, without --resume auto"
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


def _checkpoints(output_dir: str | Path) -> tuple[list[Path], int]:
    """The whole checkpoints of a folder, the newest last, and how many are unfinished."""
    folders = _folders(output_dir)
    whole = sorted((f for f in folders if _was_finished(f)), key=lambda folder: _step(folder) or 0)
    return whole, len(folders) - len(whole)


def _folders(output_dir: str | Path) -> list[Path]:
    named = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return [each for each in named if _step(each) is not None and each.is_dir()]


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


MANIFEST = "manifest.json"
_LEFT_OUT = {MANIFEST, "README.md"}  # a card is for readers: it may be edited, or get the numbers of an evaluation
_THREADS = 8  # zlib computes without Python's lock
_CHUNK_BYTES = 1 << 24


def seal(folder: Path) -> None:
    """Write the manifest of a folder, once the disk holds all of its files. The model card is no part of it.

    Raises:
        OSError: the disk is full, or a file can't be read.
    """
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.name not in _LEFT_OUT)
    with ThreadPoolExecutor(_THREADS) as pool:
        checksums = list(pool.map(_stored_checksum, files))
    rows = {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "crc32": checksum}
        for file, checksum in zip(files, checksums, strict=True)
    }
    with written_whole(folder / MANIFEST) as partial:
        partial.write_text(json.dumps({"files": rows}, indent=1), encoding="utf-8")
        _checksum(partial, store=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)  # the names too
    os.close(descriptor)


def is_sealed(folder: Path) -> bool:
    """Whether the folder has a manifest."""
    return (folder / MANIFEST).is_file()


def total_bytes(folder: Path) -> int:
    """The size of all files of a folder."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and UNFINISHED not in each.name)


def problem_of(folder: Path, read: bool) -> str | None:
    """The first file of a sealed folder that is not as it was when the manifest was written. None where all are.

    Args:
        read: compare the checksums too, not the sizes alone.
    """
    try:
        rows = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        wanted = {name: (int(row["bytes"]), int(row["crc32"])) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / MANIFEST}: cut short or unreadable: {error}"
    for name, (size, _) in wanted.items():
        if not (file := folder / name).is_file():
            return f"{file}: no such file"
        if file.stat().st_size != size:
            return f"{file}: it has {file.stat().st_size} bytes, and had {size} when it was saved"
    if read:
        for name, checksum in zip(wanted, _checksums(folder / name for name in wanted), strict=True):
            if checksum != wanted[name][1]:
                return f"{folder / name}: damaged: its checksum is not the one that it was saved with"
    return None


def _checksums(files: Iterable[Path]) -> list[int]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_checksum, files))


def _stored_checksum(file: Path) -> int:
    return _checksum(file, store=True)


def _checksum(file: Path, store: bool = False) -> int:
    """The CRC-32 of a file. With ``store`` the disk holds the file afterwards."""
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
        if store:
            os.fsync(stream.fileno())
    return checksum


_MARGIN = 1.05  # a checkpoint may need this much more than the one before it


@contextmanager
def whole_checkpoint(trainer: Trainer, folder: Path) -> Iterator[None]:
    """The Trainer writes the checkpoint ``folder`` within. All processes must enter it.

    Raises:
        OSError: with the number of a full disk, before anything is written.
    """
    args = trainer.args
    if args.should_save:
        if folder.exists():  # of a run that ended while it saved, or that resumed from an earlier step
            shutil.rmtree(folder)
        require_space(trainer, folder.parent)
    trainer.accelerator.wait_for_everyone()
    limit, args.save_total_limit = args.save_total_limit, None
    try:
        yield
    finally:
        args.save_total_limit = limit
    trainer.accelerator.wait_for_everyone()  # all of them have written their files
    if args.should_save:
        seal(folder)
        if limit is not None:
            delete_others(folder, limit, trainer.state.best_model_checkpoint)


def delete_others(newest: Path, limit: int, best: str | None) -> None:
    """Keep ``limit`` checkpoints, ``newest`` and the best one among them."""
    kept = {newest.resolve()} | ({Path(best).resolve()} if best else set())
    others = [each for each in first_to_go(newest.parent, newest) if each.resolve() not in kept]
    room = max(0, limit - len(kept))
    for each in others[: max(0, len(others) - room)]:
        shutil.rmtree(each, ignore_errors=True)


def require_space(trainer: Trainer, folder: Path) -> None:
    """Refuse to begin a checkpoint that would fill the disk: it would be torn, and may take others with it.

    Raises:
        OSError: with the number of a full disk, saying how much is needed and how much there is.
    """
    before = [each for each in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if is_sealed(each)]
    newest = max(before, key=lambda each: each.stat().st_mtime, default=None)
    needed = bytes_to_save(trainer) if newest is None else _MARGIN * total_bytes(newest)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"a checkpoint takes about {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free, so none was begun",
        )


def bytes_to_save(trainer: Trainer) -> int:
    """Bytes of weights and optimizer of the first checkpoint. 0 where these are spread over processes."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or trainer.model is None:
        return 0
    adapter = getattr(trainer.model, "peft_config", None) is not None
    saved = [each for each in trainer.model.parameters() if each.requires_grad or not adapter]
    without_optimizer = trainer.args.save_only_model or trainer.optimizer is None
    states = [] if without_optimizer else trainer.optimizer.state.values()
    moments = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(each.numel() * each.element_size() for each in [*saved, *moments])
