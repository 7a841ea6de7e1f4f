"""What a resumed run must share with its checkpoint, and what it does differently from a run that begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from qwenvl.config.grpo_config import GRPOConfig, saves_within_windows
from qwenvl.runlog import RunLogError, read_config
from qwenvl.runlog.run import plain
from qwenvl.train.run.checkpoints import SEALED, kept_settings

logger = logging.getLogger(__name__)

_SEED = "the frames and completions of each step are drawn by it"
_ORDER = "the order of the prompts hangs on it, and the prompts of the steps that are done would not be skipped"
_OPTIMIZER = "the optimizer comes back with the value that it was made with"
_REFERENCE = "a checkpoint holds the reference where it moves"
_WEIGHTS = "the weights of the checkpoint were trained with it"
SHARED = {
    "seed": _SEED,
    "data_seed": _ORDER,
    "train_sampling_strategy": _ORDER,
    "num_iterations": _ORDER,
    "async_rollouts": "which weights sample which step hangs on it",
    "sync_ref_model": _REFERENCE,
    "difficulty_band": _ORDER,
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
"""Settings that say where a run is and how it begins: they differ when it is resumed."""
_RATE_FOLLOWS_METRIC = ("reduce_lr_on_plateau", "greedy")


class SettingsError(ValueError):
    """Settings that turn out not to fit the run when it begins."""


def shared_settings(args: GRPOConfig | SimpleNamespace) -> dict[str, Any]:
    """The values that a run and its resumption have in common, as JSON can hold them."""
    values = {name: getattr(args, name) for name in SHARED}
    values["data_seed"] = args.seed if args.data_seed is None else args.data_seed
    values[_REFERENCE_FROM] = _reference_of(args)
    values[_DATA] = args.dataset_use
    values[_STEP] = args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    values["lr_scheduler_type"] = schedule
    if schedule in _RATE_FOLLOWS_METRIC:
        values["lr_scheduler_kwargs"] = dict(args.lr_scheduler_kwargs or {})
    return {name: getattr(value, "value", value) for name, value in values.items()}


def _reference_of(args: GRPOConfig | SimpleNamespace) -> str | None:
    """The checkpoint that the reference is made from, where the settings name one."""
    name = args.ref_model_name_or_path or args.model_name_or_path
    if not name or not args.grpo_beta:
        return None
    return str(Path(name).resolve()) if Path(name).exists() else str(name)


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
            continue  # a schedule that is a function of the step is simply taken
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
            reason = SHARED.get(name, "the schedule comes back as it was made")
            problems.append(f"--{name} was {before} and is {now}: {reason}")
    if problems:
        raise SettingsError(
            "a resumed run can't change these settings:\n  "
            + "\n  ".join(problems)
            + "\nset them as they were, or begin a new run with the checkpoint's weights: --start_from_weights"
        )


class Resumed(TrainerCallback, ExportableState):
    """Sees to it that a resumed run goes on as its checkpoint's run would have: its settings, its steps, its end.

    The settings that both must share are kept in the state of each checkpoint.

    Raises:
        SettingsError: when training begins.
    """

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {}
        self._ended = False
        self._evaluates_on_start = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"args": {}, "attributes": {"shared": self.shared | {SEALED: True}}}

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        """Compares step and learning rates with the flags. A run that is finished is told to stop at once."""
        self.shared, self._evaluates_on_start = shared_settings(args), args.eval_on_start
        self._ended = state.global_step >= state.max_steps
        if args.num_iterations > 1 and not self._ended:
            _require_whole_windows(args, state)
        if state.global_step:
            _require_same_rates(args, optimizer)
            args.eval_on_start = False  # the run's start was evaluated when it began
        # A checkpoint of an earlier version has no place for it.
        state.stateful_callbacks[type(self).__name__] = self.state()
        if self._ended:
            control.should_training_stop = True
            logger.warning(
                f"the run is finished: the checkpoint is of step {state.global_step} of {state.max_steps}, nothing is "
                "left to train; more --max_steps or --num_train_epochs go on from it"
            )

    def on_epoch_begin(self, args, state, control, **kwargs):
        """The settings are again as they were given."""
        args.eval_on_start = self._evaluates_on_start

    def on_epoch_end(self, args, state, control, **kwargs):
        """A finished run neither evaluates nor saves a second time."""
        if self._ended:
            control.should_evaluate = control.should_save = control.should_log = False


def require_resumable(checkpoint: str | Path, args: GRPOConfig) -> None:
    """Refuse settings that a run resumed from ``checkpoint`` can't take.

    Raises:
        SettingsError: naming each of them, its value then and now, and the reason. Also where nothing tells the values.
    """
    kept = kept_settings(checkpoint)
    require_shared(_settings_of_run(checkpoint, args) if kept is None else kept, args)


def tell_changes(checkpoint: str | Path, args: GRPOConfig) -> None:
    """Warn in one line of all settings that differ from those in ``run.json`` beside a checkpoint."""
    try:
        before = read_config(Path(checkpoint).resolve().parent)["config"]
    except RunLogError:
        return
    now = plain(args.to_dict())
    names = sorted((now.keys() & before.keys()) - _OF_THE_COMMAND)
    if changed := [f"--{name} {before[name]} -> {now[name]}" for name in names if before[name] != now[name]]:
        logger.warning(f"resumed with other settings than those of {checkpoint}: {', '.join(changed)}")


def _settings_of_run(checkpoint: str | Path, args: GRPOConfig) -> dict[str, Any]:
    """The settings of a checkpoint of an earlier version, which kept them in the run folder alone."""
    folder = Path(checkpoint).resolve().parent
    try:
        written = read_config(folder)["config"]
    except RunLogError as error:
        raise SettingsError(
            f"{checkpoint}: of an earlier version, which kept the settings of a run in its folder alone, and {error}; "
            f"put that file there, or begin a new run with these weights: --start_from_weights {checkpoint}"
        ) from None
    logger.warning(
        f"{checkpoint}: of an earlier version. Its settings are those of {folder}/run.json, which does not tell the "
        "number of processes: see that it is the same"
    )
    return shared_settings(SimpleNamespace(**{**vars(args), **written, "world_size": args.world_size}))


def _require_whole_windows(args: GRPOConfig, state: Any) -> None:
    """A run with several steps on the same completions starts, and leaves checkpoints, only where new ones are sampled.

    The Trainer's state has shares of the run as numbers of steps, which the flags did not have yet.
    """
    problems = list(saves_within_windows(args, state.save_steps, state.eval_steps))
    if state.global_step % args.num_iterations:
        problems.append(
            f"the checkpoint of step {state.global_step} can't be resumed with --num_iterations "
            f"{args.num_iterations}: it lacks the completions that the next step goes on with; resume from one "
            f"whose step is a multiple of {args.num_iterations}"
        )
    if problems:
        raise SettingsError("\n".join(problems))


def _require_same_rates(args: GRPOConfig, optimizer: Any) -> None:
    """Learning rates come back with optimizer and schedule: one set in their place would have no effect."""
    kept = {group["initial_lr"] for group in optimizer.param_groups if "initial_lr" in group}
    if changed := kept - {args.learning_rate, args.mm_projector_lr, args.vision_tower_lr}:
        rates = " and ".join(f"{rate:g}" for rate in sorted(changed))
        raise SettingsError(
            f"a resumed run keeps the learning rates of its checkpoint, {rates} among them, which none "
            "of --learning_rate, --mm_projector_lr and --vision_tower_lr now is: set it again, or begin a new run with "
            "the checkpoint's weights: --start_from_weights"
        )
