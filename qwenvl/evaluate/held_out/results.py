"""From samples to the numbers of an evaluation, with 95 % intervals. Pure functions: the samples are all they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qwenvl.evaluate.held_out.questions import field_of
from qwenvl.evaluate.held_out.votes import majority
from qwenvl.evaluate.scores import SAME, Interval, clustered_interval, paired_difference, pass_at_k, share_interval
from qwenvl.rewards.functions.actions import action_numbers, action_phrases
from qwenvl.rewards.functions.text import solution_of
from qwenvl.runlog.evaluation import AS_IT_IS, Sample
from qwenvl.types import TOTAL

PASSES, MAJORITY, NO_ANSWER, TRUNCATED = "passes", "majority", "no_answer", "truncated"
_SECONDS = (0, 2, 5, 10, 30, 60, 180, 600, math.inf)  # edges of the strata of duration


@dataclass(frozen=True)
class Numbers:
    """What came of one model under one control, over some records.

    Attributes:
        model, control: of the samples.
        records, clusters: that were answered, and how many of them do not depend on each other.
        scores: means over records: of each reward and ``total``, of ``passes`` (the share of completions that pass),
            and with several samples of ``majority``, the reward of the answer that most completions give.
        pass_at_k: the chance that one of k completions passes, for k = 1, 2, 4, ... and all samples.
        no_answer: share of completions in which the rewards found no answer block.
        truncated: share of completions that were cut at ``generation_max_length``.
        tokens, longest: of completions, mean and most.
        prompt_tokens: mean.
        fitted: records that were shown less of so that their prompts fit (``--fit_frames``).
    """

    model: str
    control: str
    records: int
    clusters: int
    scores: dict[str, Interval]
    pass_at_k: dict[int, Interval]
    no_answer: Interval
    truncated: Interval
    tokens: float
    longest: int
    prompt_tokens: float
    fitted: int


@dataclass(frozen=True)
class Drop:
    """What the evidence is worth to a model: its scores with it minus those without, on the same records."""

    model: str
    control: str
    records: int
    scores: dict[str, Interval]


@dataclass(frozen=True)
class Difference:
    """How much better one model is than another on the same records.

    Attributes:
        before, after: the models. The difference is ``after`` minus ``before``.
        better, equal, worse: records by the difference in the reward that tells what passes.
    """

    before: str
    after: str
    control: str
    records: int
    scores: dict[str, Interval]
    better: int
    equal: int
    worse: int


@dataclass(frozen=True)
class Stratum:
    """The records that have one value of something in common, with the numbers of each model on them as they are."""

    by: str
    value: str
    numbers: list[Numbers]
    differences: list[Difference]


@dataclass(frozen=True)
class Results:
    """All numbers of an evaluation."""

    numbers: list[Numbers] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    strata: list[Stratum] = field(default_factory=list)


@dataclass(frozen=True)
class _Record:
    """The completions of one record."""

    samples: list[Sample]
    scores: dict[str, float]
    passed: list[bool]

    @property
    def cluster(self) -> str:
        return self.samples[0].cluster


_Asked = dict[int, _Record]  # the records of one model and control, by number


def results_of(
    samples: Iterable[Sample],
    models: Sequence[str],
    controls: Sequence[str],
    pass_by: str,
    pass_at: float,
    strata: Sequence[str] | None = None,
) -> Results:
    """The numbers of all models under all controls.

    Args:
        models, controls: those that count, in the order to be told in. Models are compared with the first.
        pass_by, pass_at: a completion passes where this reward is at least this value.
        strata: what records are told apart by. None: the data set, where there are several.

    Raises:
        RecordError: a record lacks a field that ``strata`` names.
    """
    by_model: dict[tuple[str, str], dict[int, list[Sample]]] = {}
    for sample in samples:
        by_model.setdefault((sample.model, sample.control), {}).setdefault(sample.doc_id, []).append(sample)
    asked: dict[tuple[str, str], _Asked] = {
        (model, control): {
            number: _record(own, pass_by, pass_at) for number, own in sorted(by_model.get((model, control), {}).items())
        }
        for model in models
        for control in controls
    }
    full = {model: asked[model, AS_IT_IS] for model in models}
    return Results(
        numbers=[_numbers(*key, records) for key, records in asked.items() if records],
        drops=[
            Drop(model, control, *_paired(asked[model, control], full[model]))
            for model in models
            for control in controls
            if control != AS_IT_IS
        ],
        differences=[
            _difference(models[0], model, control, asked[models[0], control], asked[model, control], pass_by)
            for model in models[1:]
            for control in controls
        ],
        strata=list(_strata(full, pass_by, strata)),
    )


def _record(samples: list[Sample], pass_by: str, pass_at: float) -> _Record:
    samples = sorted(samples, key=lambda sample: sample.sample)
    columns = {name: [sample.rewards[name] for sample in samples] for name in samples[0].rewards}
    columns[TOTAL] = [sample.total for sample in samples]
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    scores = {name: sum(values) / len(values) for name, values in known.items() if values}
    passed = [value >= pass_at - SAME for value in known[pass_by]]
    if passed:
        scores[PASSES] = sum(passed) / len(passed)
    if len(samples) > 1 and len(passed) == len(samples):
        answers = [sample.answer for sample in samples]
        scores[MAJORITY] = majority(answers, known[pass_by], pass_by, samples[0].prompt)
    return _Record(samples, scores, passed)


def _numbers(model: str, control: str, asked: _Asked) -> Numbers:
    records = list(asked.values())
    clusters = [record.cluster for record in records]
    most = max(len(record.passed) for record in records)
    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most] * (most > 0)

    def mean(value: Callable[[_Record], float], of: Sequence[_Record] = records) -> Interval:
        return clustered_interval([value(record) for record in of], [record.cluster for record in of])

    def share(of: Callable[[Sample], bool]) -> Interval:
        return of_shares(mean(lambda record: sum(map(of, record.samples)) / len(record.samples)))

    def chance(k: int) -> Interval:
        enough = [record for record in records if len(record.passed) >= k]
        return of_shares(mean(lambda record: pass_at_k(len(record.passed), sum(record.passed), k), enough))

    names = dict.fromkeys(name for record in records for name in record.scores)
    scores = {
        name: mean(lambda record: record.scores[name], [each for each in records if name in each.scores])  # noqa: B023
        for name in names
    }
    if PASSES in scores:
        scores[PASSES] = of_shares(scores[PASSES])
    tokens = [sample.tokens for record in records for sample in record.samples]
    return Numbers(
        model=model,
        control=control,
        records=len(records),
        clusters=len(set(clusters)),
        scores=scores,
        pass_at_k={k: chance(k) for k in sizes},
        no_answer=share(lambda sample: not sample.answer),
        truncated=share(lambda sample: sample.finish_reason == "length"),
        tokens=sum(tokens) / len(tokens),
        longest=max(tokens),
        prompt_tokens=sum(record.samples[0].prompt_tokens for record in records) / len(records),
        fitted=sum(record.samples[0].fitted is not None for record in records),
    )


def of_shares(interval: Interval) -> Interval:
    """The interval of a mean of shares, which may be 0 or 1 everywhere: then it is Wilson's, and not without width.

    Example:
        >>> round(of_shares(Interval(0.0, 0.0, 0.0, 20)).high, 3)
        0.161
    """
    if interval.n and interval.mean in (0.0, 1.0):
        return share_interval([interval.mean] * interval.n)
    return interval


def _paired(before: _Asked, after: _Asked) -> tuple[int, dict[str, Interval]]:
    """How many records both have, and the difference of each score on those that both have it for."""
    both = [number for number in before if number in after]
    scores = {}
    for name in dict.fromkeys(name for number in both for name in before[number].scores):
        own = {str(n): n for n in both if name in before[n].scores and name in after[n].scores}
        scores[name] = paired_difference(
            {key: before[n].scores[name] for key, n in own.items()},
            {key: after[n].scores[name] for key, n in own.items()},
            {key: before[n].cluster for key, n in own.items()},
        )
    return len(both), scores


def _difference(before: str, after: str, control: str, of_before: _Asked, of_after: _Asked, pass_by: str) -> Difference:
    records, scores = _paired(of_before, of_after)
    gains = [
        of_after[n].scores[pass_by] - record.scores[pass_by]
        for n, record in of_before.items()
        if n in of_after and pass_by in record.scores and pass_by in of_after[n].scores
    ]
    better, worse = sum(gain > SAME for gain in gains), sum(gain < -SAME for gain in gains)
    return Difference(before, after, control, records, scores, better, len(gains) - better - worse, worse)


def _strata(full: Mapping[str, _Asked], pass_by: str, strata: Sequence[str] | None) -> Iterator[Stratum]:
    first, *others = full
    records = {number: record.samples[0] for model in [*full][::-1] for number, record in full[model].items()}
    if strata is None:
        strata = ["dataset"] if len({sample.dataset for sample in records.values()}) > 1 else []
    for by in strata:
        values = {number: stratum_of(sample, by) for number, sample in records.items()}
        for value in sorted(set(values.values())):
            own = {
                model: {number: record for number, record in asked.items() if values[number] == value}
                for model, asked in full.items()
            }
            yield Stratum(
                by,
                value[1],
                [_numbers(model, AS_IT_IS, asked) for model, asked in own.items() if asked],
                [_difference(first, model, AS_IT_IS, own[first], own[model], pass_by) for model in others],
            )


def stratum_of(sample: Sample, by: str) -> tuple[float, str]:
    """What a record is told apart by: a number to sort by, and its name.

    Raises:
        RecordError: the record has no such field.
    """
    if by == "dataset":
        return 0.0, sample.dataset
    if by == "actions":
        truth = solution_of(sample.target)
        count = len(set(action_numbers(truth) or action_phrases(truth)))
        return float(count), str(count)
    if by == "duration":
        if not any(clip.times for clip in sample.clips):
            return -1.0, "no clip"
        seconds = sum(clip.times[-1] - clip.times[0] for clip in sample.clips if clip.times)
        edge = max(place for place, edge in enumerate(_SECONDS) if edge <= max(0.0, seconds))
        return float(edge), f"{_SECONDS[edge]:g} to {_SECONDS[edge + 1]:g} s"
    value = field_of(sample.doc or {}, by, sample.where)
    number = float(value) if isinstance(value, (int, float)) else 0.0
    return number, str(value)
