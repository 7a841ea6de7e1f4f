"""What is shown and written while a run goes on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from qwenvl.config.checks import saves_within_windows
from qwenvl.data.errors import RecordError
from qwenvl.train.journal import Journal
from qwenvl.train.progress import install_progress
from qwenvl.train.summary import EqualRewardsWarning, RunSummary

logger = logging.getLogger(__name__)


class SettingsError(ValueError):
    """Settings that turn out not to fit the run when it begins."""


class WholeWindows(TrainerCallback):
    """A run with several steps on the same completions starts, and leaves checkpoints, only where new ones are sampled.

    Raises:
        SettingsError: when training begins.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        """Looks at the step that is resumed from, and at shares of the run that are now numbers of steps."""
        if args.num_iterations == 1:
            return
        problems = list(saves_within_windows(args, state.save_steps, state.eval_steps))
        if state.global_step % args.num_iterations:
            problems.append(
                f"the checkpoint of step {state.global_step} can't be resumed with --num_iterations "
                f"{args.num_iterations}: it lacks the completions that the next step goes on with; resume from one "
                f"whose step is a multiple of {args.num_iterations}"
            )
        if problems:
            raise SettingsError("\n".join(problems))


class ResumedRates(TrainerCallback):
    """A resumed run keeps the learning rates of its checkpoint, which come back with optimizer and schedule.

    Raises:
        SettingsError: when training begins, if one of them is not set: the one set in its place would have no effect.
    """

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        """Compares the flags with the rates that the schedule starts from."""
        if not state.global_step:
            return
        kept = {group["initial_lr"] for group in optimizer.param_groups if "initial_lr" in group}
        if changed := kept - {args.learning_rate, args.mm_projector_lr, args.vision_tower_lr}:
            rates = " and ".join(f"{rate:g}" for rate in sorted(changed))
            raise SettingsError(
                f"a resumed run keeps the learning rates of its checkpoint, {rates} among them, which none "
                "of --learning_rate, --mm_projector_lr and --vision_tower_lr now is: set it again, or start anew from "
                "the checkpoint's weights with --model_name_or_path"
            )


class RunFolder(TrainerCallback):
    """Writes log entries to the run folder; at the end it lists the samples that were left out.

    Raises:
        RecordError: when training ends, if no sample was left.
    """

    def __init__(self, journal: Journal):
        self._journal = journal

    def on_train_begin(self, args, state, control, **kwargs):
        """Settings and versions; a resumed run writes the rows after its checkpoint anew."""
        self._journal.begin(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """One row of metrics."""
        if state.is_world_process_zero:
            self._journal.runlog.log_metrics(state.global_step, logs)

    def on_train_end(self, args, state, control, **kwargs):
        """Every sample that was left out, once."""
        bad = self._journal.bad_samples
        if bad:
            lines = "\n  ".join(sample.error for sample in bad.values())
            logger.warning(f"{len(bad)} records were left out:\n  {lines}")
        counts = sum(gather_object([self._journal.drawn_for_training]), Counter())
        if counts["left_out"] and not counts["used"]:
            raise RecordError("nothing was trained: every record that was drawn was left out, for the reasons above")


def require_trackers(names: Iterable[str]) -> None:
    """Refuse ``report_to`` a tracker whose package is not there, before a model is loaded.

    Raises:
        ImportError: naming them.
    """
    told_of = INTEGRATION_TO_CALLBACK.keys() - {"azure_ml", "flyte"}  # of these transformers doesn't tell it beforehand
    if missing := told_of & set(names) - set(get_available_reporting_integrations()):
        raise ImportError(
            f"--report_to {' '.join(sorted(missing))}: its package is not installed; install it or leave the flag out: "
            "metrics.jsonl in the run folder has the same numbers"
        )


def install_callbacks(trainer: Trainer, journal: Journal) -> None:
    """The callbacks of every run."""
    install_progress(trainer)
    trainer.add_callback(EqualRewardsWarning())
    trainer.add_callback(WholeWindows())
    trainer.add_callback(ResumedRates())
    trainer.add_callback(RunFolder(journal))
    trainer.add_callback(RunSummary())  # the last one: it tells of the warnings of the others
