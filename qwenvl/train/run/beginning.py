"""What a run begins with: an empty folder, or a checkpoint that it goes on from."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.runlog import RunLogError, read_config, read_metrics
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    newer_ones,
    newest_or_none,
    read_state,
    require_fresh_folder,
    require_same_tuning,
)
from qwenvl.train.run.resumed import require_resumable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """Where a run begins.

    Attributes:
        checkpoint: the folder to resume from. None for a new run.
        finished: why nothing is left to do. None where there is.
    """

    checkpoint: str | None = None
    finished: str | None = None


def begin(args: GRPOConfig) -> Beginning:
    """Look at the folder and the checkpoint of a run before its model is loaded.

    Raises:
        FileExistsError: a new run would replace a model, mix with checkpoints, or write into a foreign file.
        FileNotFoundError: there is no checkpoint to resume from, or it lacks its optimizer or schedule.
        ValueError: the checkpoint is not whole, or the settings differ from those that a resumed run must keep.
    """
    folder = Path(args.output_dir)
    model = Path(str(args.model_name_or_path))
    if folder.exists() and model.exists() and folder.samefile(model):
        raise FileExistsError(
            f"--output_dir {folder} is the folder of --model_name_or_path: the trained model would replace that one; "
            "give another --output_dir"
        )
    try:
        read_metrics(folder)
    except RunLogError as error:
        raise FileExistsError(
            f"{error}; not a file that this library wrote: give another --output_dir, or move the file away"
        ) from None
    checkpoint = checkpoint_of(args)
    if checkpoint is None:
        if args.resume == "auto" and (finished := _finished(None, args)):
            return Beginning(finished=finished)
        require_fresh_folder(folder, args.overwrite_output_dir)
        return Beginning()
    for name in ("overwrite_output_dir", "start_from_weights"):
        if getattr(args, name) and args.resume != "auto":  # which had them when it began
            raise ValueError(f"--{name} has no effect with --resume_from_checkpoint: leave one of the two out")
    require_same_tuning(checkpoint, args.lora_enable)
    require_resumable(checkpoint, args)
    beside = args.resume != "auto" and folder.resolve() == Path(checkpoint).resolve().parent
    if beside and (left := newer_ones(checkpoint)):
        logger.warning(
            f"{left[-1]} is newer than {checkpoint}, from which the run goes on: --resume auto would go on from there, "
            "so move it away if this run is to go another way"
        )
    return Beginning(checkpoint, _finished(read_state(checkpoint)["global_step"], args))


def checkpoint_of(args: GRPOConfig) -> str | None:
    """The checkpoint that the flags ask to go on from. None for a new run.

    Raises:
        FileNotFoundError, ValueError: see ``find_checkpoint``.
    """
    if args.resume == "auto":
        return newest_or_none(args.output_dir)
    return find_checkpoint(args.resume_from_checkpoint if args.resume == "never" else args.resume, args.output_dir)


def _finished(step: int | None, args: GRPOConfig) -> str | None:
    """That the run of ``output_dir`` has ended, saved its model, and is asked for no more.

    Args:
        step: of the checkpoint that the run would go on from. The run must have ended there. None without one.
    """
    try:
        written = read_config(args.output_dir)
    except RunLogError:
        return None
    if not isinstance(ended := written.get("finished"), int) or step not in (None, ended):
        return None
    step = ended
    lengths = ("max_steps", "num_train_epochs", "dataset_use")
    as_before = all(written["config"].get(name) == getattr(args, name) for name in lengths)
    if step < args.max_steps or not (as_before or args.max_steps > 0):
        return None
    return (
        f"finished already: {args.output_dir} holds the model of step {step}, and nothing is left to train; more "
        "--max_steps or --num_train_epochs go on from there"
    )
