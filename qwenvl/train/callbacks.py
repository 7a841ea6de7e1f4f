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
from transformers.trainer_utils import IntervalStrategy

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.settings import prompts_per_step
from qwenvl.console import say, shows_bars
from qwenvl.data.errors import RecordError
from qwenvl.failure import counted, visible
from qwenvl.grpo.entropy import bonus_weight
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
from qwenvl.train.run.checkpoints import set_aside
from qwenvl.train.run.resume import Resumed
from qwenvl.train.running_trainer import RunningTrainer

logger = logging.getLogger(__name__)


def require_trackers(names: Iterable[str]) -> None:
    """Refuse trackers of ``report_to`` whose package is missing, before a model is loaded.

    Raises:
        ImportError: naming the trackers.
    """
    # transformers does not list azure_ml and flyte as available, whether their packages are there or not.
    checked = integration_utils.INTEGRATION_TO_CALLBACK.keys() - {"azure_ml", "flyte"}
    missing = checked & set(names) - set(get_available_reporting_integrations())
    if missing:
        listed = " ".join(sorted(missing))
        raise ImportError(
            f"--report_to {listed}: its package is not installed; pip install {listed}, or leave the flag out: "
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
        """Write settings and versions, and drop the rows and rename the checkpoints behind that of a resumed run."""
        self._journal.begin(state.global_step)
        if args.should_save and state.global_step:
            abandoned = set_aside(args.output_dir, state.global_step)
            if abandoned:
                names = ", ".join(each.name for each in abandoned)
                say(
                    f"{args.output_dir}: goes back to step {state.global_step}; the later checkpoints, of other "
                    f"weights, are now {names}: delete them if you need them no more"
                )

    def on_step_end(self, args, state, control, **kwargs):
        """Have the last step logged: with ``logging_steps`` above 1 the numbers since the last entry would be lost."""
        if args.logging_strategy == IntervalStrategy.STEPS and state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write one row of metrics."""
        if state.is_world_process_zero:
            self._journal.runlog.log_metrics(state.global_step, logs)

    def on_train_end(self, args, state, control, **kwargs):
        """List every sample that was left out, once."""
        bad = self._journal.bad_samples
        if bad:
            lines = "\n  ".join(sample.error for sample in bad.values())
            logger.warning(f"{counted(len(bad), 'record')} left out:\n  {lines}")
        counts: Counter[str] = sum(gather_object([self._journal.drawn_for_training]), Counter())
        if counts["left_out"] and not counts["used"]:
            raise RecordError("nothing was trained: every record that was drawn was left out, for the reasons above")


class HealthWarnings(TrainerCallback):
    """Warns once of each rule of ``qwenvl.run_log.health`` that holds, with advice.

    A resumed run has the history of its run folder, and warns again of the rules that still hold.
    """

    def __init__(self) -> None:
        self._rows: list[Mapping[str, float]] = []
        self._warned: set[str] = set()

    def on_train_begin(self, args, state, control, **kwargs):
        """Read the history up to the checkpoint that a run resumes from."""
        self._rows = []
        self._warned = set()
        if state.is_world_process_zero and state.global_step:
            self._rows += [row for row in read_metrics(args.output_dir, "train") if row["step"] <= state.global_step]

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Add one entry, whose numbers are those of all processes."""
        if state.is_world_process_zero and "loss" in logs:
            self._rows.append({**logs, "step": state.global_step})
            self._warn(args)

    def on_train_end(self, args, state, control, **kwargs):
        """The rules for a short run."""
        if state.is_world_process_zero:
            self._warn(args, ended=True)

    def _warn(self, args, ended: bool = False) -> None:
        prompts = prompts_per_step(args)
        for finding in findings(history_of(self._rows, prompts, args.num_iterations), ended):
            if finding.code not in self._warned:
                self._warned.add(finding.code)
                logger.warning(f"{finding.message}. {finding.advice}")


class ReferenceSync(TrainerCallback):
    """Moves the reference towards the policy every so many steps (``sync_ref_model``; TR-DPO, arXiv:2404.09656)."""

    def __init__(self, reference: Reference):
        self._reference = reference

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Move it before a checkpoint is saved, which holds the reference of this step."""
        if state.global_step % args.ref_model_sync_steps == 0:
            self._reference.mix(unwrap(model), args.ref_model_mixup_alpha)


def move_entropy_weight(args: ObjectiveOptions, entropy: float | None, state: TrainerState) -> float:
    """Move the coefficient of ``entropy_target``, once for each step that is sampled, and return the step's weight.

    Args:
        entropy: the mean over all processes, so that the coefficient is the same on each. None, without any token: no
            bonus, and the coefficient stays.
        state: holds the coefficient, so that checkpoints have it.
    """
    assert args.entropy_target is not None
    # The form in which the Trainer keeps the state of callbacks: that of every entry, once it resumes.
    first = {"args": {}, "attributes": {"coefficient": args.entropy_coef}}
    kept = state.stateful_callbacks.setdefault("EntropyTarget", first)["attributes"]
    if entropy is None:
        return 0.0
    weight, kept["coefficient"] = bonus_weight(kept["coefficient"], entropy, args.entropy_target)
    return weight


LONGEST_TEXT = 240  # characters of a text


def group_lines(group: Sequence[Rollout]) -> Iterator[str]:
    """The prompt, the solution, and each completion with its advantage, rewards and tokens, the best first.

    Completions of the same text and reward have one line, with their number.
    """
    first = group[0]
    question = next((message["text"] for message in reversed(first.prompt) if message["role"] == "user"), "")
    yield f"step {first.step}: {first.record_id}  {first.where}"
    yield f"  prompt: {_shortened(question)}"
    yield f"  solution: {_shortened(first.solution)}"
    alike: dict[tuple[float | None, str], list[Rollout]] = {}
    for row in sorted(group, key=lambda row: -(row.advantage or 0.0)):
        alike.setdefault((row.total, row.completion), []).append(row)
    for rows in alike.values():
        yield _completion_line(rows[0], len(rows))


def _completion_line(row: Rollout, times: int) -> str:
    """A line for a completion: its advantage, rewards and tokens, and the number of completions like it."""
    words: list[str] = []
    if times > 1:
        words.append(f"{times} alike")
    for name, value in {"reward": row.total, **row.rewards}.items():
        words.append(f"{name} none" if value is None else f"{name} {value:.3g}")
    words.append(counted(row.tokens, "token"))
    if row.finish_reason == "length":
        words.append("cut off")
    return f"  {row.advantage or 0.0:+.2f}  {', '.join(words)}: {_shortened(row.completion)}"


def _shortened(text: str) -> str:
    """A text in one line. The middle of a long text is left out, and not its end, which has the answer."""
    text = visible(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} ... {text[-LONGEST_TEXT // 2 :]}"


class ShownCompletions(TrainerCallback):
    """Prints the group of a step with the widest spread of rewards, in the first step of this process and each n-th.

    Args:
        trainer: holds the experiences of the step.
        every: the n of n-th.
    """

    def __init__(self, trainer: RunningTrainer, every: int):
        self._trainer = trainer
        self._every = every
        self._first = True

    def on_train_begin(self, args, state, control, **kwargs):
        """Show the next step, as the first one."""
        self._first = True

    def on_step_end(self, args, state, control, **kwargs):
        """Print one group of the first process, if it is time."""
        if state.is_world_process_zero and (self._first or state.global_step % self._every == 0):
            rows: list[Rollout] = []
            for each in self._trainer.experiences:
                if len(each.batch):
                    rows += rollout_rows(
                        state.global_step,
                        "train",
                        each.batch,
                        each.rollout,
                        each.rewards,
                        each.advantages.tolist(),
                    )
            size = args.grpo_sample_size
            groups = [rows[start : start + size] for start in range(0, len(rows), size)]
            if groups:
                say("\n".join(group_lines(max(groups, key=_spread))))
        self._first = False


def _spread(group: Sequence[Rollout]) -> float:
    """The distance between the best and the worst reward of a group, -1 without any reward."""
    totals = [each.total for each in group if each.total is not None]
    return max(totals) - min(totals) if totals else -1.0


def display_of(args: GRPOConfig) -> Literal["rich", "plain", "none"]:
    """The display by flags and terminal. Plain lines replace a board that the terminal can't draw."""
    if args.display == "none" or (args.display is None and args.disable_tqdm):
        return "none"
    moves_its_cursor = shows_bars() and os.environ.get("TERM") not in ("dumb", "unknown")
    has_blocks = str(sys.stderr.encoding).lower().startswith("utf")  # curves are drawn with them
    return "rich" if args.display != "plain" and moves_its_cursor and has_blocks else "plain"


def install_callbacks(trainer: RunningTrainer, journal: Journal) -> None:
    """Give a ``PolicyTrainer`` the callbacks of every run."""
    if trainer.args.report_to:
        name_run(trainer.args)
    trainer.remove_callback(ProgressCallback)  # the Trainer's progress bar
    display = display_of(trainer.args)
    if display != "none":
        every = trainer.args.log_completions_every
        if every is None:
            every = LIVE_COMPLETIONS_EVERY if display == "rich" else 0
        if every:
            trainer.add_callback(ShownCompletions(trainer, every))
        trainer.add_callback(LiveBoard(trainer.meter) if display == "rich" else ProgressLines(trainer.meter))
    trainer.add_callback(HealthWarnings())
    trainer.add_callback(Resumed(getattr(trainer.train_dataset, "records", None)))
    trainer.add_callback(trainer.finite_steps)
    if trainer.reference is not None and trainer.args.sync_ref_model:
        trainer.add_callback(ReferenceSync(trainer.reference))
    trainer.add_callback(RunFolder(journal))
