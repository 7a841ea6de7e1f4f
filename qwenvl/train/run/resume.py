"""Decides where a run begins: in a new folder or at a checkpoint, whose run must have had the same settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.settings import prompts_per_step
from qwenvl.console import say
from qwenvl.data.records.record_file import fingerprint_of
from qwenvl.failure import counted
from qwenvl.own_code import code_hashes
from qwenvl.run_log.log import RunLogError, plain, read_config
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    read_state,
    require_fresh_folder,
    require_same_tuning,
)
from qwenvl.types import Record

logger = logging.getLogger(__name__)

SHARED = (
    "seed",
    "train_sampling_strategy",
    "num_iterations",
    "async_rollouts",
    "sync_ref_model",
    "learning_rate",
    "mm_projector_lr",
    "vision_tower_lr",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "tune_mm_llm",
    "tune_mm_mlp",
    "tune_mm_vision",
    "lora_r",
    "lora_alpha",
)
"""Settings that a resumed run can't change: their effects are in the checkpoint, in weights, optimizer or schedule."""
_STEP = "prompts of an optimizer step"
_OF_THE_COMMAND = {"output_dir", "logging_dir", "run_name", "resume", "resume_from_checkpoint", "overwrite_output_dir"}
"""Settings of the folder and the beginning of a run: they differ when it is resumed."""
_RATE_FOLLOWS_METRIC = ("reduce_lr_on_plateau", "greedy")
_UNNAMED = "trainer_output"  # the default --output_dir of transformers


class SettingsError(ValueError):
    """Settings that turn out not to fit the run when it begins."""


@dataclass(frozen=True)
class Beginning:
    """The place where a run begins.

    Attributes:
        checkpoint: the folder to resume from. None for a new run.
        finished: the message of a run that is finished already. None: there is something to do.
    """

    checkpoint: str | None = None
    finished: str | None = None


def begin(args: GRPOConfig, requested: str | bool | None = None, adapter: bool | None = None) -> Beginning:
    """Look at the folder and the checkpoint of a run, which a command does before it loads the model.

    Args:
        requested: the checkpoint, as ``find_checkpoint`` takes it. None: the one that the flags name.
        adapter: whether the model has an adapter. None: as ``lora_enable`` says.

    Raises:
        FileExistsError: a new run would replace a model, or mix with checkpoints.
        FileNotFoundError: there is no checkpoint to resume from.
        ValueError: the checkpoint is not whole, or the settings differ from those that a resumed run must keep.
    """
    folder = Path(args.output_dir)
    model = Path(str(args.model_name_or_path))
    if folder.exists() and model.exists() and folder.samefile(model):
        raise FileExistsError(
            f"--output_dir {folder} is the folder of --model_name_or_path: the trained model would replace that one; "
            "give another --output_dir"
        )
    if requested is None:
        requested = args.resume_from_checkpoint if args.resume == "never" else args.resume
    checkpoint = find_checkpoint(requested, folder)
    if folder.name == _UNNAMED:
        say(f"writing to {folder}: no --output_dir was given")
    if checkpoint is None:
        finished = _finished(None, args) if args.resume == "auto" else None
        if finished is not None:
            return Beginning(finished=finished)
        require_fresh_folder(folder, args.overwrite_output_dir)
        return Beginning()
    for name in ("overwrite_output_dir", "start_from_weights"):
        if getattr(args, name) and args.resume != "auto":  # the command of auto is the one that began the run
            raise ValueError(f"--{name} has no effect with --resume_from_checkpoint: leave one of the two out")
    require_same_tuning(checkpoint, args.lora_enable if adapter is None else adapter)
    require_resumable(checkpoint, args)
    return Beginning(checkpoint, _finished(read_state(checkpoint)["global_step"], args))


def require_no_trained_run(args: GRPOConfig, trained_steps: int) -> None:
    """Refuse to begin a run in a script where it would replace the metrics and rollouts of one that was trained.

    Such a run needs neither a checkpoint nor a saved model: a script may have called ``train`` and no more. Commands
    save a model, which ``begin`` looks for: if saving fails, the same command begins anew.

    Args:
        trained_steps: optimizer steps of earlier calls of ``train`` of the same trainer, also of one that was ended.

    Raises:
        FileExistsError: the message says what to do.
    """
    if args.overwrite_output_dir:
        return
    allow = "GRPOConfig(overwrite_output_dir=True)"
    if trained_steps:
        raise FileExistsError(
            f"{args.output_dir}: holds the metrics and rollouts of the {counted(trained_steps, 'step')} that this "
            "trainer has trained, which a second call of train() would replace; go on with the trained weights in a "
            f"new trainer, GRPOTrainer(trainer.model, ...), with another output_dir, or allow it with {allow}"
        )
    try:
        trained = read_config(args.output_dir).get("trained")
    except RunLogError:
        return
    if trained and args.resume != "auto":
        raise FileExistsError(
            f"{args.output_dir}: holds the metrics and rollouts of a run of {counted(trained, 'step')}, which this one "
            f"would replace; give another output_dir, or allow it with {allow}"
        )


def _finished(step: int | None, args: GRPOConfig) -> str | None:
    """A message if the run of ``output_dir`` has ended, saved its model, and the flags request no more steps.

    Args:
        step: that of the checkpoint to resume from, at which the run must have ended. None without a checkpoint.
    """
    try:
        written = read_config(args.output_dir)
    except RunLogError:
        return None
    ended = written.get("finished")
    if not isinstance(ended, int) or step not in (None, ended):
        return None
    lengths = ("max_steps", "num_train_epochs", "dataset_use")
    as_before = all(written["config"].get(name) == getattr(args, name) for name in lengths)
    wants_more = ended < args.max_steps
    length_is_known = args.max_steps > 0 or as_before  # otherwise it follows from epochs and data
    if wants_more or not length_is_known:
        return None
    return (
        f"finished already: {args.output_dir} holds the model of step {ended}, and nothing is left to train; more "
        "--max_steps or --num_train_epochs continue from there"
    )


def shared_settings(args: Any) -> dict[str, Any]:
    """The values of the settings that a run and its resumption share, as JSON can hold them."""
    values = {name: getattr(args, name) for name in SHARED}
    values["data_seed"] = args.seed if args.data_seed is None else args.data_seed
    values[_STEP] = prompts_per_step(args)
    if args.entropy_target is not None:
        values["entropy_coef"] = args.entropy_coef  # the first weight of the bonus, which then moves
    values["lr_scheduler_type"] = None
    values["lr_scheduler_kwargs"] = None
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if schedule in _RATE_FOLLOWS_METRIC:  # a schedule that is a function of the step may change
        values["lr_scheduler_type"] = schedule
        values["lr_scheduler_kwargs"] = dict(args.lr_scheduler_kwargs or {})
    return {name: getattr(value, "value", value) for name, value in values.items()}


def require_resumable(checkpoint: str | Path, args: GRPOConfig) -> None:
    """Refuse settings that a run resumed from ``checkpoint`` can't change. Warn in one line of all others that differ.

    Raises:
        SettingsError: settings differ. The message has the values of then and now.
    """
    saved = _saved_settings(checkpoint)
    if saved is None:
        raise SettingsError(
            f"{checkpoint}: has no settings of a run of this library to compare; begin a new run with its weights: "
            f"--start_from_weights {checkpoint}"
        )
    now = shared_settings(args)
    changed = {name: saved[name] for name in now if name in saved and saved[name] != now[name]}
    if changed:
        names = {name: name if name == _STEP else f"--{name}" for name in changed}
        lines = [f"{names[name]}: {before} -> {now[name]}" for name, before in changed.items()]
        raise SettingsError(
            "a resumed run can't change these settings:\n  "
            + "\n  ".join(lines)
            + "\nset them as they were, or begin a new run with the checkpoint's weights: --start_from_weights"
        )
    folder = Path(checkpoint).resolve().parent
    try:
        before = read_config(folder)["config"]
    except RunLogError as error:
        if (folder / "run.json").exists():
            logger.warning(f"{error}; so the other settings are not compared with those of {checkpoint}")
        return
    after = plain(args.to_dict())
    both = sorted((after.keys() & before.keys()) - _OF_THE_COMMAND)
    others = [f"--{name} {before[name]} -> {after[name]}" for name in both if before[name] != after[name]]
    if others:
        logger.warning(f"resumed with other settings than those of {checkpoint}: {', '.join(others)}")


def _saved_settings(checkpoint: str | Path) -> dict[str, Any] | None:
    """The ``shared_settings`` of the time when the checkpoint was saved. None: another program wrote it."""
    entry = (read_state(checkpoint).get("stateful_callbacks") or {}).get("Resumed")
    shared = entry["attributes"].get("shared") if isinstance(entry, dict) else None
    return shared if isinstance(shared, dict) else None


def _other_data(saved: Any, now: dict[str, Any]) -> str | None:
    """A warning where the training data differ from those of the checkpoint. None: they are alike, or not known.

    Args:
        saved: the fingerprint in the checkpoint. None: an earlier version wrote it, or the run is new.
        now: the fingerprint of the data of this run.
    """
    if saved in (None, now) or not isinstance(saved, dict):
        return None
    before = saved.get("records")
    if before == now["records"]:
        difference = f"some of their {before:,} ids, prompts or solutions differ"
    else:
        difference = f"records {before} -> {now['records']}"
    return (
        f"resumed with other training data than those of the checkpoint ({difference}): what it learned from the "
        "earlier ones stays; to train on these alone, begin a new run"
    )


def _other_code(saved: Any, now: dict[str, str]) -> str | None:
    """A warning where files of rewards or tools have changed since the checkpoint. None: they are alike."""
    if not isinstance(saved, dict):
        return None
    changed = sorted(name for name in saved.keys() & now.keys() if saved[name] != now[name])
    if not changed:
        return None
    return f"resumed with another version of {', '.join(changed)} than that of the checkpoint"


class Resumed(TrainerCallback):
    """Makes a resumed run end as its checkpoint's run would have.

    Each checkpoint has the settings that both must share, and a fingerprint of the training data, which may change.

    Args:
        records: the training data. None for a data set of another library: checkpoints have no fingerprint.

    Raises:
        SettingsError: when training begins.
    """

    def __init__(self, records: Sequence[Record] | None = None) -> None:
        self._records = records
        self._ended = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Compare settings and data with the checkpoint, and stop a run that is finished already."""
        self._ended = state.global_step >= state.max_steps
        if state.global_step % args.num_iterations and not self._ended:
            raise SettingsError(
                f"the checkpoint of step {state.global_step} can't be resumed with --num_iterations "
                f"{args.num_iterations}: it lacks the completions of the next step; resume from one "
                f"whose step is a multiple of {args.num_iterations}"
            )
        attributes = {"shared": shared_settings(args), "code": code_hashes(args)}
        saved = state.stateful_callbacks.get("Resumed", {"attributes": {}})["attributes"]
        warnings = [_other_code(saved.get("code"), attributes["code"])]
        if self._records is not None:
            attributes["data"] = fingerprint_of(self._records)
            warnings.append(_other_data(saved.get("data"), attributes["data"]))
        for warning in warnings:
            if warning and state.is_world_process_zero:
                logger.warning(warning)
        # The form in which the Trainer keeps the state of callbacks: so each checkpoint has these entries.
        state.stateful_callbacks["Resumed"] = {"args": {}, "attributes": attributes}
        if self._ended:
            control.should_training_stop = True
            logger.warning(
                f"the run is finished: the checkpoint is of step {state.global_step} of {state.max_steps}, nothing is "
                "left to train; more --max_steps or --num_train_epochs continue from it"
            )

    def on_epoch_end(self, args, state, control, **kwargs):
        """Keep a finished run from evaluating and saving a second time."""
        if self._ended:
            control.should_evaluate = False
            control.should_save = False
            control.should_log = False
