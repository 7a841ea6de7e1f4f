"""Runs a trainer as a whole: check, lock the folder, train, evaluate, save, sum up. And makes a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from qwenvl.config.command_line import changed_flags
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.config.settings import FLAG_GROUPS, WARMUP_GROUPS, prompts_per_step
from qwenvl.console import evaluated, say, with_interval
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import DATA_ERRORS, place_of, told_to_the_user
from qwenvl.data.options import BadSampleOptions, DecodingOptions, FrameOptions, PromptOptions, ReadingOptions
from qwenvl.data.tool_options import ToolOptions
from qwenvl.failure import beginning, counted
from qwenvl.model.loading import MisfitError, load_processor, load_without_weights, part_of, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.own_code import OwnCodeError
from qwenvl.rewards import RewardError
from qwenvl.rewards.options import RewardOptions
from qwenvl.rewards.table import SHAPING
from qwenvl.run_lock import RunFolderError, locked
from qwenvl.run_log.health import RULES, Finding
from qwenvl.run_log.log import RunLogError, read_metrics
from qwenvl.run_log.run import is_component, read_runs, trend
from qwenvl.run_log.warnings import warnings_of
from qwenvl.step.assemble import build_dataset, build_rewards, weight_dtype
from qwenvl.step.failures import told_in_one_line
from qwenvl.tools.functions import schemas_of
from qwenvl.train.assemble import build_policy
from qwenvl.train.callbacks import require_trackers
from qwenvl.train.display.first_look import first_look, size_warnings
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.run.checkpoints import how_to_go_on
from qwenvl.train.run.resume import SettingsError, begin
from qwenvl.train.warmup.targets import TargetCollator, narrowed, shown_targets, targets_of
from qwenvl.train.warmup.trainer import WarmupTrainer
from qwenvl.types import EVALUATED

OF_SETTINGS = (ValueError, OSError, ImportError)
"""Errors about names, files, flags or packages."""


def run(
    command: str,
    args: GRPOConfig,
    dry: str,
    callbacks: Sequence[TrainerCallback] = (),
    says_next: bool = True,
) -> None:
    """Train, evaluate if there is data for it, and save the model, alone in the run folder. Errors are one line.

    Args:
        command: the beginning of error messages.
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        dry: the value of ``--dry_run``. With one nothing is written, and the folder is not locked.
        says_next: end with the commands to type next.
    """
    with (
        told_in_one_line(command, args.output_dir, how_to_go_on),
        told_to_the_user(command, (RunFolderError,)),
        nullcontext() if dry else locked(args.output_dir, args.process_index),
    ):
        with told_to_the_user(command, OF_SETTINGS):
            beginning = begin(args)
            if beginning.finished:
                say(f"{command}: {beginning.finished}")
                return
            require_trackers(args.report_to)
            if dry:
                text = dry_run(args, dry)
                if args.process_index == 0:
                    print(text)
                return
            trainer: PolicyTrainer
            if isinstance(args, WarmupConfig):
                trainer = WarmupTrainer(args=args, callbacks=list(callbacks))
                shown = list(shown_targets(trainer.train_dataset, trainer.data_collator, 1))
                if not any("</think>" in line for line in shown):
                    shown.append("without thinking: where rewards want a <think> block, give the records a `thinking`")
                say("\n  ".join(["the first target:", *shown]))
            else:
                trainer = GRPOTrainer(args=args, callbacks=list(callbacks))
        of_users = (*DATA_ERRORS, RewardError, OwnCodeError, SettingsError, MisfitError, RunLogError)
        with told_to_the_user(command, of_users):
            trainer.train(beginning)
            if trainer.eval_dataset is not None and not evaluated_last(trainer):
                trainer.evaluate()
        trainer.save_model()
        trainer.journal.runlog.finish(trainer.state.global_step)
        trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
        if trainer.is_world_process_zero():
            found = findings_of(args.output_dir)
            steps = next_steps(args, found, has_scored(read_metrics(args.output_dir))) if says_next else ()
            say(run_summary(args.output_dir, found, steps))


def evaluated_last(trainer: PolicyTrainer) -> bool:
    """Whether the weights that will be saved were evaluated already, after their last step.

    They were with some values of ``eval_strategy``, or by an earlier process that died before it saved its model.
    """
    if trainer.args.load_best_model_at_end:  # it has replaced the weights that were evaluated last
        return False
    rows = trainer.state.log_history
    if not trainer.steps_trained:
        rows = read_metrics(trainer.args.output_dir)
    return any(row["step"] == trainer.state.global_step and trainer.eval_metric in row for row in rows)


def findings_of(folder: str | Path) -> list[Finding]:
    """The warnings of the report of a run, except those on its completions."""
    return warnings_of(read_runs([folder])[0])


def run_summary(folder: str | Path, found: Sequence[Finding], next_steps: Sequence[str] = ()) -> str:
    """The folder of a run, its rewards or loss, evaluations and warnings, and the next commands.

    Args:
        folder: the run folder, written by rank 0.
        found: the findings of its report.
        next_steps: commands.
    """
    rows = read_metrics(folder)
    lines: list[tuple[str, str]] = []  # each with its name
    for short, name in (("reward", "reward/total"), ("loss", "target/loss")):
        moved = trend([row[name] for row in rows if name in row])
        if moved is not None:
            means = f"{moved.first:.3f} at first, {moved.last:.3f} at last   (means of the first and last fifth)"
            lines.append((short, means))
    names: dict[str, None] = {}  # in the order in which they were logged
    for row in rows:
        names |= dict.fromkeys(evaluated(row))
    for name in names:
        points = [row for row in rows if name in row]
        ends = points if len(points) < 2 else (points[0], points[-1])
        shown = [f"{with_interval(name, row)} at step {row['step']}" for row in ends]
        lines.append((name.removesuffix(EVALUATED), ", ".join(shown)))
    if found:
        first = beginning(" ".join(found[0].message.split()), 100)
        lines.append(("warnings", f"{len(found)}, the first: {first}"))
    else:
        lines.append(("warnings", "none at the end"))
    if "loss" not in dict(lines):  # a warm-up has no completions
        lines.append(("look", _command(["report", str(folder)], "curves, and every completion with its frames")))
    for number, command in enumerate(next_steps):
        lines.append(("next" if number == 0 else "", command))
    steps = int(max((row["step"] for row in rows), default=0))
    width = max(len(name) for name, _ in lines) + 2
    table = [f"  {name:<{width}}{line}" for name, line in lines]
    return "\n".join([f"{folder}: {counted(steps, 'step')}", *table])


def next_steps(args: GRPOConfig, found: Sequence[Finding], scored: bool = True) -> list[str]:
    """The commands to type after a run, each with the reason as a comment of the shell.

    After a warm-up it is training by rewards. Else a look at the data where one of ``RULES`` holds, an evaluation, and
    for an adapter its merge. A run in which no completion had a reward is followed by a probe and a warm-up.

    Args:
        found: the findings of its report.
        scored: some completion of the run had a reward for its answer.
    """
    folder = str(args.output_dir).rstrip("/")
    base = str(args.model_name_or_path)
    data = str(args.dataset_use)
    alike = changed_flags(args, LIKE_A_RUN, OF_THE_MACHINE)
    if isinstance(args, WarmupConfig):
        train = ["train", "--model_name_or_path", folder, "--dataset_use", data, "--output_dir", f"{folder}-grpo"]
        return [_command([*train, *alike], "training by rewards, with the same prompts and frames")]
    commands = []
    if {each.code for each in found} & {rule.__name__ for rule in RULES}:
        shown = changed_flags(args, (ReadingOptions, FrameOptions, PromptOptions), without=SKIPS)
        if args.tools:
            shown += ["--tools", *args.tools]
        commands.append(_command(["preview", data, "--n", "8", "--model", base, *shown], "what does the model see?"))
    if not scored:
        groups = (ReadingOptions, FrameOptions, PromptOptions, ToolOptions, RewardOptions)
        more = ("use_cpu", "generation_max_length", "teacher", "teacher_sees")
        asked = changed_flags(args, groups, more, without=SKIPS)
        commands.append(_command(["probe", base, data, *asked], "can it learn from these records?"))
        warmup = ["warmup", "--model_name_or_path", base, "--dataset_use", data, "--output_dir", f"{folder}-warm"]
        commands.append(_command([*warmup, *alike], "teach it the answers first"))
        return commands
    if args.eval_dataset_use is None:
        commands.append("# is it better? hold records out by --eval_dataset_use, then qwenvl evaluate compares models")
    else:
        evaluate = ["evaluate", base, folder, args.eval_dataset_use, "--controls", "all"]
        commands.append(_command(evaluate, "is it better? does it use the video?"))
    if args.lora_enable:
        merge = ["merge", folder, "--out", f"{folder}-merged"]
        commands.append(_command(merge, "whole weights, for other programs"))
    return commands


LIKE_A_RUN = (
    TuneOptions,
    LoraOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    BadSampleOptions,
    PromptOptions,
    ToolOptions,
)
"""Options that a run and the warm-up before it have in common."""
OF_THE_MACHINE = ("use_cpu", "gradient_checkpointing")
SKIPS = ("on_bad_sample", "on_long_prompt")
"""Options that only training has: the commands that look at records leave the bad ones out."""


def _command(words: Sequence[str], reason: str) -> str:
    """A command that can be pasted into a shell as a whole: the reason is a comment."""
    return f"{shlex.join(['qwenvl', *words])}   # {reason}"


def has_scored(rows: Sequence[Mapping[str, float]]) -> bool:
    """Whether some completion of a run had a reward that tells right answers from wrong.

    In a run without such rewards, any reward counts.

    Args:
        rows: the rows of ``metrics.jsonl``.
    """
    names = set[str]().union(*rows)
    components = set(filter(is_component, names))
    if not components and "reward/total" not in names:  # a run that learns from its teacher alone
        return True
    telling = {name for name in components if name.removeprefix("reward/") not in SHAPING}
    read = telling or components or {"reward/total"}
    # The mean of a reward between -1 and 1 may be 0 by chance, and hardly in every step.
    return any(row.get(name) for row in rows for name in read)


RECORDS = 4  # the first ones, whose prompts a dry run makes


def dry_run(args: GRPOConfig, what: str = "changed") -> str:
    """The settings, rewards or targets, parameters and first prompts of a run, as lines of text.

    The weights are not loaded: their shapes follow from the checkpoint's ``config.json``.

    Args:
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        what: ``changed``, the settings that the user has set to other values than their defaults, or ``all``.

    Raises:
        RecordError, BadMediaError: a record that the run would stop at, if it is among the first.
        ValueError, OSError: a run with these settings would be refused.
    """
    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    sections: Sections = {_settings_title(what): _settings_of(args, what)}
    read = _read_for_warmup(args) if isinstance(args, WarmupConfig) else _read_for_training(args)
    sections |= read.before
    first_look(read.dataset, read.columns, read.rewards)
    for warning in size_warnings(args, read.dataset, read.held_out):
        say(f"worth a look: {warning}")
    sections["parameters that learn"] = parameter_lines(policy, weight_dtype(args, args.lora_enable))
    records = counted(len(read.dataset), "record")
    sections[f"prompts of the first of {records}"] = prompt_lines(read.dataset, read.collator)
    sections |= read.after
    lines: list[str] = []
    for title, body in sections.items():
        lines.append(title)
        lines += [f"  {line}" for line in body]
    return "\n".join([*lines, "This was a dry run: nothing was trained or written."])


Sections = dict[str, Iterable[str]]
"""The lines of a dry run below their titles."""


@dataclass(frozen=True)
class _Read:
    """The data of a dry run, which are read before anything is shown.

    Attributes:
        held_out: the data to evaluate on, or None.
        columns: the fields of records that rewards read. None: no field counts as unread.
        rewards: their names. Empty: a warm-up.
        before, after: sections in front of the parameters and prompts, and behind them.
    """

    dataset: Any
    held_out: Any
    collator: GRPOCollator
    columns: Collection[str] | None
    rewards: Collection[str]
    before: Sections
    after: Sections


def _read_for_training(args: GRPOConfig) -> _Read:
    """The data of training by rewards, with the rewards in front."""
    rubric = build_rewards(args, None, None)
    collator = GRPOCollator(
        load_processor(str(args.model_name_or_path)), PromptOptions.of(args), tools=schemas_of(args)
    )
    weights = zip(rubric.names, rubric.weights, strict=True)
    return _Read(
        dataset=build_dataset(args.dataset_use, args, rubric, collator, training=True),
        held_out=build_dataset(args.eval_dataset_use, args, rubric, collator, training=False),
        collator=collator,
        columns=rubric.columns,
        rewards=rubric.names,
        before={"rewards": [f"{name}: weight {weight:g}" for name, weight in weights]},
        after={"one step": [f"{_prompts_of_a_step(args)}, {args.grpo_sample_size} completions each"]},
    )


def _read_for_warmup(args: WarmupConfig) -> _Read:
    """The data of a warm-up, with the first targets behind."""
    targets = targets_of(args)
    collator = TargetCollator(load_processor(str(args.model_name_or_path)), PromptOptions.of(args), targets, args)
    dataset = build_dataset(args.dataset_use, args, targets, collator, training=True)
    dataset = narrowed(dataset, targets, "--dataset_use")
    held_out = build_dataset(args.eval_dataset_use, args, targets, collator, training=False)
    return _Read(
        dataset=dataset,
        held_out=narrowed(held_out, targets, "--eval_dataset_use"),
        collator=collator,
        columns=targets.columns,
        rewards=(),
        before={},
        after={"one step": [_prompts_of_a_step(args)], "their targets": shown_targets(dataset, collator, RECORDS)},
    )


def _prompts_of_a_step(args: GRPOConfig | WarmupConfig) -> str:
    """The number of prompts of an optimizer step over all processes, in words."""
    return counted(prompts_per_step(args), "prompt")


def _settings_title(what: str) -> str:
    """The title of the settings that a dry run shows."""
    return "settings" if what == "all" else "settings that you have set (--dry_run all: every setting)"


def _settings_of(args: GRPOConfig | WarmupConfig, what: str) -> list[str]:
    """The settings that the user has set, and with ``all`` also the other ones of this library."""
    groups = WARMUP_GROUPS if isinstance(args, WarmupConfig) else FLAG_GROUPS
    own: set[str] = set()
    if what == "all":
        for group in groups:
            own |= {each.name for each in fields(group)}
    settings = []
    for each in fields(args):
        value = getattr(args, each.name)
        if each.name in own or each.name in args.set_by_user:
            settings.append(f"{each.name}: {getattr(value, 'value', value)}")
    return settings


def parameter_lines(policy: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """Lines with the number of parameters of each part, and of those that learn."""
    total = dict.fromkeys(("llm", "vision", "mlp"), 0)
    learn = dict.fromkeys(total, 0)
    for name, parameter in unwrap(policy).named_parameters():
        total[part_of(name)] += parameter.numel()
        learn[part_of(name)] += parameter.numel() * parameter.requires_grad
    for part in total:
        yield f"{part}: {learn[part]:,} of {total[part]:,}"
    yield f"in all: {sum(learn.values()):,} of {sum(total.values()):,}, kept in {str(dtype).removeprefix('torch.')}"


def prompt_lines(dataset, collator: GRPOCollator) -> Iterator[str]:
    """Lines with the tokens and the frames of the first prompts."""
    for index in range(min(RECORDS, len(dataset))):
        batch = collator([dataset[index]])["prompts"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record, mask, clips in zip(batch.records, batch.attention_mask, batch.frames, strict=True):
            frames = f", {sum(len(clip.indices) for clip in clips)} frames" if clips else ""
            yield f"{place_of(record)}: {int(mask.sum()):,} tokens{frames}"
