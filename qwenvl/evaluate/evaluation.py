"""An evaluation from its first question to its numbers. One that was cut short is resumed where it stopped."""

from __future__ import annotations

import copy
import gc
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object, wait_for_everyone

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.evaluate.protocol import differing, model_facts, protocol_of
from qwenvl.evaluate.questions import Questions, QuestionSamples, toolbox_under
from qwenvl.evaluate.respondent import build_respondent, collator_of, in_blocks, pass_reward
from qwenvl.evaluate.results import as_json, results_of
from qwenvl.evaluate.settings import Request
from qwenvl.evaluate.timelines import check_procedure, procedure_rows
from qwenvl.inspection.from_folder import read_steps
from qwenvl.rewards import Rubric
from qwenvl.rewards.functions.text import answer_of
from qwenvl.run_log.log import (
    AS_IT_IS,
    NUMBERS,
    EvaluationLog,
    EvaluationSample,
    Rollout,
    RunLogError,
    SampleKey,
    hash_of,
    read_evaluation,
    read_samples,
)
from qwenvl.step.assemble import build_dataset
from qwenvl.step.rows import rollout_rows
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch

SHARED = tuple({each.name for each in fields(EvaluationSample)} & {each.name for each in fields(Rollout)})
"""Fields that a completion of an evaluation has in common with one of a run."""


@dataclass(frozen=True)
class PreparedModel:
    """A model with everything but its weights."""

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

    def __init__(self, request: Request, rubric: Rubric) -> None:
        self.request, self.rubric = request, rubric
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
                **{name: [] for name in ("numbers", "drops", "differences")},
            }
        )
        self.log = EvaluationLog(request.options.output_dir, request.config.process_index)
        self.done: dict[SampleKey, EvaluationSample] = {}

    def resume(self) -> None:
        """Read what an evaluation that was cut short has written, and prepare the folder for more.

        Raises:
            FileExistsError: the folder holds another evaluation, or something else.
        """
        log, found = self.log, self.found
        if self.request.options.fresh:
            if log.process == 0:
                log.forget()
            wait_for_everyone()
        if (log.folder / NUMBERS).is_file():
            earlier = read_evaluation(log.folder)
            if problems := _problems(earlier, found):
                lines = "".join(f"\n  {line}" for line in problems[:5])
                raise FileExistsError(
                    f"{log.folder}: holds an evaluation with other settings; give another --output_dir, or begin anew "
                    f"with --fresh:{lines}"
                )
            self.done = read_samples(log.folder)
            found |= {name: earlier[name] for name in ("began", "seconds", "left_out")}
            if self.done:
                say(f"{log.folder}: goes on from {len(self.done):,} completions that are there")
        elif log.folder.is_dir() and any(each.name != ".lock" for each in log.folder.iterdir()):
            raise FileExistsError(f"{log.folder}: holds files that no evaluation wrote; give another --output_dir")
        wait_for_everyone()  # all have read before one of them writes
        log.begin(found)

    def run(self) -> None:
        """Sample the pending completions of all models, and write the numbers. A collective: all processes call it."""
        for model in self.models:
            self._ask_model(model)
        self.rubric.close()
        if self.log.process == 0:
            self._finish()
        wait_for_everyone()

    def _ask_model(self, model: PreparedModel) -> None:
        name, started, left_out = model.facts["name"], time.perf_counter(), self.found["left_out"]
        known = {(each["control"], each["doc_id"]) for each in left_out if each["model"] == name}
        numbers = range(self.request.options.samples)

        def is_done(key: tuple[str, int]) -> bool:
            return key in known or all(SampleKey(name, *key, n) in self.done for n in numbers)

        blocks = [block for block in self.questions.blocks() if not all(map(is_done, block))]
        own = blocks[model.config.process_index :: model.config.world_size]
        bad = gather_object(self._ask(model, own) if own else [])
        gc.collect()  # frees the memory for the next model
        left_out += [each for each in bad if (each["control"], each["doc_id"]) not in known]
        seconds = self.found["seconds"]
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
        self.log.write(self.found)

    def _ask(self, model: PreparedModel, blocks: Sequence[Sequence[tuple[str, int]]]) -> list[dict[str, Any]]:
        """Sample the blocks, each completion written as it comes. Returns the records that were left out."""
        name, config, left_out = model.facts["name"], model.config, []
        blocks = [[*own] for block in blocks for _, own in groupby(block, key=itemgetter(0))]  # one control in each
        samples = QuestionSamples(model.dataset, self.questions, config.seed)
        # Draws do not depend on the process: each of them takes process 0.
        respondent = build_respondent(config, model.collator, self.rubric, process=0)
        toolbox = respondent.sample.toolbox
        count = self.request.options.samples
        for [(control, _), *_], bad, batches in in_blocks(respondent, samples, blocks, model.collator, count, name):
            for each in bad:
                where = {"doc_id": each.record.index, "where": each.record.where, "error": each.error}
                left_out.append({"model": name, "control": control, **where})
            if toolbox is not None:
                respondent = respondent.with_toolbox(toolbox_under(control, toolbox, config.seed))
            for together in batches:
                for batch, answer in zip(together, respondent.scored_answers(together, count), strict=True):
                    self.log.log(self._rows(name, control, batch, *answer))
        return left_out

    def _rows(
        self, model: str, control: str, batch: PromptBatch, rollout: RolloutBatch, rewards: RewardBatch
    ) -> Iterator[EvaluationSample]:
        count = self.request.options.samples
        lengths = batch.attention_mask.sum(1).tolist()
        for n, row in enumerate(rollout_rows(0, control, batch, rollout, rewards)):
            record = batch.records[n // count]
            yield EvaluationSample(
                model=model,
                control=control,
                doc_id=record.index,
                dataset=record.dataset,
                cluster=self.questions.clusters[record.index],
                target=row.solution,
                answer=answer_of(row.completion) or "",
                prompt_tokens=lengths[n // count],
                doc_hash=hash_of(record.fields),
                doc=record.fields if control == AS_IT_IS and not row.sample else None,
                **{name: getattr(row, name) for name in SHARED},
            )

    def _finish(self) -> None:
        """Join all samples in one file, in order, and write the numbers."""
        log, found, options, questions = self.log, self.found, self.request.options, self.questions
        samples, names = read_samples(log.folder), [model.facts["name"] for model in self.models]
        left_out = {(each["model"], each["control"], each["doc_id"]) for each in found["left_out"]}
        keys = [
            SampleKey(name, control, number, n)
            for name in names
            for number in questions.records
            for control in questions.controls
            if questions.applies(control, number) and (name, control, number) not in left_out
            for n in range(options.samples)
        ]
        if missing := sum(key not in samples for key in keys):
            raise RunLogError(
                f"{log.folder}: {missing:,} samples of other processes are not there; --output_dir must be on a file "
                "system that all processes share"
            )
        if not keys:
            first = found["left_out"][0]["error"]
            raise RecordError(f"all {len(questions.records)} records were left out; the first: {first}")
        ordered = [replace(samples[key], cluster=questions.clusters[key.doc_id]) for key in keys]
        passes = found["protocol"]["passes"]
        found |= results_of(ordered, names, questions.controls, passes["by"], passes["at"])
        if self.steps is not None:
            clips = procedure_rows(ordered, self.steps)
            found["procedure"] = {"file": options.procedure, "steps": [*self.steps], "clips": clips}
        found["ended"] = _now()
        log.join(ordered)
        log.write(found)


def _problems(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why the samples of an earlier evaluation do not belong to this one.

    More models and controls are no problem, nor are other numbers from the same samples.
    """

    def of_samples(found: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the protocol that decides the samples, and the models and controls of the earlier one."""
        data = {name: value for name, value in found["protocol"]["data"].items() if not name.startswith("cluster")}
        models = {model["name"]: {**model, "path": _place(model["path"])} for model in found["models"]}
        return {
            **{name: value for name, value in found["protocol"].items() if name != "passes"},
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
