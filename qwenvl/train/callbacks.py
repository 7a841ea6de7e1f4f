"""The callbacks of every run: its folder, warnings, display, shown completions, moving weights, trackers."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerState
from transformers.integrations import get_available_reporting_integrations, integration_utils
from transformers.trainer_callback import ProgressCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say, shows_bars
from qwenvl.data.errors import RecordError
from qwenvl.failure import counted, visible
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.loading import unwrap
from qwenvl.model.reference import Reference
from qwenvl.option import was_set
from qwenvl.rollout.options import LIVE_COMPLETIONS_EVERY
from qwenvl.run_log.health import findings, history_of
from qwenvl.run_log.log import Rollout, read_metrics
from qwenvl.step.rows import rollout_rows
from qwenvl.train.display.board import LiveBoard
from qwenvl.train.display.progress import ProgressLines
from qwenvl.train.journal import Journal
from qwenvl.train.run.resume import Resumed
from qwenvl.train.running_trainer import RunningTrainer

logger = logging.getLogger(__name__)


def require_trackers(names: Iterable[str]) -> None:
    """Refuse ``report_to`` a tracker whose package is missing, before a model is loaded.

    Raises:
        ImportError: naming them.
    """
    # Packages of azure_ml and flyte are not among those that transformers lists as available.
    checked = integration_utils.INTEGRATION_TO_CALLBACK.keys() - {"azure_ml", "flyte"}
    if missing := " ".join(sorted(checked & set(names) - set(get_available_reporting_integrations()))):
        raise ImportError(
            f"--report_to {missing}: its package is not installed; pip install {missing}, or leave the flag out: "
            "metrics.jsonl in the run folder has the same numbers"
        )


def name_run(args: GRPOConfig) -> None:
    """Name a run without a name by its folder and the time, so that trackers find it again for a later evaluation.

    The default project of trackio is ``qwenvl``.
    """
    if not was_set(args, "project"):  # the Trainer's default is "huggingface"
        args.project = "qwenvl"
    if args.run_name is None:
        args.run_name = f"{Path(args.output_dir).resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"


class RunFolder(TrainerCallback):
    """Writes log entries to the run folder. At the end it lists the samples that were left out.

    Raises:
        RecordError: when training ends, if no sample was left.
    """

    def __init__(self, journal: Journal):
        self._journal = journal

    def on_train_begin(self, args, state, control, **kwargs):
        """Settings and versions. A resumed run writes the rows after its checkpoint anew."""
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
            logger.warning(f"{counted(len(bad), 'record')} left out:\n  {lines}")
        counts = sum(gather_object([self._journal.drawn_for_training]), Counter())
        if counts["left_out"] and not counts["used"]:
            raise RecordError("nothing was trained: every record that was drawn was left out, for the reasons above")


class HealthWarnings(TrainerCallback):
    """Warns once of each rule of ``qwenvl.run_log.health`` that holds, with what to do.

    A resumed run has the history of its run folder, and warns again of the rules that still hold.
    """

    _rows: list[Mapping[str, float]]
    _warned: set[str]

    def on_train_begin(self, args, state, control, **kwargs):
        """The history up to the checkpoint that a run resumes from."""
        self._rows = []
        self._warned = set()
        if state.is_world_process_zero and state.global_step:
            self._rows += [row for row in read_metrics(args.output_dir, "train") if row["step"] <= state.global_step]

    def on_log(self, args, state, control, logs=None, **kwargs):
        """One more entry. Its numbers are those of all processes."""
        if state.is_world_process_zero and "loss" in logs:
            self._rows.append({**logs, "step": state.global_step})
            self._warn(args)

    def on_train_end(self, args, state, control, **kwargs):
        """The rules for a short run."""
        if state.is_world_process_zero:
            self._warn(args, ended=True)

    def _warn(self, args, ended: bool = False) -> None:
        prompts = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        for finding in findings(history_of(self._rows, prompts, args.num_iterations), ended):
            if finding.code not in self._warned:
                self._warned.add(finding.code)
                logger.warning(f"{finding.message}. {finding.advice}")


class ReferenceSync(TrainerCallback):
    """``sync_ref_model``: every so many steps the reference moves towards the policy (TR-DPO, arXiv:2404.09656)."""

    def __init__(self, reference: Reference):
        self._reference = reference

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Before a checkpoint is saved, which holds the reference as it then is."""
        if state.global_step % args.ref_model_sync_steps == 0:
            self._reference.mix(unwrap(model), args.ref_model_mixup_alpha)


COEFFICIENT_STEP = 0.005
"""The change of the weight each time completions are sampled."""


def entropy_weight(args: ObjectiveOptions, entropy: float | None, state: TrainerState) -> float:
    """The weight of the entropy bonus of a step, with ``entropy_target`` (Skywork-OR1, arXiv:2505.22312, section 4.1).

    Each time completions are sampled it compares their mean entropy e with the target. The bonus has its weight c where
    e <= target, and none where e is above. Then c grows by a step, or shrinks by one and never below 0.

    Args:
        entropy: of all processes, so that c is the same on each of them. None, without any token: no bonus, c stays.
        state: has c, as checkpoints then do.
    """
    made = {"args": {}, "attributes": {"coefficient": args.entropy_coef}}
    kept = state.stateful_callbacks.setdefault("EntropyTarget", made)["attributes"]
    if entropy is None:
        return 0.0
    low = entropy <= args.entropy_target
    now = kept["coefficient"]
    kept["coefficient"] = now + COEFFICIENT_STEP if low else max(0.0, now - COEFFICIENT_STEP)
    return now if low else 0.0


LONGEST_TEXT = 240  # characters of a text


def group_lines(group: Sequence[Rollout]) -> Iterator[str]:
    """The prompt, the solution, and each completion with its advantage, rewards and tokens, the best first.

    Completions of the same text and reward have one line, with their number.
    """
    first = group[0]
    question = next((message["text"] for message in reversed(first.prompt) if message["role"] == "user"), "")
    yield f"step {first.step}: {first.record_id}  {first.where}"
    yield from (f"  {name}: {_shortened(text)}" for name, text in (("prompt", question), ("solution", first.solution)))
    alike: dict[tuple[float | None, str], list[Rollout]] = {}
    for row in sorted(group, key=lambda row: -(row.advantage or 0.0)):
        alike.setdefault((row.total, row.completion), []).append(row)
    for rows in alike.values():
        yield _completion_line(rows[0], len(rows))


def _completion_line(row: Rollout, times: int) -> str:
    """A completion with its advantage, rewards and tokens, and how many of its group are alike."""
    number = f"{times} alike, " if times > 1 else ""
    rewards = {"reward": row.total, **row.rewards}
    numbers = ", ".join(f"{name} {'none' if each is None else f'{each:.3g}'}" for name, each in rewards.items())
    tokens = counted(row.tokens, "token") + (", cut off" if row.finish_reason == "length" else "")
    return f"  {row.advantage or 0.0:+.2f}  {number}{numbers}, {tokens}: {_shortened(row.completion)}"


def _shortened(text: str) -> str:
    """A text in one line. Of a longer one the middle is left out: its end has the answer."""
    text = visible(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} ... {text[-LONGEST_TEXT // 2 :]}"


class ShownCompletions(TrainerCallback):
    """Prints the group of a step with the widest spread of rewards, in the first step of this process and each n-th.

    Args:
        trainer: has the experiences of the step.
        every: n.
    """

    def __init__(self, trainer: RunningTrainer, every: int):
        self._trainer = trainer
        self._every = every
        self._first = True

    def on_train_begin(self, args, state, control, **kwargs):
        """The first step is yet to come."""
        self._first = True

    def on_step_end(self, args, state, control, **kwargs):
        """One group of the first process, if it is time."""
        if state.is_world_process_zero and (self._first or state.global_step % self._every == 0):
            rows: list[Rollout] = []
            for each in self._trainer.experiences:
                if len(each.batch):
                    own = (each.batch, each.rollout, each.rewards, each.advantages.tolist())
                    rows += rollout_rows(state.global_step, "train", *own)
            groups = [rows[n : n + args.grpo_sample_size] for n in range(0, len(rows), args.grpo_sample_size)]
            if groups:
                say("\n".join(group_lines(max(groups, key=_spread))))
        self._first = False


def _spread(group: Sequence[Rollout]) -> float:
    totals = [each.total for each in group if each.total is not None]
    return max(totals) - min(totals) if totals else -1.0


def display_of(args: GRPOConfig) -> Literal["rich", "plain", "none"]:
    """The display that flags and terminal come to. Where a board can't be drawn, lines are plain."""
    if args.display == "none" or (args.display is None and args.disable_tqdm):
        return "none"
    draws = shows_bars() and os.environ.get("TERM") not in ("dumb", "unknown")
    draws = draws and str(sys.stderr.encoding).lower().startswith("utf")  # the blocks of its curves
    return "rich" if draws and args.display != "plain" else "plain"


def install_callbacks(trainer: RunningTrainer, journal: Journal) -> None:
    """The callbacks of every run of a ``PolicyTrainer``."""
    if trainer.args.report_to:
        name_run(trainer.args)
    trainer.remove_callback(ProgressCallback)  # the Trainer's progress bar
    if (display := display_of(trainer.args)) != "none":
        every = trainer.args.log_completions_every
        if every is None:
            every = LIVE_COMPLETIONS_EVERY if display == "rich" else 0
        if every:
            trainer.add_callback(ShownCompletions(trainer, every))
        trainer.add_callback((LiveBoard if display == "rich" else ProgressLines)(trainer.meter))
    trainer.add_callback(HealthWarnings())
    trainer.add_callback(Resumed(getattr(trainer.train_dataset, "records", None)))
    trainer.add_callback(trainer.finite_steps)
    if trainer.reference is not None and trainer.args.sync_ref_model:
        trainer.add_callback(ReferenceSync(trainer.reference))
    trainer.add_callback(RunFolder(journal))
