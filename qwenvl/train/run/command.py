"""The commands that train, around their trainers: check, lock the folder, train, evaluate, save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
from qwenvl.model.loading import MisfitError
from qwenvl.rewards import RewardError
from qwenvl.runlog import RunLogError, read_metrics
from qwenvl.train.callbacks import require_trackers
from qwenvl.train.display.console import say
from qwenvl.train.display.summary import collected_warnings
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.run.failures import told_in_one_line
from qwenvl.train.run.lock import RunFolderError, locked
from qwenvl.train.run.resume import Beginning, SettingsError, begin


@contextmanager
def alone_in_its_folder(command: str, args: GRPOConfig, dry: bool) -> Iterator[None]:
    """Lock the run folder within. Errors end the process in one line.

    Args:
        command: the beginning of error messages.
        dry: nothing will be written, so the folder is not locked.
    """
    with (
        told_in_one_line(command, args.output_dir),
        told_to_the_user(command, (RunFolderError,)),
        nullcontext() if dry else locked(args.output_dir, args.process_index),
    ):
        yield


def told_of_settings(command: str) -> AbstractContextManager[None]:
    """End the process with the message of an error about names, files, flags or packages."""
    return told_to_the_user(command, (ValueError, OSError, ImportError))


def beginning_of(command: str, args: GRPOConfig) -> Beginning:
    """Where the run begins. Prints a line if the run is finished already.

    Raises:
        ValueError, OSError, ImportError: see ``begin`` and ``require_trackers``.
    """
    beginning = begin(args)
    if beginning.finished:
        say(f"{command}: {beginning.finished}")
    else:
        require_trackers(args.report_to)
    return beginning


def carry_out(command: str, trainer: PolicyTrainer, beginning: Beginning) -> list[str]:
    """Train, evaluate if there is data for it, and save the model. Return the warnings of the run."""
    with (
        told_to_the_user(command, (*DATA_ERRORS, RewardError, SettingsError, MisfitError, RunLogError)),
        collected_warnings() as warnings,
    ):
        trainer.train(beginning)
        if trainer.eval_dataset is not None and not evaluated_last(trainer):
            trainer.evaluate()
    trainer.save_model()
    trainer.journal.runlog.finish(trainer.state.global_step)
    trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
    return warnings


def evaluated_last(trainer: PolicyTrainer) -> bool:
    """Whether the weights to be saved were evaluated after their last step already: by ``eval_strategy``, or by an
    earlier process that died before it saved its model."""
    rows = trainer.state.log_history
    if not trainer.steps_trained:
        rows = read_metrics(trainer.args.output_dir)
    done = any(row["step"] == trainer.state.global_step and trainer.eval_metric in row for row in rows)
    return done and not trainer.args.load_best_model_at_end  # which replaced the evaluated weights
