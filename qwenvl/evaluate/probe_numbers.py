"""The numbers of a probe, from the completions of its prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.evaluate.answers import (
    PASSES,
    Answers,
    as_json,
    differences,
    equal_chance,
    is_truncated,
    mean_over,
    mean_score,
    pass_chances,
    reward_named,
    rows_of,
    share_interval,
    share_over,
)
from qwenvl.rewards import RewardError
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.run_log.log import Rollout
from qwenvl.types import TOTAL, BadSample

FORMATS = ("format", "strict_format")


@dataclass(frozen=True)
class ProbeQuestion:
    """The model and the data of a probe, and how it samples.

    Attributes:
        samples, group_size: completions per prompt, here and in training.
        pass_by, pass_at: a completion passes where this reward is at least this value.
    """

    model: str
    data: str
    samples: int
    group_size: int
    pass_by: str
    pass_at: float
    temperature: float


@dataclass(frozen=True)
class LooksWorth:
    """The most that looking can bring: what the right span brings on the same records.

    Attributes:
        records: how many there are.
        overview: mean of the reward on records as they are.
        right_span: the same with the span of their ``evidence`` in place of the whole clip.
        gain: of the second over the first.
    """

    records: int
    overview: Interval
    right_span: Interval
    gain: Interval


@dataclass(frozen=True, kw_only=True)
class ProbeNumbers:
    """The numbers of a probe: docs/evaluation.md explains each.

    Attributes:
        question: what was asked.
        prompts: how many prompts there are, at least one.
        left_out: the errors of the other records.
        pass_at_k: by k.
        teacher: pass@1 of the teacher's prompts.
        rewards: by name, ``total`` among them.
        equal_groups, equal_answers: shares of groups of training with equal totals, and with an equal ``pass_by``.
        truncated: share of completions.
        truncated_after_answer: share of these with a whole answer.
        format: share in the form that the format reward asks for, of the completions that it scores. None: there are
            none, or no such reward.
        form_asked: share of completions whose prompt shows the form.
        unique: mean number of different completions of a prompt.
        completion_tokens, longest_completion, prompt_tokens, longest_prompt: means and maxima in tokens.
        looks: None without tools.
    """

    question: ProbeQuestion
    prompts: int
    left_out: tuple[str, ...]
    pass_at_k: dict[int, Interval]
    teacher: Interval
    rewards: dict[str, Interval]
    equal_groups: Interval
    equal_answers: Interval
    truncated: Interval
    truncated_after_answer: float
    format: Interval | None
    form_asked: float
    unique: float
    completion_tokens: float
    longest_completion: int
    prompt_tokens: float
    longest_prompt: int
    seconds_per_prompt: float
    looks: LooksWorth | None = None

    def as_json(self) -> dict[str, Any]:
        """As ``probe.json`` has them."""
        written: dict[str, Any] = as_json(self)
        question = written.pop("question")
        if self.looks is None:
            del written["looks"]
        return question | written


def numbers_of(
    question: ProbeQuestion,
    prompts: Sequence[Answers[Rollout]],
    left_out: Sequence[BadSample],
    seconds: float,
    taught: Sequence[Answers[Rollout]] = (),
) -> ProbeNumbers:
    """The numbers of at least one prompt.

    Args:
        seconds: of the whole probe.
        taught: the completions of the teacher's prompts.

    Raises:
        RewardError: the reward ``pass_by`` has a value for no completion.
    """
    if not any(each.passed for each in prompts):
        raise RewardError(f"--pass_by {question.pass_by}: it has no value for any completion; name another reward")
    rows = rows_of(prompts)
    reward_names = list(rows[0].rewards)
    has_answer_end = [float("</answer>" in row.completion) for row in rows if is_truncated(row)]
    asks_for_form = [float(_asks_for_form(row)) for row in rows]
    unique_completions = []  # different completions of each prompt
    for each in prompts:
        texts = {row.completion for row in each.rows}
        unique_completions.append(len(texts))
    form = next((name for name in FORMATS if name in reward_names), None)
    in_form = None
    if form is not None and any(row.rewards[form] is not None for row in rows):
        in_form = mean_over(prompts, lambda row: _is_in_form(row, form), share_interval)
    return ProbeNumbers(
        question=question,
        prompts=len(prompts),
        left_out=tuple(bad.error for bad in left_out),
        pass_at_k=pass_chances(prompts, question.samples),
        teacher=mean_score(taught, PASSES),
        rewards={name: mean_score(prompts, name) for name in (*reward_names, TOTAL)},
        equal_groups=_equal_share(prompts, TOTAL, question.group_size),
        equal_answers=_equal_share(prompts, question.pass_by, question.group_size),
        truncated=share_over(prompts, is_truncated),
        truncated_after_answer=_mean(has_answer_end),
        format=in_form,
        form_asked=_mean(asks_for_form),
        unique=_mean(unique_completions),
        completion_tokens=_mean([row.tokens for row in rows]),
        longest_completion=max(row.tokens for row in rows),
        prompt_tokens=_mean([each.prompt_tokens for each in prompts]),
        longest_prompt=max(each.prompt_tokens for each in prompts),
        seconds_per_prompt=seconds / len(prompts),
    )


def _is_in_form(row: Rollout, form: str) -> float | None:
    """1 if a completion has the form that the reward ``form`` asks for, else 0. None: its record asks for none."""
    value = row.rewards[form]
    return None if value is None else float(value == 1)


def _asks_for_form(row: Rollout) -> bool:
    """True if a turn of the prompt shows the form of an answer block."""
    return any("<answer>" in turn["text"] for turn in row.prompt)


def _equal_share(prompts: Sequence[Answers[Rollout]], name: str, group_size: int) -> Interval:
    """The share of groups of training in which all completions have an equal value of the reward ``name``."""
    chances = []
    for each in prompts:
        values = [reward_named(row, name) for row in each.rows]
        chances.append(equal_chance(values, group_size))
    return share_interval(chances)


def worth_of_looks(
    overview: Sequence[Answers[Rollout]], right_span: Sequence[Answers[Rollout]], pass_by: str
) -> LooksWorth:
    """The most that looking can bring.

    Args:
        overview: completions of records as they are.
        right_span: of the same records with the span of their ``evidence`` in place of the whole clip.
        pass_by: the reward that is compared.
    """
    # In a probe the cluster of a prompt is the place of its record, so it names the record on both sides.
    before = {each.cluster: each for each in overview}
    after = {each.cluster: each for each in right_span}
    gain = differences(before, after, pass_by)
    clips = [before[where].rows[0].clips[0].path for where in gain]
    return LooksWorth(
        records=len(gain),
        overview=clustered_interval([before[where].scores[pass_by] for where in gain], clips),
        right_span=clustered_interval([after[where].scores[pass_by] for where in gain], clips),
        gain=clustered_interval(list(gain.values()), clips),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))
