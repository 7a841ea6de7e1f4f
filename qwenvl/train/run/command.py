"""The commands that train, around their trainers: check, lock the folder, train, evaluate, save, sum up; a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, fields
from pathlib import Path

import torch
from torch import nn
from transformers import TrainerCallback

from qwenvl.config.flags import FLAG_GROUPS, WARMUP_GROUPS
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.console import evaluated, say, with_interval
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import DATA_ERRORS, place_of, told_to_the_user
from qwenvl.data.options import PromptOptions
from qwenvl.failure import beginning, counted
from qwenvl.health import RULES, Finding
from qwenvl.model.loading import MisfitError, load_processor, load_without_weights, part_of, unwrap
from qwenvl.report.run import read_runs, trend
from qwenvl.report.write import warnings
from qwenvl.rewards import RewardError
from qwenvl.run_lock import RunFolderError, locked
from qwenvl.runlog import RunLogError, read_metrics
from qwenvl.step.assemble import build_dataset, build_rewards, weight_dtype
from qwenvl.tools.functions import schemas_of
from qwenvl.train.assemble import build_policy
from qwenvl.train.callbacks import require_trackers
from qwenvl.train.display.first_look import first_look, size_warnings
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.run.failures import told_in_one_line
from qwenvl.train.run.resume import SettingsError, begin
from qwenvl.train.warmup.targets import TargetCollator, narrowed, shown_targets, targets_of
from qwenvl.train.warmup.trainer import WarmupTrainer

OF_SETTINGS = (ValueError, OSError, ImportError)
"""Errors about names, files, flags or packages."""


def run(command: str, args: GRPOConfig, dry: str, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train, evaluate if there is data for it, and save the model, alone in the run folder. Errors are one line.

    Args:
        command: the beginning of error messages.
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        dry: the value of ``--dry_run``. With one nothing is written, and the folder is not locked.
    """
    with (
        told_in_one_line(command, args.output_dir),
        told_to_the_user(command, (RunFolderError,)),
        nullcontext() if dry else locked(args.output_dir, args.process_index),
    ):
        with told_to_the_user(command, OF_SETTINGS):
            beginning = begin(args)
            if beginning.finished:
                return say(f"{command}: {beginning.finished}")
            require_trackers(args.report_to)
            if dry:
                text = dry_run(args, dry)
                return print(text) if args.process_index == 0 else None
            trainer: PolicyTrainer
            if isinstance(args, WarmupConfig):
                trainer = WarmupTrainer(args=args, callbacks=list(callbacks))
                shown = list(shown_targets(trainer.train_dataset, trainer.data_collator, 1))
                if not any("</think>" in line for line in shown):
                    shown.append("without thinking: where rewards want a <think> block, give the records a `thinking`")
                say("\n  ".join(["the first target:", *shown]))
            else:
                trainer = GRPOTrainer(args=args, callbacks=list(callbacks))
        with told_to_the_user(command, (*DATA_ERRORS, RewardError, SettingsError, MisfitError, RunLogError)):
            trainer.train(beginning)
            if trainer.eval_dataset is not None and not evaluated_last(trainer):
                trainer.evaluate()
        trainer.save_model()
        trainer.journal.runlog.finish(trainer.state.global_step)
        trainer.accelerator.end_training()  # Trainer.end, in the versions that have it
        if trainer.is_world_process_zero():
            found = findings_of(args.output_dir)
            say(run_summary(args.output_dir, found, next_steps(args, found)))


def evaluated_last(trainer: PolicyTrainer) -> bool:
    """Whether the weights to be saved were evaluated after their last step already: by ``eval_strategy``, or by an
    earlier process that died before it saved its model."""
    rows = trainer.state.log_history
    if not trainer.steps_trained:
        rows = read_metrics(trainer.args.output_dir)
    done = any(row["step"] == trainer.state.global_step and trainer.eval_metric in row for row in rows)
    return done and not trainer.args.load_best_model_at_end  # which replaced the evaluated weights


def findings_of(folder: str | Path) -> list[Finding]:
    """The warnings of the report of a run, except those on its completions."""
    return warnings(read_runs([folder])[0], [])


def run_summary(folder: str | Path, found: Sequence[Finding], next_steps: Sequence[str] = ()) -> str:
    """The folder of a run, its rewards or loss, evaluations and warnings, and what to do next.

    Args:
        folder: the run folder, written by rank 0.
        found: the findings of its report.
        next_steps: commands.
    """
    rows = read_metrics(folder)
    lines = []
    for short, name in (("reward", "reward/total"), ("loss", "target/loss")):
        if (moved := trend([row[name] for row in rows if name in row])) is not None:
            means = f"{moved.first:.3f} at first, {moved.last:.3f} at last   (means of the first and last fifth)"
            lines.append((short, means))
    for name in dict.fromkeys(name for row in rows for name in evaluated(row)):
        points = [row for row in rows if name in row]
        ends = points if len(points) < 2 else (points[0], points[-1])
        shown = [f"{with_interval(name, row)} at step {row['step']}" for row in ends]
        lines.append((name.removesuffix("_total_reward"), ", ".join(shown)))
    first = beginning(" ".join(found[0].message.split()), 100) if found else ""
    lines.append(("warnings", f"{len(found)}, the first: {first}" if found else "none"))
    if "loss" not in dict(lines):  # a warm-up has no completions
        command = shlex.join(["qwenvl", "report", str(folder)])
        lines.append(("look", f"{command}   (curves, and every completion with its frames)"))
    lines += zip(["next", *[""] * len(next_steps)], next_steps, strict=False)
    steps = int(max((row["step"] for row in rows), default=0))
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join([f"{folder}: {counted(steps, 'step')}", *(f"  {name:<{width}}{line}" for name, line in lines)])


def next_steps(args: GRPOConfig, found: Sequence[Finding]) -> list[str]:
    """The commands to type after a run, with words on each.

    After a warm-up it is training by rewards. Else a look at the data where one of ``RULES`` holds, an evaluation, and
    for an adapter its merge.

    Args:
        found: the findings of its report.
    """
    folder, base, data = str(args.output_dir).rstrip("/"), str(args.model_name_or_path), str(args.dataset_use)
    if isinstance(args, WarmupConfig):
        train = ["train", "--model_name_or_path", folder, "--dataset_use", data, "--output_dir", f"{folder}-grpo"]
        return [f"{shlex.join(['qwenvl', *train])}   (with the same flags for frames and prompts)"]
    commands = []
    if {each.code for each in found} & {rule.__name__ for rule in RULES}:
        catalog = ["--dataset_catalog", str(args.dataset_catalog)] if args.dataset_catalog else []
        commands.append((["preview", data, "--n", "8", "--model", base, *catalog], "what does the model see?"))
    held_out = args.eval_dataset_use or "HELD_OUT.json"
    commands.append((["evaluate", base, folder, held_out, "--controls", "all"], "is it better? does it use the video?"))
    if args.lora_enable:
        commands.append((["merge", folder, "--out", f"{folder}-merged"], "whole weights, for other programs"))
    return [f"{shlex.join(['qwenvl', *words])}   ({why})" for words, why in commands]


RECORDS = 4  # whose prompts are made


def dry_run(args: GRPOConfig, what: str = "changed") -> str:
    """The settings, rewards or targets, parameters and first prompts of a run, as lines of text.

    The weights are not loaded: their shapes follow from the checkpoint's ``config.json``.

    Args:
        args: a ``GRPOConfig`` or a ``WarmupConfig``.
        what: ``changed``, the settings that differ from their defaults, or ``all``.

    Raises:
        RecordError, BadMediaError: a record that the run would stop at, if it is among the first.
        ValueError, OSError: a run with these settings would be refused.
    """
    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    processor, options = load_processor(str(args.model_name_or_path)), PromptOptions.of(args)
    prompts = counted(args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size, "prompt")
    groups = WARMUP_GROUPS if isinstance(args, WarmupConfig) else FLAG_GROUPS
    own = {each.name for group in groups for each in fields(group)} if what == "all" else set()
    settings = []
    for each in fields(args):
        value = getattr(args, each.name)
        if each.name in own or (value not in (None, []) and each.default is not MISSING and value != each.default):
            settings.append(f"{each.name}: {getattr(value, 'value', value)}")
    title = "settings" if own else "settings that differ from their defaults (--dry_run all: every setting)"
    sections: dict[str, Iterable[str]] = {title: settings}
    if isinstance(args, WarmupConfig):
        targets = targets_of(args)
        collator: GRPOCollator = TargetCollator(processor, options, targets, args)
        dataset, held_out = (
            narrowed(build_dataset(use, args, targets, collator, training=training), targets, flag)
            for use, training, flag in (
                (args.dataset_use, True, "--dataset_use"),
                (args.eval_dataset_use, False, "--eval_dataset_use"),
            )
        )
        more = {"one step": [prompts], "their targets": shown_targets(dataset, collator, RECORDS)}
    else:
        rubric = build_rewards(args, None, None)
        collator = GRPOCollator(processor, options, tools=schemas_of(args))
        dataset = build_dataset(args.dataset_use, args, rubric, collator, training=True)
        held_out = build_dataset(args.eval_dataset_use, args, rubric, collator, training=False)
        sections["rewards"] = [f"{name}: weight {of:g}" for name, of in zip(rubric.names, rubric.weights, strict=True)]
        more = {"one step": [f"{prompts}, {args.grpo_sample_size} completions each"]}
    first_look(dataset)
    for warning in size_warnings(args, dataset, held_out):
        say(f"worth a look: {warning}")
    sections["parameters that learn"] = parameter_lines(policy, weight_dtype(args, args.lora_enable))
    sections[f"prompts of the first of {counted(len(dataset), 'record')}"] = prompt_lines(dataset, collator)
    sections |= more
    lines = [line for title, body in sections.items() for line in (title, *(f"  {line}" for line in body))]
    return "\n".join([*lines, "This was a dry run: nothing was trained or written."])


def parameter_lines(policy: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """How many parameters of each part learn."""
    total, learn = dict.fromkeys(("llm", "vision", "mlp"), 0), dict.fromkeys(("llm", "vision", "mlp"), 0)
    for name, parameter in unwrap(policy).named_parameters():
        total[part_of(name)] += parameter.numel()
        learn[part_of(name)] += parameter.numel() * parameter.requires_grad
    for part in total:
        yield f"{part}: {learn[part]:,} of {total[part]:,}"
    yield f"in all: {sum(learn.values()):,} of {sum(total.values()):,}, kept in {str(dtype).removeprefix('torch.')}"


def prompt_lines(dataset, collator: GRPOCollator) -> Iterator[str]:
    """How long the first prompts are, and how many frames they have."""
    for index in range(min(RECORDS, len(dataset))):
        batch = collator([dataset[index]])["prompts"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record, mask, clips in zip(batch.records, batch.attention_mask, batch.frames, strict=True):
            frames = f", {sum(len(clip.indices) for clip in clips)} frames" if clips else ""
            yield f"{place_of(record)}: {int(mask.sum()):,} tokens{frames}"
