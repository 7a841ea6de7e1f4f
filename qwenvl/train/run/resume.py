"""Where a run begins: in a new folder or at a checkpoint; what both runs must share, and what is not repeated."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

from qwenvl.config.checks import saves_within_windows
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.runlog import RunLogError, plain, read_config, read_metrics
from qwenvl.train.display.console import say
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    newer_ones,
    read_state,
    require_fresh_folder,
    require_same_tuning,
)

logger = logging.getLogger(__name__)

_SEED = "the frames and completions of each step are drawn by it"
_ORDER = "the order of the prompts depends on it, and the prompts of the steps that are done would not be skipped"
_OPTIMIZER = "the optimizer is restored with its earlier value"
_REFERENCE = "a checkpoint has the reference only if it moves"
_WEIGHTS = "the weights of the checkpoint were trained with it"
SHARED = {
    "seed": _SEED,
    "data_seed": _ORDER,
    "train_sampling_strategy": _ORDER,
    "num_iterations": _ORDER,
    "async_rollouts": "it decides which weights sample which step",
    "sync_ref_model": _REFERENCE,
    "optim": _OPTIMIZER,
    "optim_args": _OPTIMIZER,
    "weight_decay": _OPTIMIZER,
    "adam_beta1": _OPTIMIZER,
    "adam_beta2": _OPTIMIZER,
    "adam_epsilon": _OPTIMIZER,
    "tune_mm_llm": _WEIGHTS,
    "tune_mm_mlp": _WEIGHTS,
    "tune_mm_vision": _WEIGHTS,
    "lora_r": _WEIGHTS,
    "lora_alpha": _WEIGHTS,
}
"""Settings that a resumed run can't change, and why. Learning rates are compared with the optimizer's own."""
_STEP = "prompts of a step"
_REFERENCE_FROM = "checkpoint of the reference"
_DATA = "dataset_use"
_OF_THE_COMMAND = {"output_dir", "logging_dir", "run_name", "resume", "resume_from_checkpoint", "overwrite_output_dir"}
"""Settings of the folder and the beginning of a run: they differ when it is resumed."""
_RATE_FOLLOWS_METRIC = ("reduce_lr_on_plateau", "greedy")
_UNNAMED = "trainer_output"  # the default --output_dir of transformers
_CONTROL = "TrainerControl"  # the Trainer's own part of a checkpoint's state


class SettingsError(ValueError):
    """Settings that turn out not to fit the run when it begins."""


@dataclass(frozen=True)
class Beginning:
    """Where a run begins.

    Attributes:
        checkpoint: the folder to resume from. None for a new run.
        finished: why nothing is left to do. None: there is something to do.
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
    checkpoint = requested_checkpoint(args)
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
    if beside and (newer := newer_ones(checkpoint)):
        logger.warning(
            f"{newer[-1]} is newer than {checkpoint}, from which the run resumes: --resume auto would resume from the "
            "newer one, so move it away if this run is to take another course"
        )
    return Beginning(checkpoint, _finished(read_state(checkpoint)["global_step"], args))


def checkpoint_to_resume(args: GRPOConfig, resume_from_checkpoint: str | bool | Beginning | None) -> str | None:
    """The checkpoint that training resumes from, checked against the settings. None for a new run.

    Args:
        resume_from_checkpoint: as ``PolicyTrainer.train`` takes it.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: see ``PolicyTrainer.train``.
    """
    if isinstance(resume_from_checkpoint, Beginning):
        checkpoint = resume_from_checkpoint.checkpoint
    else:
        by_settings = resume_from_checkpoint is None and args.resume != "never"
        checkpoint = (
            requested_checkpoint(args) if by_settings else find_checkpoint(resume_from_checkpoint, args.output_dir)
        )
        if checkpoint is None:
            require_fresh_folder(args.output_dir, args.overwrite_output_dir)
        else:
            require_resumable(checkpoint, args)
    if checkpoint is not None:
        warn_of_changes(checkpoint, args)
    if Path(args.output_dir).name == _UNNAMED:
        say(f"writing to {args.output_dir}: no --output_dir was given")
    return checkpoint


def requested_checkpoint(args: GRPOConfig) -> str | None:
    """The checkpoint that the flags request to resume from. None for a new run.

    Raises:
        FileNotFoundError, ValueError: see ``find_checkpoint``.
    """
    return find_checkpoint(args.resume_from_checkpoint if args.resume == "never" else args.resume, args.output_dir)


def _finished(step: int | None, args: GRPOConfig) -> str | None:
    """A message if the run of ``output_dir`` has ended, saved its model, and the flags request no more steps.

    Args:
        step: of the checkpoint that the run would resume from. The run must have ended there. None without one.
    """
    try:
        written = read_config(args.output_dir)
    except RunLogError:
        return None
    if not isinstance(ended := written.get("finished"), int) or step not in (None, ended):
        return None
    lengths = ("max_steps", "num_train_epochs", "dataset_use")
    as_before = all(written["config"].get(name) == getattr(args, name) for name in lengths)
    if ended < args.max_steps or not (as_before or args.max_steps > 0):
        return None
    return (
        f"finished already: {args.output_dir} holds the model of step {ended}, and nothing is left to train; more "
        "--max_steps or --num_train_epochs continue from there"
    )


def shared_settings(args: Any) -> dict[str, Any]:
    """The values that a run and its resumption have in common, as JSON can hold them."""
    values = {name: getattr(args, name) for name in SHARED}
    values["data_seed"] = args.seed if args.data_seed is None else args.data_seed
    values[_REFERENCE_FROM] = _reference_of(args)
    values[_DATA] = args.dataset_use
    values[_STEP] = _prompts_per_step(args)
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    values["lr_scheduler_type"] = schedule
    if schedule in _RATE_FOLLOWS_METRIC:
        values["lr_scheduler_kwargs"] = dict(args.lr_scheduler_kwargs or {})
    return {name: getattr(value, "value", value) for name, value in values.items()}


def _reference_of(args: Any) -> str | None:
    """The checkpoint of the reference, where the settings name one."""
    name = args.ref_model_name_or_path or args.model_name_or_path
    if not name or not args.grpo_beta:
        return None
    return str(Path(name).resolve()) if Path(name).exists() else str(name)


def _prompts_per_step(args: Any) -> int:
    return args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps


def require_resumable(checkpoint: str | Path, args: GRPOConfig) -> None:
    """Refuse settings that a run resumed from ``checkpoint`` can't take.

    Raises:
        SettingsError: naming each of them, its value then and now, and the reason.
    """
    state = (read_state(checkpoint).get("stateful_callbacks") or {}).get("Resumed")
    if state is None:
        raise SettingsError(
            f"{checkpoint}: has no settings of a run of this library to compare; begin a new run with its weights: "
            f"--start_from_weights {checkpoint}"
        )
    require_shared(state["attributes"]["shared"], args)


def require_shared(saved: Mapping[str, Any], args: GRPOConfig) -> None:
    """Refuse settings that differ from those of the checkpoint and that a resumed run can't take.

    Args:
        saved: ``shared_settings`` of the run that wrote the checkpoint.

    Raises:
        SettingsError: naming each of them, its value then and now, and the reason.
    """
    problems = []
    for name, now in shared_settings(args).items():
        before = saved.get(name, now)
        if name == "lr_scheduler_type" and not {before, now} & set(_RATE_FOLLOWS_METRIC):
            continue  # a schedule that is a function of the step may change
        if now == before:
            continue
        if name == _REFERENCE_FROM:  # the same weights may have moved
            logger.warning(
                f"the KL was measured against {before} and will be against {now}: see that they are the same"
            )
        elif name == _DATA:  # the same records may have moved
            logger.warning(
                f"the prompts were drawn from {before} and will be from {now}, where as many are skipped as were "
                "drawn: see that they are the same. With other data rather begin a new run: --start_from_weights"
            )
        elif name == _STEP:
            problems.append(
                f"an optimizer step had {before} prompts and would have {now}: processes x "
                f"--per_device_train_batch_size x --gradient_accumulation_steps must stay {before}; {_ORDER}"
            )
        else:
            reason = SHARED.get(name, "the schedule is restored with its earlier arguments")
            problems.append(f"--{name} was {before} and is {now}: {reason}")
    if problems:
        raise SettingsError(
            "a resumed run can't change these settings:\n  "
            + "\n  ".join(problems)
            + "\nset them as they were, or begin a new run with the checkpoint's weights: --start_from_weights"
        )


def warn_of_changes(checkpoint: str | Path, args: GRPOConfig) -> None:
    """Warn in one line of all settings that differ from those in ``run.json`` beside a checkpoint."""
    try:
        before = read_config(Path(checkpoint).resolve().parent)["config"]
    except RunLogError:
        return
    now = plain(args.to_dict())
    names = sorted((now.keys() & before.keys()) - _OF_THE_COMMAND)
    if changed := [f"--{name} {before[name]} -> {now[name]}" for name in names if before[name] != now[name]]:
        logger.warning(f"resumed with other settings than those of {checkpoint}: {', '.join(changed)}")


class Resumed(TrainerCallback, ExportableState):
    """Makes a resumed run continue as its checkpoint's run would have: its settings and its end.

    Each checkpoint has the settings that both must share.

    Raises:
        SettingsError: when training begins.
    """

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {}
        self._ended = False
        self._evaluates_on_start = False

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint."""
        return {"args": {}, "attributes": {"shared": self.shared}}

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        """Compare steps and learning rates. A run that is finished stops at once."""
        self.shared, self._evaluates_on_start = shared_settings(args), args.eval_on_start
        self._ended = state.global_step >= state.max_steps
        if args.num_iterations > 1 and not self._ended:
            _require_whole_windows(args, state)
        if state.global_step:
            _require_same_rates(args, optimizer)
            args.eval_on_start = False  # the run's start was evaluated when it began
        state.stateful_callbacks[type(self).__name__] = self.state()
        if self._ended:
            control.should_training_stop = True
            logger.warning(
                f"the run is finished: the checkpoint is of step {state.global_step} of {state.max_steps}, nothing is "
                "left to train; more --max_steps or --num_train_epochs continue from it"
            )

    def on_epoch_begin(self, args, state, control, **kwargs):
        """The setting is as the user set it again."""
        args.eval_on_start = self._evaluates_on_start

    def on_epoch_end(self, args, state, control, **kwargs):
        """A finished run neither evaluates nor saves a second time."""
        if self._ended:
            control.should_evaluate = control.should_save = control.should_log = False


def _require_whole_windows(args: GRPOConfig, state: Any) -> None:
    """A run with several steps on the same completions starts, and leaves checkpoints, only where new ones are sampled.

    The Trainer's state has fractions of the run as numbers of steps, which the flags did not have yet.
    """
    problems = list(saves_within_windows(args, state.save_steps, state.eval_steps))
    if state.global_step % args.num_iterations:
        problems.append(
            f"the checkpoint of step {state.global_step} can't be resumed with --num_iterations "
            f"{args.num_iterations}: it lacks the completions of the next step; resume from one "
            f"whose step is a multiple of {args.num_iterations}"
        )
    if problems:
        raise SettingsError("\n".join(problems))


def _require_same_rates(args: GRPOConfig, optimizer: Any) -> None:
    """Learning rates are restored with optimizer and schedule: another flag would have no effect."""
    kept = {group["initial_lr"] for group in optimizer.param_groups if "initial_lr" in group}
    if changed := kept - {args.learning_rate, args.mm_projector_lr, args.vision_tower_lr}:
        rates = " and ".join(f"{rate:g}" for rate in sorted(changed))
        raise SettingsError(
            f"a resumed run keeps the learning rates of its checkpoint, {rates} among them, which none "
            "of --learning_rate, --mm_projector_lr and --vision_tower_lr now is: set it again, or begin a new run with "
            "the checkpoint's weights: --start_from_weights"
        )


def has_pending_evaluation(state: TrainerState) -> bool:
    """Whether the checkpoint that a run resumes from was saved in the midst of an evaluation."""
    return state.global_step > 0 and bool(_control(state).get("should_evaluate"))


def _control(state: TrainerState) -> dict[str, Any]:
    return state.stateful_callbacks.get(_CONTROL, {}).get("args", {})


class PendingEvaluation(TrainerCallback):
    """An evaluation to be repeated after resume, because the engine died during it.

    Must come after the callback that opens the run folder. With ``metric_for_best_model`` the checkpoint of this step
    is saved again after the evaluation, as in a run whose engine lives.
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
