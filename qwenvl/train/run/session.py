"""One call of ``train``: the checkpoint it begins with, and what ends it early: a signal, a stall, a lost engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.rollout.engine import EngineLostError
from qwenvl.runlog import RunLogError, read_config, read_metrics
from qwenvl.train.display.console import say
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    newer_ones,
    newest_or_none,
    read_state,
    require_fresh_folder,
    require_same_tuning,
)
from qwenvl.train.run.resumed import require_resumable, tell_changes
from qwenvl.train.run.stalled import StallWatch
from qwenvl.train.run.stopping import StopOnSignal

_UNNAMED = "trainer_output"  # the folder that transformers takes without --output_dir
_CONTROL = "TrainerControl"  # the Trainer's own part of a checkpoint's state


def checkpoint_to_resume(args: GRPOConfig, resume_from_checkpoint: str | bool | None) -> str | None:
    """The checkpoint that training resumes from, checked against the settings. None for a new run.

    Args:
        resume_from_checkpoint: as ``Trainer.train`` takes it. None: what ``resume`` of the settings says.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: see ``PolicyTrainer.train``.
    """
    by_settings = resume_from_checkpoint is None and args.resume != "never"
    checkpoint = checkpoint_of(args) if by_settings else find_checkpoint(resume_from_checkpoint, args.output_dir)
    if checkpoint is None:
        require_fresh_folder(args.output_dir, args.overwrite_output_dir)
    else:
        require_resumable(checkpoint, args)
        tell_changes(checkpoint, args)
    if Path(args.output_dir).name == _UNNAMED:
        say(f"writing to {args.output_dir}: no --output_dir was given")
    return checkpoint


@contextmanager
def interruptible(trainer: Any) -> Iterator[StopOnSignal]:
    """Training runs within. A signal or a stall ends it, and a lost engine after a checkpoint of the last step.

    Args:
        trainer: a ``PolicyTrainer``.

    Raises:
        EngineLostError: in all processes, where nothing samples any more.
    """
    stop, stall = StopOnSignal(trainer.args), StallWatch(trainer.args, trainer.doing)
    added = (stop, stall, PendingEvaluation(trainer))
    for each in added:
        trainer.add_callback(each)
    try:
        with stop.listens(), stall.watches():
            yield stop
    except EngineLostError:  # while a step or an evaluation had its completions sampled
        trainer.save_last_step()
        raise
    finally:
        for each in added:
            trainer.remove_callback(each)


def has_pending_evaluation(state: TrainerState) -> bool:
    """Whether the checkpoint that a run resumes from was saved in the midst of an evaluation."""
    return state.global_step > 0 and bool(_control(state).get("should_evaluate"))


def _control(state: TrainerState) -> dict[str, Any]:
    return state.stateful_callbacks.get(_CONTROL, {}).get("args", {})


class PendingEvaluation(TrainerCallback):
    """An evaluation to be repeated after resume, because the engine died during it.

    Must come after the callback that opens the run folder. Where the best checkpoint is looked for, the one of this
    step is saved again, as it is when no engine is lost.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """The evaluation of the last step."""
        if not has_pending_evaluation(state):
            return
        control.should_evaluate, control.should_log = True, False
        control.should_save = bool(_control(state).get("should_save")) and args.metric_for_best_model is not None
        trainer = self._trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, None, trainer.model, None, state.epoch, ignore_keys_for_eval=None, start_time=0.0
        )


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
