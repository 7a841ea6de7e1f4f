"""An evaluation from its first question to its numbers. One that was cut short goes on where it stopped."""

from __future__ import annotations

import copy
import gc
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from accelerate.utils import gather_object, wait_for_everyone

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import DATA_ERRORS, RecordError, told_to_the_user
from qwenvl.evaluate.answers import collator_of
from qwenvl.evaluate.held_out.asking import Asking, LeftOut
from qwenvl.evaluate.held_out.protocol import ModelFacts, differing, model_facts, protocol_of
from qwenvl.evaluate.held_out.questions import Questions
from qwenvl.evaluate.held_out.results import Results, results_of
from qwenvl.evaluate.held_out.settings import Asked
from qwenvl.evaluate.held_out.table import table
from qwenvl.evaluate.passing import reward_that_passes
from qwenvl.evaluate.scores import as_json
from qwenvl.rewards import RewardError, Rubric
from qwenvl.runlog import RunLogError
from qwenvl.runlog.evaluation import NUMBERS, EvaluationLog, Sample, SampleKey, read_evaluation, read_samples
from qwenvl.train.assemble import build_rewards
from qwenvl.train.data_sets import build_dataset, build_frame_cache
from qwenvl.train.display.console import say, settle_output


@dataclass(frozen=True)
class Prepared:
    """One model with all that it needs but its weights."""

    facts: ModelFacts
    config: GRPOConfig
    collator: GRPOCollator
    dataset: GRPODataset


@dataclass
class Evaluation:
    """What an evaluation has found so far, as ``evaluation.json`` has it.

    Attributes:
        command: as it can be typed again.
        protocol: see ``protocol_of``.
        settings_of: the run or file that settings were taken from.
        left_out: of the models that were asked to the end.
        seconds: by model, of this and earlier sittings.
        results: None until the end.
    """

    command: str
    models: list[ModelFacts]
    controls: tuple[str, ...]
    protocol: dict[str, Any]
    settings_of: str | None
    began: str
    left_out: list[LeftOut]
    seconds: dict[str, float]
    ended: str | None = None
    results: Results | None = None

    def numbers(self) -> dict[str, Any]:
        """What ``evaluation.json`` holds."""
        results = Results() if self.results is None else self.results
        rest = {name: value for name, value in vars(self).items() if name != "results"}
        return as_json({**rest, **vars(results)})


def evaluate(command: str, asked: Asked) -> str:
    """Ask all models all questions, write the folder, and return what is to be shown. All processes call it together.

    Args:
        command: what errors that end the process begin with.
    """
    settle_output()
    with told_to_the_user(command, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(asked.config, None, None)
        pass_by = reward_that_passes(rubric, asked.options)
        prepared, questions = _prepared(asked, rubric)
        evaluation = Evaluation(
            command=asked.command,
            models=[each.facts for each in prepared],
            controls=questions.controls,
            protocol=protocol_of(asked, rubric, prepared[0].dataset, questions, pass_by),
            settings_of=asked.settings_of,
            began=_now(),
            left_out=[],
            seconds={},
        )
        log = EvaluationLog(asked.output_dir, asked.config.process_index)
        done = _earlier(asked, evaluation, log)
    with told_to_the_user(command, (*DATA_ERRORS, RewardError, RunLogError)):
        for each in prepared:
            _ask(each, evaluation, questions, asked, rubric, log, done)
        rubric.close()
        if asked.config.process_index == 0:
            _finish(evaluation, questions, asked, log)
    wait_for_everyone()
    if evaluation.results is None:  # another process tells
        return ""
    if asked.options.json:
        return (asked.output_dir / NUMBERS).read_text(encoding="utf-8").rstrip()
    return table(evaluation.results, evaluation.protocol, evaluation.models, evaluation.left_out, asked.output_dir)


def _prepared(asked: Asked, rubric: Rubric) -> tuple[list[Prepared], Questions]:
    """The models without their weights, and the questions. What is wrong comes up before minutes of loading."""
    prepared: list[Prepared] = []
    questions: Questions | None = None
    for model in asked.models:
        config = copy.copy(asked.config)
        config.model_name_or_path = model.path
        collator = collator_of(config)
        cache = build_frame_cache(config, collator)
        dataset = build_dataset(config.dataset_use, config, rubric, collator, cache, training=False)
        assert isinstance(dataset, GRPODataset)
        if questions is None:
            questions = Questions.of(dataset, asked.options, config.seed)
        prepared.append(Prepared(model_facts(model, config, collator, questions), config, collator, dataset))
    assert questions is not None
    return prepared, questions


def _earlier(asked: Asked, evaluation: Evaluation, log: EvaluationLog) -> dict[SampleKey, Sample]:
    """What an evaluation that was cut short has written, or nothing. The folder is made ready for more.

    Raises:
        FileExistsError: the folder holds another evaluation, or something else.
    """
    if asked.options.fresh:
        if log.process == 0:
            log.forget()
        wait_for_everyone()
    done: dict[SampleKey, Sample] = {}
    if (log.folder / NUMBERS).is_file():
        earlier = read_evaluation(log.folder)
        if problems := _problems(earlier, evaluation):
            lines = "".join(f"\n  {line}" for line in problems[:5])
            raise FileExistsError(
                f"{log.folder}: holds an evaluation with other settings; give another --output_dir, or begin anew with "
                f"--fresh:{lines}"
            )
        done = read_samples(log.folder)
        evaluation.began, evaluation.seconds = earlier["began"], earlier["seconds"]
        evaluation.left_out = [LeftOut(**each) for each in earlier["left_out"]]
        if done:
            say(f"{log.folder}: goes on from {len(done):,} completions that are there")
    elif log.folder.is_dir() and any(each.name != ".lock" for each in log.folder.iterdir()):
        raise FileExistsError(f"{log.folder}: holds files that no evaluation wrote; give another --output_dir")
    wait_for_everyone()  # all have read before one of them writes
    log.begin(evaluation.numbers())
    return done


def _problems(earlier: dict[str, Any], evaluation: Evaluation) -> list[str]:
    """Why the earlier samples are not of this evaluation.

    It may have more models and controls than before, and make other numbers of the same samples.
    """
    now = evaluation.numbers()
    models = {model["name"]: model for model in now["models"]}
    lines = differing(_of_samples(earlier["protocol"]), _of_samples(now["protocol"]))
    for model in earlier["models"]:
        if model["name"] in models:
            lines += differing(model, models[model["name"]], f"model {model['name']}")
        else:
            lines.append(f"model {model['name']}: asked there, not here")
    return lines + [
        f"control {each}: asked there, not here" for each in earlier["controls"] if each not in now["controls"]
    ]


def _of_samples(protocol: dict[str, Any]) -> dict[str, Any]:
    """What of the protocol decides the samples. The numbers are made of these anew."""
    data = {name: value for name, value in protocol["data"].items() if not name.startswith("cluster")}
    return {name: value for name, value in protocol.items() if name != "passes"} | {"data": data}


def _ask(
    prepared: Prepared,
    evaluation: Evaluation,
    questions: Questions,
    asked: Asked,
    rubric: Rubric,
    log: EvaluationLog,
    done: dict[SampleKey, Sample],
) -> None:
    """One model asked what it was not asked before."""
    name, started = prepared.facts.name, time.perf_counter()
    known = {(each.control, each.doc_id) for each in evaluation.left_out if each.model == name}
    asking = Asking(
        name=name,
        config=prepared.config,
        collator=prepared.collator,
        dataset=prepared.dataset,
        questions=questions,
        samples=asked.options.samples,
        done=done.keys(),
        left_out=known,
    )
    found = gather_object(asking.ask(rubric, log))
    gc.collect()  # the next model may need the room of this one
    evaluation.left_out += [each for each in found if (each.control, each.doc_id) not in known]
    evaluation.seconds[name] = evaluation.seconds.get(name, 0.0) + time.perf_counter() - started
    log.write(evaluation.numbers())


def _finish(evaluation: Evaluation, questions: Questions, asked: Asked, log: EvaluationLog) -> None:
    """All samples in one file, in order, and the numbers made from them."""
    samples, missing = read_samples(log.folder), 0
    left_out = {(each.model, each.control, each.doc_id) for each in evaluation.left_out}
    ordered: list[Sample] = []
    for model in evaluation.models:
        for number in questions.records:
            for control in questions.controls:
                if not questions.applies(control, number) or (model.name, control, number) in left_out:
                    continue
                keys = [SampleKey(model.name, control, number, n) for n in range(asked.options.samples)]
                cluster = questions.clusters[number]
                ordered += [replace(samples[key], cluster=cluster) for key in keys if key in samples]
                missing += sum(key not in samples for key in keys)
    if missing:
        raise RunLogError(
            f"{log.folder}: {missing:,} samples of other processes are not there; --output_dir must be on a file "
            "system that all processes share"
        )
    if not ordered:
        first = evaluation.left_out[0].error
        raise RecordError(f"all {len(questions.records)} records were left out; the first: {first}")
    evaluation.results = results_of(
        ordered,
        [model.name for model in evaluation.models],
        questions.controls,
        evaluation.protocol["passes"]["by"],
        asked.options.pass_at,
        asked.options.wanted_strata,
    )
    evaluation.ended = _now()
    log.join(ordered)
    log.write(evaluation.numbers())


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
