"""The callbacks of every run: its folder, its warnings, its display."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from qwenvl.data.errors import RecordError
from qwenvl.health import LogEntry, Sampled, findings
from qwenvl.runlog import read_metrics
from qwenvl.train.display.install import install_display
from qwenvl.train.display.summary import RunSummary
from qwenvl.train.journal import Journal
from qwenvl.train.reference import ReferenceSync
from qwenvl.train.run.entropy_target import EntropyTarget
from qwenvl.train.run.finite_steps import FiniteWeights
from qwenvl.train.run.lock import hold, release
from qwenvl.train.run.resume import Resumed, has_pending_evaluation
from qwenvl.train.trackers import install_trackers

logger = logging.getLogger(__name__)


class RunFolder(TrainerCallback):
    """Locks the run folder and writes log entries to it. At the end it lists the samples that were left out.

    Raises:
        RunLockedError: when training begins, if another run holds the folder.
        RecordError: when training ends, if no sample was left.
    """

    def __init__(self, journal: Journal):
        self._journal = journal

    def on_train_begin(self, args, state, control, **kwargs):
        """Settings and versions. A resumed run writes the rows after its checkpoint anew."""
        hold(args.output_dir, args.process_index)
        self._journal.begin(state.global_step, evaluates=has_pending_evaluation(state))

    def on_log(self, args, state, control, logs=None, **kwargs):
        """One row of metrics."""
        if state.is_world_process_zero:
            self._journal.runlog.log_metrics(state.global_step, logs)

    def on_train_end(self, args, state, control, **kwargs):
        """Every sample that was left out, once."""
        release(args.output_dir, args.process_index)
        bad = self._journal.bad_samples
        if bad:
            lines = "\n  ".join(sample.error for sample in bad.values())
            logger.warning(f"{len(bad)} records were left out:\n  {lines}")
        counts = sum(gather_object([self._journal.drawn_for_training]), Counter())
        if counts["left_out"] and not counts["used"]:
            raise RecordError("nothing was trained: every record that was drawn was left out, for the reasons above")


class HealthWarnings(TrainerCallback):
    """Warns once of each rule of ``qwenvl.health`` that holds, with what to do.

    A resumed run has the history of its run folder, and warns again of the rules that still hold.
    """

    _history: list[LogEntry]
    _warned: set[str]
    _step: int

    def on_train_begin(self, args, state, control, **kwargs):
        """The history up to the checkpoint that a run resumes from."""
        self._history, self._warned, self._step = [], set(), 0
        if state.is_world_process_zero and state.global_step:
            for row in read_metrics(args.output_dir, "train"):
                if row["step"] <= state.global_step:
                    self._add(args, int(row["step"]), row)
        self._step = state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs):
        """One more entry. Its numbers are those of all processes."""
        if state.is_world_process_zero and "loss" in logs:
            self._add(args, state.global_step, logs)
            self._warn()

    def on_train_end(self, args, state, control, **kwargs):
        """The rules for a short run."""
        if state.is_world_process_zero:
            self._warn(ended=True)

    def _add(self, args, step: int, values: Mapping[str, float]) -> None:
        prompts = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        sampled = Sampled(prompts, args.num_iterations)
        self._history.append(sampled.entry(self._step, step, values))
        self._step = step

    def _warn(self, ended: bool = False) -> None:
        for finding in findings(self._history, ended):
            if finding.code not in self._warned:
                self._warned.add(finding.code)
                logger.warning(f"{finding.message}. {finding.advice}")


def install_callbacks(trainer: Trainer, journal: Journal) -> None:
    """The callbacks of every run."""
    install_trackers(trainer, journal)
    install_display(trainer, journal)
    trainer.add_callback(HealthWarnings())
    trainer.add_callback(Resumed())
    if (target := EntropyTarget.of(trainer.args)) is not None:
        trainer.add_callback(target)
    trainer.add_callback(FiniteWeights(journal))
    if trainer.reference is not None and trainer.args.sync_ref_model:
        trainer.add_callback(ReferenceSync(trainer.reference))
    trainer.add_callback(RunFolder(journal))
    trainer.add_callback(RunSummary())  # the last one: it shows the warnings of the others
