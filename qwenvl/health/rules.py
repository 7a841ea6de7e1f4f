"""Is a run healthy? A table of rules over what it has logged, and what to do where one of them holds.

A rule is a pure function of the history. It counts groups and optimizer steps, not log entries. It compares a window at
the end of the history with what came before. A rule that needs more than there is says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.health.history import (
    WINDOW,
    History,
    first_of,
    having,
    is_format,
    last_of,
    last_two_of,
    mean_of,
)

EQUAL_SHARE = 0.9
CUT_OFF_SHARE = 0.25
ENTROPY_SHARE = 0.2
HIGH_KL = 0.5
FLAT_STEPS, FLAT_GROUPS = 100, 400
SOLVED = 0.9  # of the highest reward that any completion had
FALLING = 0.9  # of the window before
SMALLER_STEPS = 3  # what a learning rate that was too high is divided by


@dataclass(frozen=True)
class Rule:
    """Something that may go wrong.

    Attributes:
        name: for people.
        code: for scripts.
        judge: what was seen, in words, where it has gone wrong. None where it has not, or not yet.
        remedy: what to do.
        flags: what to change in the command of the run, given its settings (a ``GRPOConfig``). None where no
            flag helps, and the data is to be looked at.
        judge_at_end: the same for a run that has ended, and was too short for ``judge``.
    """

    name: str
    code: str
    judge: Callable[[History], str | None]
    remedy: str
    flags: Callable[[Any], list[str]] | None = None
    judge_at_end: Callable[[History], str | None] | None = None


def equal_rewards(history: History) -> str | None:
    """Over 90 % of the last 24 groups have equal rewards, in each entry since they do."""
    groups, last = 0, 0.0
    for entry in reversed(having(history, "group/zero_std_frac")):
        if entry.values["group/zero_std_frac"] <= EQUAL_SHARE:
            break
        last = last if groups else entry.values.get("reward/total", 0.0)
        groups += entry.groups
    return None if groups < WINDOW else _equal(f"the last {groups} groups", last)


def equal_rewards_at_end(history: History) -> str | None:
    """The same of all groups of a run that had fewer than 24."""
    entries = having(history, "group/zero_std_frac")
    if not entries or min(entry.values["group/zero_std_frac"] for entry in entries) <= EQUAL_SHARE:
        return None
    groups = sum(entry.groups for entry in entries)
    return _equal(f"the {groups} groups of this run", entries[-1].values.get("reward/total", 0.0))


def format_never_reached(history: History) -> str | None:
    """No completion of the run, of at least 48 groups, has a format reward above 0."""
    for name in dict.fromkeys(name for entry in history for name in entry.values if is_format(name)):
        entries = having(history, name)
        groups = sum(entry.groups for entry in entries)
        if groups >= 2 * WINDOW and max(entry.values[name] for entry in entries) <= 0:
            return f"{name} was never above 0 in the {groups} groups of this run: no completion has the format"
    return None


def cut_off(history: History) -> str | None:
    """A quarter of the completions of the last 24 groups are cut off at the limit, and it does not get better."""
    name = "completion/truncated_frac"
    before, last = last_two_of(having(history, name), "groups")
    now, then = mean_of(last, name, "groups"), mean_of(before, name, "groups")
    if not before or now < CUT_OFF_SHARE or now < FALLING * then:
        return None
    groups = sum(entry.groups for entry in last)
    return f"{now:.0%} of the completions of the last {groups} groups were cut off at --generation_max_length"


def entropy_collapsed(history: History) -> str | None:
    """The entropy of the last 24 groups is below a fifth of that of the first 24. The reward neither rises nor is full.

    It does not rise where it is no higher in the last quarter of the run than in the quarter before. It is full where
    it comes to nine tenths of the highest that any completion of the run had.
    """
    entries = [entry for entry in having(history, "entropy") if entry.groups]
    before, last = last_two_of(entries, "groups")
    first = first_of(entries, "groups")
    if not before or last[0].step <= first[-1].step:
        return None
    now, then = mean_of(last, "entropy", "groups"), mean_of(first, "entropy", "groups")
    if now >= ENTROPY_SHARE * then or _rises(history) or _solved(history, last):
        return None
    return (
        f"the entropy of the policy has collapsed, from {then:.3g} to {now:.3g} nats per token, and the reward does "
        "not rise: completions are all alike and nothing new is tried"
    )


def kl_grows(history: History) -> str | None:
    """The KL of the last 24 steps is above 0.5 and twice that of the 24 before, and the reward does not rise."""
    entries = having(history, "kl")
    before, last = last_two_of(entries, "steps")
    now, then = mean_of(last, "kl", "steps"), mean_of(before, "kl", "steps")
    if not before or now < HIGH_KL or now < 2 * then or _rises(history):
        return None
    return f"the KL of policy and reference grows, from {then:.3g} to {now:.3g} nats per token, and the reward does not"


def reward_flat(history: History) -> str | None:
    """After 100 steps and 400 groups the last quarter of the run has no higher reward than its first quarter."""
    entries = having(history, "reward/total")
    groups = sum(entry.groups for entry in entries)
    if sum(entry.steps for entry in history) < FLAT_STEPS or groups < FLAT_GROUPS:
        return None
    first, last = first_of(entries, "groups", groups // 4), last_of(entries, "groups", groups // 4)
    if last[0].step <= first[-1].step or _higher(last, first) or _solved(history, last) or equal_rewards(history):
        return None
    then, now = mean_of(first, "reward/total", "groups"), mean_of(last, "reward/total", "groups")
    steps = history[-1].step - history[0].step + history[0].steps
    return f"the reward has not risen in {steps} steps: {then:.3f} over their first quarter, {now:.3f} over their last"


def lower_rate(args: Any) -> list[str]:
    """A third of the learning rate."""
    return ["--learning_rate", f"{args.learning_rate / SMALLER_STEPS:.2g}"]


def more_room(args: Any) -> list[str]:
    """Completions of twice the length."""
    return ["--generation_max_length", str(2 * args.generation_max_length)]


RULES: tuple[Rule, ...] = (
    Rule(
        "equal rewards",
        "equal_rewards",
        equal_rewards,
        "Where no completion is ever right, teach some solutions first (qwenvl warmup), or take easier records or a "
        "reward with finer steps. Where all are right, take harder records. Where they are too alike, try a higher "
        "--generation_temperature or a larger --grpo_sample_size. --filter_groups replaces such groups by those of "
        "other prompts, where there are better ones",
        judge_at_end=equal_rewards_at_end,
    ),
    Rule(
        "format never reached",
        "format_never_reached",
        format_never_reached,
        "Ask for it in the prompt (--response_format), look at completions in rollouts/, or teach it first on some "
        "solutions (qwenvl warmup)",
    ),
    Rule(
        "cut off",
        "truncated",
        cut_off,
        "They rarely reach their answer. Raise --generation_max_length, or give a stop by --stop_strings",
        more_room,
    ),
    Rule(
        "KL grows",
        "kl_grows",
        kl_grows,
        "Lower --learning_rate or raise --grpo_beta, and go on from a checkpoint before it grew",
        lower_rate,
    ),
    Rule(
        "entropy collapsed",
        "entropy_collapsed",
        entropy_collapsed,
        "Lower --learning_rate, raise --generation_temperature or --grpo_beta, or reward entropy (--entropy_coef, "
        "--entropy_target), and go on from an earlier checkpoint",
        lower_rate,
    ),
    Rule(
        "reward flat",
        "reward_flat",
        reward_flat,
        "Look at completions with high and low rewards in rollouts/. Raise --learning_rate where kl is near 0, "
        "--grpo_sample_size where group/zero_std_frac is high, and see whether better completions get higher rewards",
    ),
)
"""What is warned of, once each. Where several hold, the first says most about what to do."""


def findings(history: History, told: set[str], ended: bool = False) -> Iterator[tuple[str, str]]:
    """Name and words of each rule that holds now, those in ``told`` apart.

    Example:
        >>> history = [Entry(3, 3, 24, {"group/zero_std_frac": 1.0, "reward/total": 0.0})]
        >>> [name for name, words in findings(history, told=set())]
        ['equal rewards']
    """
    for rule in RULES:
        judge = rule.judge_at_end if ended else rule.judge
        if rule.name not in told and judge is not None and (seen := judge(history)) is not None:
            yield rule.name, f"{seen}. {rule.remedy}"


def warned_of(warnings: Sequence[str]) -> Rule | None:
    """The first rule of the table that one of these warnings was given by."""
    return next((rule for rule in RULES if any(warning.endswith(rule.remedy) for warning in warnings)), None)


def _equal(groups: str, reward: float) -> str:
    return (
        f"over {EQUAL_SHARE:.0%} of {groups} had equal rewards (mean reward {reward:.3f}): their advantages are 0 and "
        "only the KL term acts"
    )


def _rises(history: History) -> bool:
    """Whether the last quarter of the run has a higher reward than the quarter before. True where it is not known."""
    entries = having(history, "reward/total")
    last = last_of(entries, "groups", sum(entry.groups for entry in entries) // 4)
    earlier = entries[: len(entries) - len(last)]
    before = last_of(earlier, "groups", sum(entry.groups for entry in last))
    return not before or _higher(last, before)


def _higher(after: History, before: History) -> bool:
    return mean_of(after, "reward/total", "groups") > mean_of(before, "reward/total", "groups")


def _solved(history: History, last: History) -> bool:
    """Whether the mean reward is near the highest that any completion had: there is nothing left to gain."""
    best = max((entry.values["reward/max"] for entry in having(history, "reward/max")), default=math.inf)
    return mean_of(last, "reward/total", "groups") >= best - (1 - SOLVED) * abs(best)
