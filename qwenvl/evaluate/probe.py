"""``qwenvl probe MODEL DATA``: what training would have to work with, before its first step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.evaluate.command import run_command
from qwenvl.evaluate.settings import ProbeRequest, probe_request
from qwenvl.files import written_whole
from qwenvl.option import row_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.rewards import Rubric

COMMAND = "qwenvl probe"
NUMBERS = "probe.json"
SPLIT = "probe"  # of the rows in the folder


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, and print the numbers with their verdict. Status 1 for bad data, 2 for a bad command line."""
    return run_command("probe", argv, probe_request, _run)


def _run(request: ProbeRequest) -> str:
    from qwenvl.evaluate.probe_results import next_command, table, verdict
    from qwenvl.model.loading import base_of_adapter
    from qwenvl.rewards.options import RewardOptions
    from qwenvl.rollout.options import SamplingOptions
    from qwenvl.train.run.lock import locked

    config, options = request.config, request.options
    with nullcontext() if options.output_dir is None else locked(options.output_dir):
        numbers = probe(request)
        findings = verdict(numbers, SamplingOptions.of(config), RewardOptions.of(config))
        command = next_command(findings, request, base_of_adapter(str(config.model_name_or_path)))
        shown = [{"name": each.code, "words": each.message, "flags": each.flags} for each in findings]
        numbers |= {"verdict": shown, "next": command}
        written = json.dumps(numbers, indent=1, ensure_ascii=False)
        if options.output_dir is not None:
            with written_whole(Path(options.output_dir) / NUMBERS) as file:
                file.write_text(written + "\n", encoding="utf-8")
    return written if options.json else table(numbers)


def probe(request: ProbeRequest) -> dict[str, Any]:
    """The numbers of a model on a data set, from completions for the first records that training would draw, each once.

    With ``--output_dir`` every completion is written there as it comes.
    """
    from qwenvl.data.errors import DATA_ERRORS, RecordError, told_to_the_user
    from qwenvl.evaluate.probe_results import PromptGroup, groups_of, numbers_of
    from qwenvl.evaluate.respondent import build_respondent, collator_of, pass_reward, with_progress
    from qwenvl.rewards import RewardError
    from qwenvl.runlog import RunLog
    from qwenvl.train.assemble import build_rewards
    from qwenvl.train.collect.collector import require_finite
    from qwenvl.train.display.console import settle_output
    from qwenvl.train.evaluation import in_budget
    from qwenvl.train.journal import rollout_rows
    from qwenvl.types import BadSample, PromptBatch

    settle_output()
    config, options = request.config, request.options
    log = None if options.output_dir is None else RunLog(options.output_dir)
    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        samples = options.samples or max(8, config.grpo_sample_size)
        question = {
            "model": str(config.model_name_or_path),
            "data": str(config.dataset_use),
            "samples": samples,
            "group_size": config.grpo_sample_size,
            "pass_by": pass_reward(rubric, options),
            "pass_at": options.pass_at,
            "temperature": config.generation_temperature,
        }
        if log is not None:
            _refuse_foreign(log.folder)
        collator = collator_of(config)
        loader = _first_prompts(config, rubric, collator, options.limit)
        model, collector = build_respondent(config, collator, rubric)
        teacher, as_teacher = _teacher(config, collator, rubric, (model, collector))
    if log is not None:  # what an earlier probe wrote is replaced
        (log.folder / NUMBERS).unlink(missing_ok=True)
        log.begin()
        log.write_config({**config.to_dict(), "command": COMMAND})
    collector, as_teacher = (replace(each, group_size=samples) for each in (collector, as_teacher))
    new_tokens = samples * collector.params.max_new_tokens
    left_out: list[BadSample] = []
    groups: list[PromptGroup] = []
    taught: list[PromptGroup] = []

    def prompts() -> Iterator[PromptBatch]:
        for inputs in with_progress(loader, len(loader)):
            left_out.extend(inputs["prompts"].bad)
            if len(inputs["prompts"]):
                yield inputs["prompts"]

    began = time.perf_counter()
    with told_to_the_user(COMMAND, (*DATA_ERRORS, RewardError)):
        for batches in in_budget(prompts(), new_tokens=new_tokens, budget=config.rollout_token_budget):
            experiences = collector.collect(model, batches)
            require_finite([each.rollout for each in experiences])
            for each in experiences:
                rows = list(rollout_rows(0, SPLIT, each.batch, each.rollout, each.rewards))
                if log is not None:
                    log.log_rollouts(rows)
                groups += groups_of(each.batch, rows)
            for own in as_teacher.collect(teacher, seen) if (seen := [b.teacher for b in batches if b.teacher]) else []:
                taught += groups_of(own.batch, [*rollout_rows(0, SPLIT, own.batch, own.rollout, own.rewards)])
        rubric.close()
        if not groups:
            raise RecordError(f"all {len(loader)} records were left out; the first: {left_out[0].error}")
        return numbers_of(question, groups, left_out, time.perf_counter() - began, taught)


def _teacher(config: GRPOConfig, collator: GRPOCollator, rubric: Rubric, policy: tuple[Any, Any]) -> tuple[Any, Any]:
    """The model that teaches, as it is before training, and its collector."""
    from qwenvl.evaluate.respondent import build_respondent

    named = row_of(config, "teacher")
    if named is None or named.name in ("self", "reference"):
        return policy
    return build_respondent(config, collator, rubric, named.name)


def _first_prompts(config: GRPOConfig, rubric: Rubric, collator: GRPOCollator, limit: int) -> DataLoader:
    """The first records that training would draw, each once."""
    from qwenvl.evaluate.respondent import loader_of
    from qwenvl.train.assemble import dataset_view
    from qwenvl.train.data_sets import build_dataset, build_sampler

    dataset = build_dataset(config.dataset_use, config, rubric, collator, training=True)
    dataset.view = dataset_view(config)
    keys: dict[int, tuple[int, int]] = {}
    for key in build_sampler(dataset, config, 1, collator):
        if key is not None:
            keys.setdefault(key[1], key)  # with weights a record may come several times
    return loader_of(dataset, list(keys.values())[:limit], collator, config)


def _refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that no probe writes."""
    from qwenvl.train.run.lock import NAME

    if folder.is_dir() and {each.name for each in folder.iterdir()} - {NAME, NUMBERS, "run.json", "rollouts"}:
        raise FileExistsError(
            f"--output_dir {folder}: holds files that no probe wrote; give a new folder or that of an earlier probe"
        )
