"""The numbers of a probe: from the completions of each prompt to shares and means, and to lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from qwenvl.evaluate.estimates import (
    Interval,
    as_json,
    clustered_interval,
    equal_chance,
    pass_at_k,
    sample_counts,
    share_interval,
)
from qwenvl.health.rules import SAME_REWARD
from qwenvl.rewards import RewardError
from qwenvl.rewards.functions.shaping import format_reward
from qwenvl.train.step import Experience
from qwenvl.types import TOTAL, BadSample

FORMATS = ("format", "strict_format")
SHOWN = 3  # records that were left out


@dataclass(frozen=True)
class PromptGroup:
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
    rewards: dict[str, tuple[float | None, ...]]
    entropy: float | None = None
    opened_think: bool = False
    form_asked: bool = False


def groups_of(experience: Experience, entropies: Tensor | None = None) -> list[PromptGroup]:
    """The P groups of an experience.

    Args:
        entropies: N x T entropies of the tokens' distributions, in nats, 0 at padding.
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
            PromptGroup(
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


def numbers_of(
    question: dict[str, Any], groups: Sequence[PromptGroup], left_out: Sequence[BadSample], seconds: dict[str, float]
) -> dict[str, Any]:
    """The numbers of at least one group, as ``probe.json`` has them: docs/concepts.md explains each.

    Args:
        question: the first rows of the numbers. ``model`` and ``data``, ``samples`` and ``group_size`` (completions
            per prompt, here and in training), ``pass_by`` and ``pass_at`` (a completion passes where this reward is at
            least this value) and ``temperature``.
        seconds: of the whole probe, by activity.

    Raises:
        RewardError: the reward ``pass_by`` has a value for no completion.
    """
    samples, size, pass_by = question["samples"], question["group_size"], question["pass_by"]
    passes = [each for group in groups if (each := passed(group, pass_by, question["pass_at"]))]
    if not passes:
        raise RewardError(f"--pass_by {pass_by}: it has no value for any completion; name another reward")

    def share(value: Callable[[PromptGroup], float]) -> Interval:
        return share_interval([value(group) for group in groups])

    of_k = {
        k: [pass_at_k(len(each), sum(each), k) for each in passes if len(each) >= k] for k in sample_counts(samples)
    }
    known = {name: [_known(group, name) for group in groups] for name in groups[0].rewards}
    means = {name: [_mean(values) for values in own if values] for name, own in known.items()}
    tokens = [count for group in groups for count in group.tokens]
    cut = [text for group in groups for text, was_cut in zip(group.texts, group.truncated, strict=True) if was_cut]
    spent = [group.entropy for group in groups if group.entropy is not None]
    form = next((name for name in FORMATS if name in groups[0].rewards), None)
    closed = [list(group.texts) for group in groups if not group.opened_think]
    alone = [value for texts in closed for value in format_reward(texts, response_format="answer_only")]
    return as_json(
        {
            **question,
            "prompts": len(groups),
            "left_out": [bad.error for bad in left_out],
            "pass_at_k": {k: share_interval(values) for k, values in of_k.items()},
            "rewards": {name: clustered_interval(values) for name, values in means.items()},
            "equal_groups": share(lambda group: equal_chance(group.rewards[TOTAL], size)),
            "equal_answers": share(lambda group: equal_chance(group.rewards[pass_by], size)),
            "equal_groups_of_all": share(lambda group: equal_chance(group.rewards[TOTAL], samples)),
            "truncated": share(lambda group: sum(group.truncated) / samples),
            "truncated_after_answer": _mean([float("</answer>" in text) for text in cut]),
            "format": None
            if form is None
            else share(lambda group: _mean([float(v == 1) for v in group.rewards[form]])),
            "answer_only": _mean(alone),
            "form_asked": _mean([float(group.form_asked) for group in groups]),
            "unique": _mean([len(set(group.texts)) for group in groups]),
            "entropy": math.fsum(spent) / sum(tokens) if spent else None,
            "completion_tokens": _mean(tokens),
            "longest_completion": max(tokens),
            "prompt_tokens": _mean([group.prompt_tokens for group in groups]),
            "longest_prompt": max(group.prompt_tokens for group in groups),
            "seconds": {name: value / len(groups) for name, value in seconds.items()},
        }
    )


def passed(group: PromptGroup, pass_by: str, pass_at: float) -> list[bool]:
    """Whether each completion passes, without those for which ``pass_by`` has no value."""
    return [value >= pass_at - SAME_REWARD for value in _known(group, pass_by)]


def _known(group: PromptGroup, name: str) -> list[float]:
    return [value for value in group.rewards[name] if value is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def table(numbers: dict[str, Any]) -> str:
    """The numbers, the verdict and the next command as text.

    Args:
        numbers: the content of ``probe.json``.
    """
    left_out, rows = numbers["left_out"], list(_rows(numbers))
    width = max(len(name) for name, _ in rows) + 2
    lines = [
        f"{numbers['model']} on {numbers['data']}: {numbers['prompts']:,} prompts, {numbers['samples']} completions "
        f"each, at temperature {numbers['temperature']:g}",
        f"A completion passes where {numbers['pass_by']} is at least {numbers['pass_at']:g}. In brackets: the 95 % "
        "interval.",
        "",
        *(f"  {name:<{width}}{value}" for name, value in rows),
    ]
    if left_out:
        lines += ["", f"left out: {len(left_out):,} records", *(f"  {each}" for each in left_out[:SHOWN])]
        if len(left_out) > SHOWN:
            lines.append(f"  ... and {len(left_out) - SHOWN:,} more (--json lists all)")
    lines += ["", *(f"{finding['name']}: {finding['words']}." for finding in numbers["verdict"])]
    return "\n".join([*lines, "", "next:", f"  {numbers['next']}"])


def _rows(numbers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    size, samples = numbers["group_size"], numbers["samples"]
    for k, interval in numbers["pass_at_k"].items():
        yield f"pass@{k}", _shown(interval)
    yield f"groups of {size} without spread", _shown(numbers["equal_groups"])
    if samples != size:
        yield f"groups of {samples} without spread", _shown(numbers["equal_groups_of_all"])
    yield f"groups of {size} of equal {numbers['pass_by']}", _shown(numbers["equal_answers"])
    if numbers["format"] is not None:
        yield "in the asked form", _shown(numbers["format"])
    yield "truncated", _shown(numbers["truncated"])
    for name, reward in numbers["rewards"].items():
        yield f"reward {name}", _shown(reward)
    yield "different completions", f"{numbers['unique']:.1f} of {samples}"
    if numbers["entropy"] is not None:
        yield "entropy of a token", f"{numbers['entropy']:.3f} nats"
    yield "completion tokens", f"{numbers['completion_tokens']:,.0f}, the longest {numbers['longest_completion']:,}"
    yield "prompt tokens", f"{numbers['prompt_tokens']:,.0f}, the longest {numbers['longest_prompt']:,}"
    parts = ", ".join(f"{name} {value:.2f}" for name, value in numbers["seconds"].items() if name != "all")
    yield "seconds per prompt", f"{numbers['seconds']['all']:.2f} ({parts})"


def _shown(interval: dict[str, Any]) -> str:
    if interval["n"] == 0:
        return "not known: no prompt has as many values"
    if interval["low"] is None:
        return f"{interval['mean']:.3f}"
    return f"{interval['mean']:.3f}  [{interval['low']:.3f}, {interval['high']:.3f}]"
