"""What a probe found: the completions of each prompt, and the numbers made from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from qwenvl.evaluate.scores import SAME, Interval, as_json, equal_chance, pass_at_k, share_interval
from qwenvl.grpo.diagnostics import MeanInterval, mean_interval
from qwenvl.rewards import RewardError
from qwenvl.rewards.functions.format import FormatReward
from qwenvl.train.step import Experience
from qwenvl.types import TOTAL, BadSample

FORMATS = ("format", "strict_format")


Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Group:
    """The completions of one prompt.

    Attributes:
        where: the record's file and place.
        prompt_tokens: vision tokens included.
        texts, tokens, truncated: of each completion.
        rewards: by function and ``total``, a value for each completion, None where it does not apply.
        entropy: the sum over all tokens of the completions, in nats. None where it was not measured.
        opened_think: the prompt ends inside a think block.
        form_asked: the prompt names the tags of an answer.
    """

    where: str
    prompt_tokens: int
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    rewards: dict[str, Values]
    entropy: float | None = None
    opened_think: bool = False
    form_asked: bool = False


def groups_of(experience: Experience, entropies: Tensor | None = None) -> list[Group]:
    """The P groups of an experience.

    Args:
        entropies: N x T, of the distributions that the tokens were drawn from, 0 at padding.
    """
    batch, rollout, rewards = experience.batch, experience.rollout, experience.rewards
    columns = rewards.columns()
    size = len(rollout.texts) // max(1, len(batch))
    lengths = rollout.completion_mask.sum(1).tolist()
    spent = None if entropies is None else entropies.double().sum(1)
    groups = []
    for p, record in enumerate(batch.records):
        rows = slice(p * size, (p + 1) * size)
        groups.append(
            Group(
                where=record.where,
                prompt_tokens=int(batch.attention_mask[p].sum()),
                texts=tuple(rollout.texts[rows]),
                tokens=tuple(lengths[rows]),
                truncated=tuple(reason == "length" for reason in rollout.finish_reasons[rows]),
                rewards={name: tuple(values[rows]) for name, values in columns.items()},
                entropy=None if spent is None else float(spent[rows].sum()),
                opened_think=batch.opened_think[p],
                form_asked=any("<answer>" in message.text for message in record.messages),
            )
        )
    return groups


@dataclass(frozen=True)
class Question:
    """What was asked of whom, and what counts as a pass.

    Attributes:
        samples: completions per prompt.
        group_size: completions per prompt in training.
        pass_by, pass_at: a completion passes where this reward is at least this value.
        temperature: of sampling.
    """

    model: str
    data: str
    samples: int
    group_size: int
    pass_by: str
    pass_at: float
    temperature: float


@dataclass(frozen=True)
class Facts:
    """The numbers of a probe. Intervals are over prompts.

    Attributes:
        prompts: that were answered.
        left_out: why records were left out, each beginning with its place.
        pass_at_k: the chance that one of k completions passes, for k = 1, 2, 4, ... and ``samples``.
        rewards: mean of each function and of ``total``.
        equal_groups: share of groups of ``group_size`` completions whose totals are all equal: they teach nothing.
        equal_answers: share of groups of that size whose values of ``pass_by`` are all equal.
        equal_groups_of_all: share of groups whose ``samples`` totals are all equal.
        truncated: share of completions that were cut at ``generation_max_length``.
        truncated_after_answer: share of these that hold a whole answer.
        format: share of completions with the form that the format reward asks for. None without such a reward.
        answer_only: share of completions that are an answer alone, which ``response_format answer_only`` asks for.
        form_asked: share of prompts that name the tags of an answer.
        unique: different completions of a prompt, mean.
        entropy: of a token at the sampling temperature, in nats, mean over the tokens of all completions. None where
            it was not measured.
        completion_tokens, longest_completion, prompt_tokens, longest_prompt: in tokens.
        seconds: of each prompt, in all (``all``) and by what they went to.
    """

    question: Question
    prompts: int
    left_out: tuple[str, ...]
    pass_at_k: dict[int, Interval]
    rewards: dict[str, MeanInterval]
    equal_groups: Interval
    equal_answers: Interval
    equal_groups_of_all: Interval
    truncated: Interval
    truncated_after_answer: float
    format: Interval | None
    answer_only: float
    form_asked: float
    unique: float
    entropy: float | None
    completion_tokens: float
    longest_completion: int
    prompt_tokens: float
    longest_prompt: int
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON takes them. An interval is an object of its mean, its ends and its number of prompts."""
        numbers = {each.name: as_json(getattr(self, each.name)) for each in fields(self) if each.name != "question"}
        return {**vars(self.question), **numbers}


def facts_of(
    question: Question, groups: Sequence[Group], left_out: Sequence[BadSample], seconds: dict[str, float]
) -> Facts:
    """The numbers of at least one group.

    Args:
        seconds: of the whole probe, by what they went to.

    Raises:
        RewardError: the reward that tells what passes has a value for no completion.
    """
    samples, size = question.samples, question.group_size
    passes = [each for group in groups if (each := passed(group, question))]
    if not passes:
        raise RewardError(f"--pass_by {question.pass_by}: it has no value for any completion; name another reward")

    def share(value: Callable[[Group], float]) -> Interval:
        return share_interval([value(group) for group in groups], draws=samples)

    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < samples] + [samples]
    of_k = {k: [pass_at_k(len(each), sum(each), k) for each in passes if len(each) >= k] for k in sizes}
    tokens = [count for group in groups for count in group.tokens]
    cut = [text for group in groups for text, was_cut in zip(group.texts, group.truncated, strict=True) if was_cut]
    spent = [group.entropy for group in groups if group.entropy is not None]
    form = next((name for name in FORMATS if name in groups[0].rewards), None)
    return Facts(
        question=question,
        prompts=len(groups),
        left_out=tuple(bad.error for bad in left_out),
        pass_at_k={k: share_interval(values, draws=samples) for k, values in of_k.items()},
        rewards={name: _mean_reward(groups, name) for name in groups[0].rewards},
        equal_groups=share(lambda group: equal_chance(group.rewards[TOTAL], size)),
        equal_answers=share(lambda group: equal_chance(group.rewards[question.pass_by], size)),
        equal_groups_of_all=share(lambda group: equal_chance(group.rewards[TOTAL], samples)),
        truncated=share(lambda group: sum(group.truncated) / samples),
        truncated_after_answer=_mean([float("</answer>" in text) for text in cut]),
        format=None if form is None else share(lambda group: _mean([float(v == 1) for v in group.rewards[form]])),
        answer_only=_mean([value for group in groups for value in _answers_alone(group)]),
        form_asked=_mean([float(group.form_asked) for group in groups]),
        unique=_mean([len(set(group.texts)) for group in groups]),
        entropy=math.fsum(spent) / sum(tokens) if spent else None,
        completion_tokens=_mean(tokens),
        longest_completion=max(tokens),
        prompt_tokens=_mean([group.prompt_tokens for group in groups]),
        longest_prompt=max(group.prompt_tokens for group in groups),
        seconds={name: value / len(groups) for name, value in seconds.items()},
    )


def passed(group: Group, question: Question) -> list[bool]:
    """Whether each completion passes. Those without a value of ``pass_by`` are left out."""
    values = group.rewards[question.pass_by]
    return [value >= question.pass_at - SAME for value in values if value is not None]


def _mean_reward(groups: Sequence[Group], name: str) -> MeanInterval:
    known = [[value for value in group.rewards[name] if value is not None] for group in groups]
    return mean_interval([_mean(values) for values in known if values])


def _answers_alone(group: Group) -> list[float]:
    return [] if group.opened_think else FormatReward("answer_only")(list(group.texts))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))
