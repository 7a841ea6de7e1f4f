"""A probe: completions for the first prompts of a training run, and their numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.utils.data import DataLoader

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError, told_to_the_user
from qwenvl.data.options import PromptOptions
from qwenvl.evaluate.answers import Answers, rows_of
from qwenvl.evaluate.probe_numbers import ProbeNumbers, ProbeQuestion, numbers_of, worth_of_looks
from qwenvl.evaluate.questions import EVIDENCE, Question, Questions, QuestionSamples
from qwenvl.evaluate.requests import ProbeRequest
from qwenvl.evaluate.respondent import (
    Respondent,
    build_respondent,
    collator_of,
    loader_of,
    pass_reward,
    with_progress,
)
from qwenvl.files import is_unfinished
from qwenvl.rewards import Rubric
from qwenvl.run_lock import NAME
from qwenvl.run_log.log import AS_IT_IS, Rollout, RunLog
from qwenvl.step.answer import in_budget, require_finite
from qwenvl.step.assemble import build_dataset, build_rewards, build_sampler, check_view, dataset_view
from qwenvl.step.rows import rollout_rows
from qwenvl.step.types import Scored
from qwenvl.types import BadSample, PromptBatch

COMMAND = "qwenvl probe"
NUMBERS = "probe.json"
SPLIT = "probe"  # of the rows in the folder


def probe(request: ProbeRequest) -> ProbeNumbers:
    """The numbers of a model on a data set, from completions for the first records that training would draw, each once.

    With ``--output_dir`` every completion is written there as it comes.
    """
    config = request.config
    options = request.options
    log = None if options.output_dir is None else RunLog(options.output_dir)
    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        samples = options.samples or max(8, config.grpo_sample_size)
        question = ProbeQuestion(
            model=str(config.model_name_or_path),
            data=str(config.dataset_use),
            samples=samples,
            group_size=config.grpo_sample_size,
            pass_by=pass_reward(rubric, options),
            pass_at=options.pass_at,
            temperature=config.generation_temperature,
        )
        if log is not None:
            _refuse_foreign(log.folder)
        collator = collator_of(config)
        dataset, keys = _first_prompts(config, rubric, collator, options.limit)
        evidence = _evidence_loaders(config, dataset, keys, collator) if config.tools else None
        respondent = build_respondent(config, collator, rubric, group_size=samples)
        teacher = respondent  # the model itself, on the prompts that a teacher sees
        if config.teacher_path is not None:
            teacher = build_respondent(config, collator, rubric, config.teacher_path, group_size=samples)
    if log is not None:  # what an earlier probe wrote is replaced
        (log.folder / NUMBERS).unlink(missing_ok=True)
        log.begin()
        log.write_config({**config.to_dict(), "command": COMMAND})
    began = time.perf_counter()
    loader = loader_of(dataset, keys, collator, config)
    sampled = _sample(respondent, loader, SPLIT, log, question, teacher)
    if not sampled.prompts:
        raise RecordError(f"all {len(keys)} records were left out; the first: {sampled.left_out[0].error}")
    numbers = numbers_of(
        question=question,
        prompts=sampled.prompts,
        left_out=sampled.left_out,
        seconds=time.perf_counter() - began,
        taught=sampled.taught,
    )
    if evidence is not None:
        without_tools = respondent.with_toolbox(None)
        overview = _sample(without_tools, evidence.overview, "overview", log, question)
        right_span = _sample(without_tools, evidence.right_span, "right span", log, question)
        numbers = replace(numbers, looks=worth_of_looks(overview.prompts, right_span.prompts, question.pass_by))
    rubric.close()
    return numbers


@dataclass(frozen=True)
class _Sampled:
    """The completions for some records.

    Attributes:
        prompts: one for each record that could be read.
        left_out: the other records.
        taught: the completions of the teacher's prompts.
    """

    prompts: list[Answers[Rollout]]
    left_out: list[BadSample]
    taught: list[Answers[Rollout]]


def _sample(
    respondent: Respondent,
    loader: DataLoader,
    split: str,
    log: RunLog | None,
    question: ProbeQuestion,
    teacher: Respondent | None = None,
) -> _Sampled:
    """The completions of each prompt, written as they come, and the records that were left out.

    Args:
        split: of the rows that are written.
        question: by which completions pass.
        teacher: answers the teacher's prompts of the same records. Its completions come last and are not written.
    """
    sampled = _Sampled(prompts=[], left_out=[], taught=[])

    def readable() -> Iterator[PromptBatch]:
        for inputs in with_progress(loader, len(loader), "" if split == SPLIT else split):
            batch = inputs["prompts"]
            sampled.left_out.extend(batch.bad)
            if len(batch) > 0:  # a batch whose only record could not be read is empty
                yield batch

    new_tokens = respondent.sample.group_size * respondent.sample.params.max_new_tokens
    for batches in in_budget(readable(), new_tokens=new_tokens, budget=respondent.config.rollout_token_budget):
        groups = respondent.groups(batches)
        require_finite([each.rollout for each in groups])
        for group in groups:
            answers = _answers_of(group, split, question)
            sampled.prompts.extend(answers)
            if log is not None:
                log.log_rollouts(rows_of(answers))
        teacher_prompts = [batch.teacher for batch in batches if batch.teacher is not None and len(batch.teacher)]
        if teacher is not None and teacher_prompts:
            for group in teacher.groups(teacher_prompts):
                sampled.taught.extend(_answers_of(group, split, question))
    return sampled


def _answers_of(scored: Scored, split: str, question: ProbeQuestion) -> list[Answers[Rollout]]:
    """The completions of a batch, prompt by prompt."""
    batch = scored.batch
    rows = list(rollout_rows(0, split, batch, scored.rollout, scored.rewards))
    group_size = len(rows) // len(batch)
    answers = []
    for p, prompt_tokens in enumerate(batch.attention_mask.sum(1).tolist()):
        group = rows[p * group_size : (p + 1) * group_size]
        answers.append(
            Answers.of(
                group,
                prompt_tokens=prompt_tokens,
                cluster=group[0].where,
                pass_by=question.pass_by,
                pass_at=question.pass_at,
            )
        )
    return answers


@dataclass(frozen=True)
class _EvidenceLoaders:
    """The records with ``evidence``, as they are and with the right span in place of the whole clip."""

    overview: DataLoader
    right_span: DataLoader


def _evidence_loaders(
    config: GRPOConfig, dataset: GRPODataset, keys: Sequence[tuple[int, int]], collator: GRPOCollator
) -> _EvidenceLoaders:
    """The prompts, without tools, of the records that show what looking can bring.

    Raises:
        RecordError: no record has ``evidence``, or that of one cannot be read.
    """
    records = {index: dataset.record(index) for _, index in keys}
    questions = Questions(records, clusters={}, controls=(AS_IT_IS, EVIDENCE))
    numbers = [number for number in questions.records if questions.applies(EVIDENCE, number)]
    if not numbers:
        raise RecordError(
            f'--tools: none of the {len(keys):,} records has one clip and "evidence": [[start, end], ...] in seconds, '
            "by which a probe measures what looking can bring; add it to some records, or probe without --tools"
        )
    samples = QuestionSamples(dataset, questions, config.seed)
    without_tools = GRPOCollator(collator.processor, PromptOptions.of(config))

    def under(control: str) -> DataLoader:
        return loader_of(samples, [Question(control, number) for number in numbers], without_tools, config)

    return _EvidenceLoaders(overview=under(AS_IT_IS), right_span=under(EVIDENCE))


def _first_prompts(
    config: GRPOConfig, rubric: Rubric, collator: GRPOCollator, limit: int
) -> tuple[GRPODataset, list[tuple[int, int]]]:
    """The data set, and the keys of the first records that training would draw, each once."""
    dataset = build_dataset(config.dataset_use, config, rubric, collator, training=True)
    dataset.view = dataset_view(config)
    if dataset.view is not None:
        check_view(config, dataset.view, dataset.records)
    keys: dict[int, tuple[int, int]] = {}
    for key in build_sampler(dataset, config, 1, collator):
        if key is not None:
            _, index = key  # (pass over the data, record)
            keys.setdefault(index, key)  # with weights a record may come several times
    return dataset, list(keys.values())[:limit]


def _refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that no probe writes."""
    files = folder.iterdir() if folder.is_dir() else ()
    present = {each.name for each in files if not is_unfinished(each)}
    if present - {NAME, NUMBERS, "run.json", "rollouts"}:
        raise FileExistsError(
            f"--output_dir {folder}: holds files that no probe wrote; give a new folder or that of an earlier probe"
        )
