"""Checkpoints: written whole or not at all, sealed by a manifest, found again, loaded strictly, deleted in order."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer, TrainerState

from qwenvl.files import written_whole
from qwenvl.model.loading import MisfitError, load_whole, unwrap
from qwenvl.model.saved_adapter import explained_misfit, load_adapter_weights
from qwenvl.model.sharding import is_partitioned
from qwenvl.model.weight_files import ADAPTER_CONFIG, has_weights, weights_problem
from qwenvl.run_log.checkpoints import checkpoints_of, step_of
from qwenvl.run_log.log import EntryTypes, misfit_entry

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_STATE = "trainer_state.json"
_UNSEALED = {MANIFEST, "README.md"}  # a card may be edited, or get the numbers of an evaluation
_THREADS = 8  # zlib computes without Python's lock
_CHUNK_BYTES = 1 << 24


def find_checkpoint(resume: str | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint to resume from, with every file unchanged since it was saved.

    Args:
        resume: a folder; ``auto`` or True ("true", as a command line has it) for the newest whole checkpoint of
            ``output_dir``; None or False for a new run. Newer checkpoints that are not whole are passed over, each with
            a warning that names the missing file.

    Returns:
        None for a new run, with ``auto`` also where no checkpoint was finished.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: a file of it is missing, cut short or damaged, or it has no optimizer or schedule.
    """
    if resume in (None, False, "", "false", "False"):
        return None
    if resume not in (True, "true", "True", "auto"):
        folder = Path(str(resume))
        if not (folder / _STATE).is_file():
            newest = newest_whole(folder)
            advice = f": the folder of a run; its newest whole checkpoint is {newest}" if newest else ""
            raise FileNotFoundError(f"{folder}: not a checkpoint (no {_STATE} in it){advice}")
        problem = problem_of(folder, read=True)
        if problem:
            raise ValueError(f"{problem}{_older(folder)}")
        return str(resume)
    checkpoints = checkpoints_of(output_dir)
    newest = newest_whole(output_dir, read=True)
    sealed = [each for each in checkpoints if is_sealed(each)]
    if newest is None and sealed:  # damaged since it was saved: beginning anew would hide that
        raise ValueError(f"{problem_of(sealed[-1], read=True)}{_older(sealed[-1])}")
    if newest is None and resume != "auto":
        raise FileNotFoundError(
            f"{output_dir}: no whole checkpoint to resume from ({len(checkpoints)} unfinished); leave out "
            "--resume_from_checkpoint to start anew"
        )
    passed_over = checkpoints
    then = "begins anew"
    if newest is not None:
        passed_over = checkpoints[checkpoints.index(newest) + 1 :]
        then = f"resumes from {newest}"
    for each in passed_over:
        logger.warning(f"{each} is passed over, and the run {then}: {problem_of(each, read=True)}")
    return None if newest is None else str(newest)


def newest_whole(output_dir: str | Path, before: int | None = None, read: bool = False) -> Path | None:
    """The checkpoint with the most steps, fewer than ``before``, that a run can be resumed from, or None.

    Args:
        read: compare the checksums of its files too.
    """
    for each in reversed(checkpoints_of(output_dir)):
        is_earlier = before is None or step_of(each) < before
        if is_earlier and not problem_of(each, read):
            return each
    return None


def _older(checkpoint: Path) -> str:
    """The end of a message about a checkpoint that can't be resumed: an older one to take in its place."""
    older = newest_whole(checkpoint.parent, before=step_of(checkpoint))
    if older is None:
        return "; no older checkpoint beside it is whole"
    return f"; the newest older checkpoint that is whole is {older}: resume with --resume_from_checkpoint {older}"


def how_to_go_on(output_dir: str | Path) -> str:
    """The end of the message about a failed run: the checkpoint to resume from, if there is one."""
    whole = newest_whole(output_dir)
    if whole is not None:
        return f"; resume from {whole} with --resume_from_checkpoint {whole}"
    sealed = [each for each in checkpoints_of(output_dir) if is_sealed(each)]
    if sealed:
        return f"; {problem_of(sealed[-1])}"
    return "; there is no checkpoint yet: the same command begins anew"


def read_state(checkpoint: str | Path) -> dict[str, Any]:
    """The Trainer's state in a checkpoint: its step, its log, and the state of callbacks.

    Raises:
        ValueError: it is not JSON, or an entry is unknown or of another type.
    """
    file = Path(checkpoint) / _STATE
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        problem = _state_problem(state)
    except ValueError as error:
        problem = f"not JSON: {error}"
    if problem:
        raise ValueError(f"{file}: {problem}; copy the checkpoint again, or resume from another one")
    return state


_STATE_TYPES: EntryTypes = {
    "global_step": (int, "an integer"),
    "max_steps": (int, "an integer"),
    "num_train_epochs": (int | float, "a number"),
    "epoch": (int | float | None, "a number or null"),
    "train_batch_size": (int | None, "an integer or null"),
    "num_input_tokens_seen": (int, "an integer"),
    "total_flos": (int | float, "a number"),
    "log_history": (list | None, "a list or null"),
    "best_metric": (int | float | None, "a number or null"),
    "best_global_step": (int | None, "an integer or null"),
    "best_model_checkpoint": (str | None, "a text or null"),
    "stateful_callbacks": (dict | None, "an object or null"),
}


def _state_problem(state: Any) -> str | None:
    """The first entry of a state that the Trainer can't read, or None."""
    if not isinstance(state, dict):
        return f"expected an object, got {type(state).__name__}"
    known = {each.name for each in fields(TrainerState)}
    unknown = sorted(state.keys() - known)
    if unknown:
        return f"unknown entry {unknown[0]!r}, as a newer version of transformers may write it"
    misfit = misfit_entry(state, _STATE_TYPES)
    if misfit is not None:
        return misfit
    if state.get("global_step", -1) < 0:
        return f"global_step must be at least 0, got {state.get('global_step', 'none')}"
    for name, entry in (state.get("stateful_callbacks") or {}).items():
        for each in entry if isinstance(entry, list) else [entry]:  # a list where there are several of a class
            if not isinstance(each, dict) or not all(isinstance(each.get(k), dict) for k in ("args", "attributes")):
                return f"stateful_callbacks: {name} must have the objects args and attributes"
    return None


def require_fresh_folder(output_dir: str | Path, overwrite: bool = False) -> None:
    """Refuse to begin a run in a folder that an earlier run has filled.

    New checkpoints would stand among old ones: resuming takes the highest step, ``save_total_limit`` deletes the
    lowest. The model of a run without checkpoints would be replaced.

    Args:
        overwrite: whether the model of an earlier run may be replaced. Its checkpoints may not.

    Raises:
        FileExistsError: the folder holds a checkpoint or a model. The message says what to do.
    """
    # Without run.json the folder is of another program, whose checkpoints have no manifest.
    foreign = not (Path(output_dir) / "run.json").is_file()
    every = checkpoints_of(output_dir)
    whole = [each for each in every if is_sealed(each) or (foreign and (each / _STATE).is_file())]
    if whole:
        raise FileExistsError(
            f"{whole[-1]}: a checkpoint of an earlier run, with which a new one would mix its own; give another "
            "--output_dir, resume with --resume_from_checkpoint True, in Python train(resume_from_checkpoint=True), or "
            "delete the folder"
        )
    if has_weights(output_dir) and not overwrite:
        raise FileExistsError(
            f"{output_dir}: holds a model, which this run would replace; give another --output_dir, or allow it with "
            "--overwrite_output_dir, in Python GRPOConfig(overwrite_output_dir=True), without --resume auto"
        )


def require_same_tuning(checkpoint: str | Path, lora: bool) -> None:
    """Refuse a checkpoint of adapters to a run that trains whole weights, and one of whole weights to LoRA.

    Raises:
        ValueError: the checkpoint is of the other kind. The message says how to resume from it.
    """
    adapters = (Path(checkpoint) / ADAPTER_CONFIG).is_file()
    if adapters and not lora:
        raise ValueError(f"{checkpoint}: holds LoRA adapters; resume with --lora_enable, as that run was made")
    if lora and not adapters:
        raise ValueError(f"{checkpoint}: holds a whole model, no LoRA adapters; resume without --lora_enable")


def is_sealed(folder: Path) -> bool:
    """Whether saving has finished: the folder has a manifest, which is written last."""
    return (folder / MANIFEST).is_file()


ABANDONED = "abandoned-"
"""In front of the names of checkpoints that a run has gone back from."""


def set_aside(output_dir: str | Path, step: int) -> list[Path]:
    """Rename the checkpoints of later steps than ``step``, from which a run goes on, and return their new places.

    They have the weights that it goes back from. Under their own names ``--resume auto`` would take the last of them.
    """
    places = []
    for checkpoint in checkpoints_of(output_dir):
        if step_of(checkpoint) <= step or not is_sealed(checkpoint):
            continue  # one that is not whole is passed over, and written again
        place = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
        number = 1
        while place.exists():
            number += 1
            place = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}-{number}")
        checkpoint.rename(place)
        places.append(place)
    return places


def seal(folder: Path) -> None:
    """Write the manifest of a folder, once the disk holds all of its files.

    Raises:
        OSError: the disk is full, or a file can't be read.
    """
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.name not in _UNSEALED)
    checksums = _checksums(files, store=True)
    rows = {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "crc32": checksum}
        for file, checksum in zip(files, checksums, strict=True)
    }
    with written_whole(folder / MANIFEST) as unfinished:
        unfinished.write_text(json.dumps({"files": rows}, indent=1), encoding="utf-8")
        _checksum(unfinished, store=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)  # the names too
    os.close(descriptor)


def problem_of(folder: Path, read: bool = False) -> str | None:
    """The reason why a checkpoint can't be resumed: its first file that is missing or damaged. None: it is whole.

    Args:
        read: compare the checksums too, not the sizes alone.
    """
    if not is_sealed(folder):
        return f"{folder / MANIFEST}: no such file, so that saving was cut short"
    try:
        rows = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {folder / name: (int(row["bytes"]), int(row["crc32"])) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / MANIFEST}: cut short or unreadable: {error}"
    for file, (size, _) in expected.items():
        if not file.is_file():
            return f"{file}: no such file"
        if file.stat().st_size != size:
            return f"{file}: it has {file.stat().st_size} bytes, and had {size} when it was saved"
    if read:
        for file, checksum in zip(expected, _checksums(expected), strict=True):
            if checksum != expected[file][1]:
                return f"{file}: damaged: its checksum is not the one that it was saved with"
    for name in _files_of_the_optimizer(folder):
        if not (folder / name).is_file():
            return (
                f"{folder / name}: no such file, and without it optimizer and learning rate would begin anew "
                f"(--save_only_model). A new run can begin with these weights: --start_from_weights {folder} and "
                "another --output_dir"
            )
    return None


def _files_of_the_optimizer(folder: Path) -> list[str]:
    """The files in which a checkpoint must have optimizer and schedule, by what splits the model."""
    if (folder / "latest").is_file():
        return []  # DeepSpeed keeps both in the folder that the file ``latest`` names
    by_fsdp = any(folder.glob("optimizer.bin")) or any(folder.glob("optimizer_*/"))
    return ["scheduler.pt"] if by_fsdp else ["optimizer.pt", "scheduler.pt"]


def _checksums(files: Iterable[Path], store: bool = False) -> list[int]:
    """The checksums of files, several at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(partial(_checksum, store=store), files))


def _checksum(file: Path, store: bool) -> int:
    """The CRC-32 of a file. With ``store`` the disk holds the file afterwards."""
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
        if store:
            os.fsync(stream.fileno())
    return checksum


@contextmanager
def whole_checkpoint(trainer: Trainer, folder: Path) -> Iterator[None]:
    """Let the Trainer write the checkpoint ``folder`` within, and seal it. All processes must enter.

    The Trainer deletes old checkpoints before the new one is whole, and by their times. So it keeps all of them here,
    and ``delete_others`` follows.
    """
    args = trainer.args
    if args.should_save and folder.exists():  # of a run that ended while it saved, or resumed from an earlier step
        shutil.rmtree(folder)
    trainer.accelerator.wait_for_everyone()
    limit = args.save_total_limit
    args.save_total_limit = None
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
    """Keep ``limit`` checkpoints, ``newest`` and the best one among them.

    Unfinished ones are deleted first, then those with more steps than ``newest``, which the run left when it resumed
    from an earlier one, then the others by their steps. Their times are not used: file systems differ in them.
    """
    kept = {newest.resolve()}
    if best:
        kept.add(Path(best).resolve())
    others = [each for each in checkpoints_of(newest.parent) if each.resolve() not in kept]
    others.sort(key=lambda each: (is_sealed(each), step_of(each) <= step_of(newest), step_of(each)))
    room = max(0, limit - len(kept))
    surplus = max(0, len(others) - room)
    for each in others[:surplus]:
        shutil.rmtree(each, ignore_errors=True)


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Load the weights that ``save_pretrained`` wrote into a live model of the same class, strictly.

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
    problem = weights_problem(folder)
    if problem:
        raise ValueError(f"--start_from_weights {problem}")
    if is_partitioned(model):
        raise ValueError("--start_from_weights: DeepSpeed ZeRO-3 has split the model already: use --model_name_or_path")
    adapter = unwrap(model) is not model
    require_same_tuning(folder, adapter)
    try:
        if adapter:
            load_adapter_weights(model, folder, trainable=True)
        else:
            load_weights(model, folder)
    except MisfitError as error:
        raise MisfitError(f"--start_from_weights {error}") from None
