"""An evaluation from its first question to its numbers. One that was cut short is resumed where it stopped."""

from __future__ import annotations

import copy
import gc
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object, wait_for_everyone

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.evaluate.answers import as_json
from qwenvl.evaluate.protocol import differing, model_facts, protocol_of
from qwenvl.evaluate.questions import Question, Questions, QuestionSamples, toolbox_under
from qwenvl.evaluate.requests import EvaluationRequest
from qwenvl.evaluate.respondent import build_respondent, collator_of, in_blocks, pass_reward
from qwenvl.evaluate.results import results_of
from qwenvl.evaluate.timelines import check_procedure, procedure_rows
from qwenvl.files import is_unfinished
from qwenvl.inspection.steps import read_steps
from qwenvl.rewards import Rubric
from qwenvl.rewards.functions.text import answer_of
from qwenvl.run_log.log import (
    AS_IT_IS,
    NUMBERS,
    EvaluationLog,
    EvaluationSample,
    LoggedCompletion,
    RunLogError,
    SampleKey,
    hash_of,
    read_evaluation,
    read_samples,
)
from qwenvl.step.assemble import build_dataset
from qwenvl.step.rows import rollout_rows
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch

SHARED = tuple(each.name for each in fields(LoggedCompletion))
"""Fields that a completion of an evaluation has in common with one of a run."""


@dataclass(frozen=True)
class PreparedModel:
    """A model with everything but its weights.

    Attributes:
        facts: its row of ``evaluation.json``, see ``model_facts``.
        config: the settings that it is asked with.
        collator: makes its prompts.
        dataset: the records, as it sees them.
    """

    facts: dict[str, Any]
    config: GRPOConfig
    collator: GRPOCollator
    dataset: GRPODataset


class Evaluation:
    """An evaluation in one process. Errors of names, data and flags come up before weights are loaded.

    Attributes:
        found: the content of ``evaluation.json``.
        done: the samples of an earlier sitting.
    """

    def __init__(self, request: EvaluationRequest, rubric: Rubric) -> None:
        self.request = request
        self.rubric = rubric
        procedure = request.options.procedure
        self.steps = None if procedure is None else read_steps(Path(procedure))
        pass_by = pass_reward(rubric, request.options)
        self.models: list[PreparedModel] = []
        for source in request.models:
            config = copy.copy(request.config)
            config.model_name_or_path = source.path
            collator = collator_of(config)
            first = not self.models  # the records are the same for all models
            dataset = build_dataset(config.dataset_use, config, rubric, collator, training=False, tells=first)
            assert isinstance(dataset, GRPODataset)
            if first:
                self.questions = Questions.of(dataset, request.options, config.seed, tools=bool(config.tools))
            facts = model_facts(source, config, collator, self.questions)
            self.models.append(PreparedModel(facts, config, collator, dataset))
        if self.steps is not None:
            solutions = (self.questions.record(AS_IT_IS, number).solution for number in self.questions.records)
            check_procedure(solutions, self.steps, str(procedure))
        self.found: dict[str, Any] = as_json(
            {
                "command": shlex.join(["qwenvl", "evaluate", *request.argv]),
                "models": [model.facts for model in self.models],
                "controls": self.questions.controls,
                "protocol": protocol_of(request, rubric, self.models[0].dataset, self.questions, pass_by),
                "settings_of": request.settings_of,
                "began": _now(),
                "left_out": [],  # of the models that are done
                "seconds": {},  # by model, earlier sittings included
                "ended": None,
                "procedure": None,
                "numbers": [],
                "drops": [],
                "differences": [],
            }
        )
        self.log = EvaluationLog(request.folder, request.config.process_index)
        self.done: dict[SampleKey, EvaluationSample] = {}

    def resume(self) -> None:
        """Read what an evaluation that was cut short has written, and prepare the folder for more.

        Raises:
            FileExistsError: the folder holds another evaluation, or something else.
        """
        log = self.log
        begins_anew = self.request.options.fresh and log.has_earlier()
        wait_for_everyone()  # all have looked before one of them deletes
        if begins_anew:
            if log.process == 0:
                log.forget()
            wait_for_everyone()
        elif (log.folder / NUMBERS).is_file():
            earlier = read_evaluation(log.folder)
            problems = _problems(earlier, self.found)
            if problems:
                lines = "".join(f"\n  {line}" for line in problems[:5])
                raise FileExistsError(
                    f"{log.folder}: holds an evaluation with other settings; give another --output_dir, or begin anew "
                    f"with --fresh:{lines}"
                )
            self.done = read_samples(log.folder)
            for name in ("began", "seconds", "left_out"):
                self.found[name] = earlier[name]
            if self.done:
                say(f"{log.folder}: goes on from {len(self.done):,} completions that are there")
        elif log.folder.is_dir() and any(map(_is_foreign, log.folder.iterdir())):
            raise FileExistsError(f"{log.folder}: holds files that no evaluation wrote; give another --output_dir")
        wait_for_everyone()  # all have read before one of them writes
        log.begin(self.found)

    def run(self) -> None:
        """Sample the pending completions of all models, and write the numbers. A collective: all processes call it."""
        for model in self.models:
            self._ask_model(model)
        self.rubric.close()
        if self.log.process == 0:
            self._finish()
        wait_for_everyone()

    def _ask_model(self, model: PreparedModel) -> None:
        """Sample the pending completions of a model. A collective: all processes call it."""
        started = time.perf_counter()
        name = model.facts["name"]
        left_out = self.found["left_out"]
        known_bad = {Question(each["control"], each["doc_id"]) for each in left_out if each["model"] == name}
        pending = [block for block in self.questions.blocks() if not self._is_done(name, block, known_bad)]
        own = pending[model.config.process_index :: model.config.world_size]
        bad = gather_object(self._ask(model, own) if own else [])
        gc.collect()  # frees the memory for the next model
        # A block that is asked again names its bad records again.
        left_out += [each for each in bad if Question(each["control"], each["doc_id"]) not in known_bad]
        seconds = self.found["seconds"]
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
        self.log.write(self.found)

    def _is_done(self, model: str, block: Sequence[Question], known_bad: Set[Question]) -> bool:
        """True if an earlier sitting has all completions of a block, but for records that cannot be read."""
        for question in block:
            if question in known_bad:
                continue
            for n in range(self.request.options.samples):
                key = SampleKey(model=model, control=question.control, doc_id=question.number, sample=n)
                if key not in self.done:
                    return False
        return True

    def _ask(self, model: PreparedModel, blocks: Sequence[Sequence[Question]]) -> list[dict[str, Any]]:
        """Sample the blocks, each completion written as it comes. Returns the records that were left out."""
        name = model.facts["name"]
        config = model.config
        count = self.request.options.samples
        left_out: list[dict[str, Any]] = []
        samples = QuestionSamples(model.dataset, self.questions, config.seed)
        # Draws do not depend on the process, so that a resumed evaluation may have other processes: each takes 0.
        respondent = build_respondent(config, model.collator, self.rubric, process=0)
        toolbox = respondent.sample.toolbox
        one_control = _split_by_control(blocks)
        for block, bad, batches in in_blocks(respondent, samples, one_control, model.collator, count, name):
            control = block[0].control
            for each in bad:
                left_out.append(
                    {
                        "model": name,
                        "control": control,
                        "doc_id": each.record.index,
                        "where": each.record.where,
                        "error": each.error,
                    }
                )
            if toolbox is not None:
                respondent = respondent.with_toolbox(toolbox_under(control, toolbox, config.seed))
            for together in batches:
                answers = respondent.scored_answers(together, count)
                for batch, (rollout, rewards) in zip(together, answers, strict=True):
                    self.log.log(self._rows(name, control, batch, rollout, rewards))
        return left_out

    def _rows(
        self, model: str, control: str, batch: PromptBatch, rollout: RolloutBatch, rewards: RewardBatch
    ) -> Iterator[EvaluationSample]:
        """The completions of a batch as lines of ``samples.jsonl``."""
        count = self.request.options.samples
        lengths = batch.attention_mask.sum(1).tolist()
        for n, row in enumerate(rollout_rows(0, control, batch, rollout, rewards)):
            prompt = n // count
            record = batch.records[prompt]
            yield EvaluationSample(
                model=model,
                control=control,
                doc_id=record.index,
                dataset=record.dataset,
                cluster=self.questions.clusters[record.index],
                target=row.solution,
                answer=answer_of(row.completion) or "",
                prompt_tokens=lengths[prompt],
                doc_hash=hash_of(record.fields),
                doc=record.fields if control == AS_IT_IS and not row.sample else None,
                **{name: getattr(row, name) for name in SHARED},
            )

    def _finish(self) -> None:
        """Join all samples in one file, in order, and write the numbers."""
        questions = self.questions
        found = self.found
        samples = read_samples(self.log.folder)
        names = [model.facts["name"] for model in self.models]
        keys = list(self._expected(names))
        missing = sum(key not in samples for key in keys)
        if missing:
            raise RunLogError(
                f"{self.log.folder}: {missing:,} samples of other processes are not there; --output_dir must be on a "
                "file system that all processes share"
            )
        if not keys:
            first = found["left_out"][0]["error"]
            raise RecordError(f"all {len(questions.records)} records were left out; the first: {first}")
        ordered = [replace(samples[key], cluster=questions.clusters[key.doc_id]) for key in keys]
        passes = found["protocol"]["passes"]
        found |= results_of(ordered, names, questions.controls, passes["by"], passes["at"])
        if self.steps is not None:
            found["procedure"] = {
                "file": self.request.options.procedure,
                "steps": list(self.steps),
                "clips": procedure_rows(ordered, self.steps),
            }
        found["ended"] = _now()
        self.log.join(ordered)
        self.log.write(found)

    def _expected(self, models: Sequence[str]) -> Iterator[SampleKey]:
        """The keys of all samples, in the order of the file. Records that were left out have none."""
        left_out = {(each["model"], each["control"], each["doc_id"]) for each in self.found["left_out"]}
        for model in models:
            for number in self.questions.records:
                for control in self.questions.controls:
                    if (model, control, number) in left_out or not self.questions.applies(control, number):
                        continue
                    for n in range(self.request.options.samples):
                        yield SampleKey(model=model, control=control, doc_id=number, sample=n)


def _is_foreign(path: Path) -> bool:
    """Whether a file in a folder without an evaluation is none of one that was killed in its first write."""
    return path.name != ".lock" and not is_unfinished(path)


def _split_by_control(blocks: Sequence[Sequence[Question]]) -> list[list[Question]]:
    """The blocks, cut so that each has one control: a control has a toolbox of its own."""
    parts = []
    for block in blocks:
        for _, questions in groupby(block, key=attrgetter("control")):
            parts.append(list(questions))
    return parts


def _problems(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings by which the samples of an earlier evaluation do not belong to this one, a line for each.

    More models and controls are no problem, nor are other numbers from the same samples.
    """

    def of_samples(found: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the protocol that decides the samples, and the models and controls of the earlier one."""
        protocol = dict(found["protocol"])
        protocol.pop("passes", None)  # the same samples give other numbers, as with other clusters
        data = {name: value for name, value in protocol["data"].items() if not name.startswith("cluster")}
        models = {model["name"]: {**model, "path": _place(model["path"])} for model in found["models"]}
        return {
            **protocol,
            "data": data,
            "models": {each["name"]: models.get(each["name"], {}) for each in earlier["models"]},
            "controls": {each: each in found["controls"] for each in earlier["controls"]},
        }

    return differing(of_samples(earlier), of_samples(now))


def _place(path: str) -> str:
    """The folder of a model, however it was written. A name on the hub stays as it is."""
    return os.path.realpath(path) if os.path.isdir(path) else path


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
