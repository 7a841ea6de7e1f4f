"""The numbers of an evaluation with 95 % intervals, as pure functions of its samples.

They are rows of ``evaluation.json``, as docs/evaluation.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.evaluate.answers import (
    Answers,
    as_json,
    differences,
    is_truncated,
    mean_over,
    mean_score,
    pass_chances,
    reward_named,
    rows_of,
    share_over,
)
from qwenvl.evaluate.timelines import (
    MEASURES,
    ReadAnswer,
    Row,
    confusion_rows,
    read_answer,
    step_rows,
)
from qwenvl.rewards.functions.looking import answered_calls, looks_iou
from qwenvl.run_log.health import SAME_REWARD
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.run_log.log import AS_IT_IS, EvaluationSample
from qwenvl.types import ToolCall

MANY_UNREAD = 0.1  # share of completions without an answer above which a score says more about the form
_Records = dict[int, Answers[EvaluationSample]]  # of one model and control, by number

# The fields of these rows, in this order, are the keys of ``evaluation.json``.


@dataclass(frozen=True)
class ModelNumbers:
    """A row of ``numbers``: one model under one control."""

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
    looks: LookNumbers | None
    timelines: TimelineNumbers | None


@dataclass(frozen=True)
class LookNumbers:
    """The use that completions made of their tools. A look is a call that was answered.

    Attributes:
        looked: share of completions with a look.
        calls: per completion.
        with_look, without_look: the reward that decides, over the completions that looked and over the others.
        evidence_iou: intersection over union of the spans that were looked at and those of the evidence.
        refused: ``{"mean": share of calls that were refused}``. None without a call.
    """

    looked: Interval
    calls: float
    with_look: Interval
    without_look: Interval
    evidence_iou: Interval
    refused: dict[str, float] | None


@dataclass(frozen=True)
class TimelineNumbers:
    """The measures of timelines over the records that are about one."""

    records: int
    scores: dict[str, Interval]
    steps: list[Row]
    confusions: list[Row]


@dataclass(frozen=True)
class PairedScores:
    """The mean difference of each score over the records that both sides have."""

    records: int
    scores: dict[str, Interval]


@dataclass(frozen=True)
class EvidenceDrop:
    """A row of ``drops``: the scores of a model with all evidence minus those under a control.

    Attributes:
        records, scores: see ``PairedScores``.
        no_answer: share of completions without an answer block under the control.
        comparable: the drop is one of what was seen, and not of the form of the answers.
        answered: the drop over the completions that have an answer block.
    """

    model: str
    control: str
    records: int
    scores: dict[str, Interval]
    no_answer: Interval
    comparable: bool
    answered: PairedScores


@dataclass(frozen=True)
class ModelDifference:
    """A row of ``differences``: the scores of the model ``after`` minus those of the model ``before``.

    Attributes:
        records, scores: see ``PairedScores``.
        better, equal, worse: records by the sign of the difference of the reward that decides.
    """

    before: str
    after: str
    control: str
    records: int
    scores: dict[str, Interval]
    better: int
    equal: int
    worse: int


def results_of(
    samples: Iterable[EvaluationSample],
    models: Sequence[str],
    controls: Sequence[str],
    pass_by: str,
    pass_at: float,
) -> dict[str, list[dict[str, Any]]]:
    """The numbers of all models under all controls, on any selection of samples, such as those of one data set.

    - ``numbers``: a row for each model and control, see ``ModelNumbers``.
    - ``drops``: the worth of the evidence to each model, its scores without a control minus those under it.
    - ``differences``: the scores of each further model minus those of the first.

    Drops and differences are paired: over the records that both sides have.

    Args:
        models, controls: in the order of the tables. Models are compared with the first.
        pass_by, pass_at: a completion passes where this reward is at least this value.
    """
    rows: dict[tuple[str, str, int], list[EvaluationSample]] = {}
    for sample in samples:
        if sample.model in models and sample.control in controls:
            rows.setdefault((sample.model, sample.control, sample.doc_id), []).append(sample)
    found: dict[tuple[str, str], _Records] = {}
    for model in models:
        for control in controls:
            found[model, control] = {}
    for model, control, number in sorted(rows):
        own = rows[model, control, number]
        found[model, control][number] = Answers.of(
            own, prompt_tokens=own[0].prompt_tokens, cluster=own[0].cluster, pass_by=pass_by, pass_at=pass_at
        )

    numbers = []
    for (model, control), records in found.items():
        if records:
            numbers.append(_numbers(model, control, records, pass_by))
    drops = []
    for model in models:
        for control in controls:
            if control != AS_IT_IS:
                drop = _drop(
                    model=model,
                    control=control,
                    without=found[model, control],
                    full=found[model, AS_IT_IS],
                    pass_by=pass_by,
                    pass_at=pass_at,
                )
                drops.append(drop)
    first = models[0]
    gains = []
    for model in models[1:]:
        for control in controls:
            gain = _difference(
                before=first,
                after=model,
                control=control,
                of_before=found[first, control],
                of_after=found[model, control],
                pass_by=pass_by,
            )
            gains.append(gain)
    return as_json({"numbers": numbers, "drops": drops, "differences": gains})


def _numbers(model: str, control: str, found: _Records, pass_by: str) -> ModelNumbers:
    prompts = list(found.values())
    rows = rows_of(prompts)
    most = max(len(each.passed) for each in prompts)
    return ModelNumbers(
        model=model,
        control=control,
        records=len(prompts),
        clusters=len({each.cluster for each in prompts}),
        scores={name: mean_score(prompts, name) for name in _score_names(prompts)},
        pass_at_k=pass_chances(prompts, most),
        no_answer=share_over(prompts, _has_no_answer),
        truncated=share_over(prompts, is_truncated),
        tokens=sum(row.tokens for row in rows) / len(rows),
        longest=max(row.tokens for row in rows),
        prompt_tokens=sum(each.prompt_tokens for each in prompts) / len(prompts),
        fitted=sum(each.rows[0].fitted is not None for each in prompts),
        looks=_looks(prompts, rows, pass_by),
        timelines=_timelines(prompts),
    )


def _score_names(prompts: Iterable[Answers[EvaluationSample]]) -> list[str]:
    """The names of all scores of some prompts, each once, in the order in which they come."""
    names: dict[str, None] = {}
    for each in prompts:
        names |= dict.fromkeys(each.scores)
    return list(names)


def _has_no_answer(row: EvaluationSample) -> bool:
    return not row.answer


def _looked(row: EvaluationSample) -> bool:
    return bool(answered_calls(row.turns))


def _looks(
    prompts: Sequence[Answers[EvaluationSample]], rows: Sequence[EvaluationSample], pass_by: str
) -> LookNumbers | None:
    """The use that the completions ``rows`` of the prompts made of their tools. None without tools."""

    def with_look(row: EvaluationSample) -> float | None:
        return reward_named(row, pass_by) if _looked(row) else None

    def without_look(row: EvaluationSample) -> float | None:
        return None if _looked(row) else reward_named(row, pass_by)

    def evidence_iou(row: EvaluationSample) -> float | None:
        return looks_iou(row.turns, row.evidence) if row.evidence else None

    with_turns = [row.turns for row in rows if row.turns]
    if not with_turns:
        return None
    calls: list[ToolCall] = []
    for turns in with_turns:
        for turn in turns:
            calls += turn.calls
    refused = None
    if calls:
        refused = {"mean": sum(call.error is not None for call in calls) / len(calls)}
    return LookNumbers(
        looked=share_over(prompts, _looked),
        calls=len(calls) / len(with_turns),
        with_look=mean_over(prompts, with_look),
        without_look=mean_over(prompts, without_look),
        evidence_iou=mean_over(prompts, evidence_iou),
        refused=refused,
    )


def _timelines(prompts: Sequence[Answers[EvaluationSample]]) -> TimelineNumbers | None:
    """The measures of timelines over the records that are about one. None without such a record."""
    read: list[Answers[ReadAnswer]] = []
    for each in prompts:
        answers = [read_answer(row) for row in each.rows]
        about_one = [answer for answer in answers if answer is not None]
        if about_one:
            read.append(
                Answers(
                    rows=about_one,
                    prompt_tokens=each.prompt_tokens,
                    cluster=each.cluster,
                    scores=each.scores,
                    passed=each.passed,
                )
            )
    if not read:
        return None
    everything = rows_of(read)
    return TimelineNumbers(
        records=len(read),
        scores={name: mean_over(read, measure) for name, measure in MEASURES.items()},
        steps=step_rows(everything),
        confusions=confusion_rows(everything),
    )


def _drop(
    model: str, control: str, without: _Records, full: _Records, pass_by: str, pass_at: float
) -> EvidenceDrop:
    """The drop, and the one over the completions that have an answer block (``answered``).

    The drop is not comparable if over 10 % of the completions under the control have no answer block: then it is one of
    the form. A model that never writes an answer block is comparable: its rewards read the text.
    """
    no_answer = share_over(list(without.values()), _has_no_answer)
    never_answers = all(map(_has_no_answer, rows_of(list(full.values()))))
    too_many_unread = no_answer.mean > MANY_UNREAD  # False for NaN, where no record has the control
    paired = _paired(without, full)
    return EvidenceDrop(
        model=model,
        control=control,
        records=paired.records,
        scores=paired.scores,
        no_answer=no_answer,
        comparable=never_answers or not too_many_unread,
        answered=_paired(_answered(without, pass_by, pass_at), _answered(full, pass_by, pass_at)),
    )


def _answered(found: _Records, pass_by: str, pass_at: float) -> _Records:
    """The completions that have an answer block, by record. A record without one is left out."""
    answered = {}
    for number, each in found.items():
        rows = [row for row in each.rows if row.answer]
        if rows:
            answered[number] = Answers.of(
                rows, prompt_tokens=each.prompt_tokens, cluster=each.cluster, pass_by=pass_by, pass_at=pass_at
            )
    return answered


def _paired(before: _Records, after: _Records) -> PairedScores:
    """The difference of each score on the records that both have it for."""
    in_both = [number for number in before if number in after]
    scores = {}
    for name in _score_names(before[number] for number in in_both):
        gains = differences(before, after, name)
        scores[name] = clustered_interval(list(gains.values()), [before[number].cluster for number in gains])
    return PairedScores(records=len(in_both), scores=scores)


def _difference(
    before: str, after: str, control: str, of_before: _Records, of_after: _Records, pass_by: str
) -> ModelDifference:
    gains = differences(of_before, of_after, pass_by).values()
    better = sum(gain > SAME_REWARD for gain in gains)
    worse = sum(gain < -SAME_REWARD for gain in gains)
    paired = _paired(of_before, of_after)
    return ModelDifference(
        before=before,
        after=after,
        control=control,
        records=paired.records,
        scores=paired.scores,
        better=better,
        equal=len(gains) - better - worse,
        worse=worse,
    )
