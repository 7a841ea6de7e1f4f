"""``qwenvl probe MODEL DATA``: what training would have to work with, before its first step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.evaluate.command import MODEL, PASSES, run_command
from qwenvl.evaluate.settings import READ_BY_PROBE, ProbeOptions, Request, probe_request
from qwenvl.files import written_whole
from qwenvl.option import row_of

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.data.dataset import GRPODataset
    from qwenvl.evaluate.results import Answers
    from qwenvl.rewards import Rubric
    from qwenvl.runlog import RunLog
    from qwenvl.train.collect.collector import Collector
    from qwenvl.types import BadSample, PromptBatch

COMMAND = "qwenvl probe"
NUMBERS = "probe.json"
SPLIT = "probe"  # of the rows in the folder
ABOUT = (
    "qwenvl probe MODEL DATA [--samples 8] [--limit 200] [--flag of training value ...]\n       qwenvl probe run.yaml",
    ProbeOptions,
    READ_BY_PROBE - {"model_name_or_path", "dataset_use"},
    "Sample completions for the prompts of a training run before its first step: are some right, do they differ, are "
    f"they whole? A group whose completions are all right or all wrong teaches nothing. {MODEL}. DATA is what "
    f"--dataset_use takes. {PASSES}",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, and print the numbers with their verdict. Status 1 for bad data, 2 for a bad command line."""
    return run_command("probe", argv, probe_request, _run, ABOUT)


def _run(request: Request) -> str:
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


def probe(request: Request) -> dict[str, Any]:
    """The numbers of a model on a data set, from completions for the first records that training would draw, each once.

    With ``--output_dir`` every completion is written there as it comes.
    """
    from qwenvl.data.errors import RecordError, told_to_the_user
    from qwenvl.evaluate.probe_results import numbers_of, worth_of_looks
    from qwenvl.evaluate.respondent import build_respondent, collator_of, loader_of, pass_reward
    from qwenvl.runlog import RunLog
    from qwenvl.train.assemble import build_rewards

    config, options = request.config, request.options
    log = None if options.output_dir is None else RunLog(options.output_dir)
    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        samples = options.samples or max(8, config.grpo_sample_size)
        question: dict[str, Any] = {
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
        dataset, keys = _first_prompts(config, rubric, collator, options.limit)
        spans = _evidence_loaders(config, dataset, keys, collator) if config.tools else {}
        model, collector = build_respondent(config, collator, rubric)
        teacher, as_teacher = _teacher(config, collator, rubric, (model, collector))
    if log is not None:  # what an earlier probe wrote is replaced
        (log.folder / NUMBERS).unlink(missing_ok=True)
        log.begin()
        log.write_config({**config.to_dict(), "command": COMMAND})
    collector, as_teacher = (replace(each, group_size=samples) for each in (collector, as_teacher))
    began = time.perf_counter()
    loader = loader_of(dataset, keys, collator, config)
    prompts, left_out, taught = _sample(collector, model, loader, SPLIT, log, question, (as_teacher, teacher))
    if not prompts:
        raise RecordError(f"all {len(keys)} records were left out; the first: {left_out[0].error}")
    numbers = numbers_of(question, prompts, left_out, time.perf_counter() - began, taught)
    if spans:
        plain = replace(collector, toolbox=None)
        overview, span = (_sample(plain, model, each, split, log, question)[0] for split, each in spans.items())
        numbers["looks"] = worth_of_looks(overview, span, question["pass_by"])
    rubric.close()
    return numbers


def _sample(
    collector: Collector,
    model: nn.Module,
    loader: DataLoader,
    split: str,
    log: RunLog | None,
    question: dict[str, Any],
    teacher: tuple[Collector, nn.Module] | None = None,
) -> tuple[list[Answers], list[BadSample], list[Answers]]:
    """The completions of each prompt, written as they come, and the records that were left out.

    Args:
        question: see ``numbers_of``.
        teacher: answers the teacher's prompts of the same records. Its completions come last and are not written.
    """
    from qwenvl.evaluate.probe_results import answers_of
    from qwenvl.evaluate.respondent import with_progress
    from qwenvl.train.collect.collector import require_finite
    from qwenvl.train.evaluation import in_budget
    from qwenvl.train.journal import rollout_rows

    prompts: list[Answers] = []
    left_out: list[BadSample] = []
    taught: list[Answers] = []

    def whole() -> Iterator[PromptBatch]:
        for inputs in with_progress(loader, len(loader), "" if split == SPLIT else split):
            left_out.extend(inputs["prompts"].bad)
            if len(inputs["prompts"]):
                yield inputs["prompts"]

    new_tokens = collector.group_size * collector.params.max_new_tokens
    for batches in in_budget(whole(), new_tokens=new_tokens, budget=collector.args.rollout_token_budget):
        experiences = collector.collect(model, batches)
        require_finite([each.rollout for each in experiences])
        for each in experiences:
            rows = list(rollout_rows(0, split, each.batch, each.rollout, each.rewards))
            if log is not None:
                log.log_rollouts(rows)
            prompts += answers_of(each.batch, rows, question)
        if teacher is not None and (seen := [each.teacher for each in batches if each.teacher]):
            for own in teacher[0].collect(teacher[1], seen):
                rows = list(rollout_rows(0, split, own.batch, own.rollout, own.rewards))
                taught += answers_of(own.batch, rows, question)
    return prompts, left_out, taught


def _teacher(config: GRPOConfig, collator: GRPOCollator, rubric: Rubric, policy: tuple[Any, Any]) -> tuple[Any, Any]:
    """The model that teaches, as it is before training, and its collector."""
    from qwenvl.evaluate.respondent import build_respondent

    named = row_of(config, "teacher")
    if named is None or named.name in ("self", "reference"):
        return policy
    return build_respondent(config, collator, rubric, named.name)


def _evidence_loaders(
    config: GRPOConfig, dataset: GRPODataset, keys: Sequence[tuple[int, int]], collator: GRPOCollator
) -> dict[str, DataLoader]:
    """The records with ``evidence`` as they are, and with the right span in place of the whole clip, without tools.

    Raises:
        RecordError: no record has ``evidence``, or that of one cannot be read.
    """
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.data.errors import RecordError
    from qwenvl.data.options import PromptOptions
    from qwenvl.evaluate.questions import EVIDENCE, Questions, QuestionSamples
    from qwenvl.evaluate.respondent import loader_of
    from qwenvl.runlog import AS_IT_IS

    questions = Questions({index: dataset.record(index) for _, index in keys}, {}, (AS_IT_IS, EVIDENCE))
    numbers = [number for number in questions.records if questions.applies(EVIDENCE, number)]
    if not numbers:
        raise RecordError(
            f'--tools: none of the {len(keys):,} records has one clip and "evidence": [[start, end], ...] in seconds, '
            "by which a probe measures what looking can bring; add it to some records, or probe without --tools"
        )
    samples = QuestionSamples(dataset, questions, config.seed)
    plain = GRPOCollator(collator.processor, PromptOptions.of(config))
    return {
        split: loader_of(samples, [(control, number) for number in numbers], plain, config)
        for split, control in (("overview", AS_IT_IS), ("right span", EVIDENCE))
    }


def _first_prompts(
    config: GRPOConfig, rubric: Rubric, collator: GRPOCollator, limit: int
) -> tuple[GRPODataset, list[tuple[int, int]]]:
    """The data set, and the keys of the first records that training would draw, each once."""
    from qwenvl.train.assemble import dataset_view
    from qwenvl.train.data_sets import build_dataset, build_sampler

    dataset = build_dataset(config.dataset_use, config, rubric, collator, training=True)
    dataset.view = dataset_view(config)
    keys: dict[int, tuple[int, int]] = {}
    for key in build_sampler(dataset, config, 1, collator):
        if key is not None:
            keys.setdefault(key[1], key)  # with weights a record may come several times
    return dataset, list(keys.values())[:limit]


def _refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that no probe writes."""
    from qwenvl.train.run.lock import NAME

    if folder.is_dir() and {each.name for each in folder.iterdir()} - {NAME, NUMBERS, "run.json", "rollouts"}:
        raise FileExistsError(
            f"--output_dir {folder}: holds files that no probe wrote; give a new folder or that of an earlier probe"
        )
