"""Rules over the log of a run: faults, the thresholds for them, and remedies. Probe, report and log share these.

A rule is a pure function of the history. It counts groups and optimizer steps, not log entries, and compares the last
window of the history with earlier ones. A rule that needs a longer history finds nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

RARE_LOOKS = 0.02  # share of completions that look, below which the policy has stopped to look
SAME_REWARD = 1e-6  # rewards that differ by no more are equal
EQUAL_SHARE = 0.9  # of groups with equal rewards, above which training is mostly wasted
CUT_OFF_SHARE = 0.1  # of truncated completions, from which rewards measure the limit
ALL_CUT_GROUPS = 8  # consecutive groups with all completions truncated: no need for two windows
ENTROPY_SHARE = 0.2  # of the entropy of the first window, below which it has collapsed
HIGH_KL = 0.5  # nats per token of policy and reference, from which its growth is a fault
FLAT_STEPS = 100  # of a run, and the groups in them, from which its reward can be called flat
FLAT_GROUPS = 400
SOLVED = 0.9  # of the highest reward that any completion had
FALLING = 0.9  # of the window before


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards are equal: no policy gradient. So is a group with one reward or none.

    ``qwenvl.grpo.diagnostics.equal_groups`` is the same for tensors.
    """
    return not rewards or max(rewards) - min(rewards) <= SAME_REWARD


@dataclass(frozen=True)
class Finding:
    """A fault of a run or of a probe.

    Attributes:
        code: name for scripts; of a rule that of its function.
        message: the fault in a sentence.
        advice: the remedy, where ``message`` does not name it.
        flags: training flags that would help.
    """

    code: str
    message: str
    advice: str = ""
    flags: tuple[str, ...] = ()


def equal_rewards(history: History, ended: bool = False) -> str | None:
    """Over 90 % of the last 24 groups have equal rewards, in each log entry; at the end of a run over 90 % of all."""
    name = "group/zero_std_frac"
    entries = having(history, name)
    equal = _last_while(entries, lambda entry: entry.values[name] > EQUAL_SHARE)
    if not equal or "teacher/kl" in equal[-1].values:  # a teacher teaches on equal rewards too
        return None
    groups = sum(entry.groups for entry in equal)
    whole_run = ended and len(equal) == len(entries)
    if groups < WINDOW and not whole_run:
        return None
    reward = equal[-1].values.get("reward/total", 0.0)
    return (
        f"over {EQUAL_SHARE:.0%} of {_last(groups)} had equal rewards (mean reward {reward:.3f}): their "
        "advantages are 0 and only the KL term acts"
    )


def asks_for_form(reward: str) -> bool:
    """Whether a reward is about the format of a completion, by the words of its name. "information" has no such word.

    Example:
        >>> asks_for_form("reward/strict_format"), asks_for_form("reward/information")
        (True, False)
    """
    return "format" in re.split(r"[\W_]+", reward.casefold())


def format_never_reached(history: History, ended: bool = False) -> str | None:
    """No completion of the run, of at least 48 groups, has a format reward above 0."""
    names: dict[str, None] = {}
    for entry in history:
        names |= dict.fromkeys(entry.values)
    for name in names:
        # A second slash is that of a number beside the reward, such as reward/format/skipped.
        # A penalty is 0 where all is well.
        if not name.startswith("reward/") or not asks_for_form(name) or "penalty" in name or name.count("/") > 1:
            continue
        entries = having(history, name)
        groups = sum(entry.groups for entry in entries)
        if groups >= 2 * WINDOW and max(entry.values[name] for entry in entries) <= 0:
            return f"{name} was never above 0 in the {groups} groups of this run: no completion has the format"
    return None


def truncated(history: History, ended: bool = False) -> str | None:
    """A tenth of the completions of the last 24 groups are cut off, no fewer than before; or all of the last 8 groups.

    At the end of a run with fewer groups: all of them.
    """
    name = "completion/truncated_frac"
    entries = having(history, name)
    all_cut = _last_while(entries, lambda entry: entry.values[name] == 1)
    groups = sum(entry.groups for entry in all_cut)
    whole_run = bool(ended and entries) and len(all_cut) == len(entries)
    if groups >= ALL_CUT_GROUPS or whole_run:
        return f"all completions of {_last(groups)} were cut off at --generation_max_length"
    before, last = last_two_of(entries, "groups")
    if not before:
        return None
    now = mean_of(last, name, "groups")
    then = mean_of(before, name, "groups")
    if now < CUT_OFF_SHARE or now < FALLING * then:  # few, or clearly fewer than before
        return None
    groups = sum(entry.groups for entry in last)
    return f"{now:.0%} of the completions of {_last(groups)} were cut off at --generation_max_length"


def looks_stop(history: History, ended: bool = False) -> str | None:
    """Below 2 % of the completions of the last 24 groups looked, and of the 24 groups before.

    A call that is refused is no look.
    """
    name = "look/looked_frac"
    entries = having(history, name)
    before, last = last_two_of(entries, "groups")
    if not before:
        return None
    if mean_of(before, name, "groups") >= RARE_LOOKS or mean_of(last, name, "groups") >= RARE_LOOKS:
        return None
    both = before + last
    now = mean_of(both, name, "groups")
    calls = mean_of(both, "look/calls", "groups")
    groups = sum(entry.groups for entry in both)
    most = max(entry.values[name] for entry in entries)
    fell = f", where {most:.0%} did in an earlier step" if most >= RARE_LOOKS else ""
    refused = f"; they call tools {calls:.1f} times each, and are refused" if calls >= RARE_LOOKS else ""
    return f"{now:.0%} of the completions of {_last(groups)} looked at the video again{fell}{refused}"


def entropy_collapsed(history: History, ended: bool = False) -> str | None:
    """The entropy of the last 24 groups is below a fifth of the first 24, and the reward neither rises nor is full.

    It rises if the last quarter of the run has more than the quarter before. It is full at nine tenths of the highest
    reward of any completion.
    """
    entries = [entry for entry in having(history, "entropy") if entry.groups]
    before, last = last_two_of(entries, "groups")
    first = first_of(entries, "groups")
    if not before or last[0].step <= first[-1].step:  # the first window and the last one overlap
        return None
    now = mean_of(last, "entropy", "groups")
    then = mean_of(first, "entropy", "groups")
    if now >= ENTROPY_SHARE * then or _rises(history) or _solved(history, last):
        return None
    return (
        f"the entropy of the policy has collapsed, from {then:.3g} to {now:.3g} nats per token, and the reward does "
        "not rise: completions are all alike and nothing new is tried"
    )


def kl_grows(history: History, ended: bool = False) -> str | None:
    """The KL of the last 24 steps is above 0.5 and twice that of the 24 before, and the reward does not rise."""
    entries = having(history, "kl")
    before, last = last_two_of(entries, "steps")
    now = mean_of(last, "kl", "steps")
    then = mean_of(before, "kl", "steps")
    if not before or now < HIGH_KL or now < 2 * then or _rises(history):
        return None
    return f"the KL of policy and reference grows, from {then:.3g} to {now:.3g} nats per token, and the reward does not"


def reward_flat(history: History, ended: bool = False) -> str | None:
    """After 100 steps and 400 groups the last quarter of the run has no higher reward than its first quarter."""
    entries = having(history, "reward/total")
    groups = sum(entry.groups for entry in entries)
    if sum(entry.steps for entry in history) < FLAT_STEPS or groups < FLAT_GROUPS:
        return None
    first = first_of(entries, "groups", groups // 4)
    last = last_of(entries, "groups", groups // 4)
    if last[0].step <= first[-1].step or _higher(last, first):
        return None
    if _solved(history, last) or equal_rewards(history):  # nothing is left to gain, or another rule says why
        return None
    then = mean_of(first, "reward/total", "groups")
    now = mean_of(last, "reward/total", "groups")
    steps = history[-1].step - history[0].step + history[0].steps
    return f"the reward has not risen in {steps} steps: {then:.3f} over their first quarter, {now:.3f} over their last"


RULES: dict[Callable[[History, bool], str | None], str] = {
    equal_rewards: (
        "Where no completion is ever right, teach some solutions first (qwenvl warmup), or take easier records or a "
        "reward with finer steps. Where all are right, take harder records. Where they are too alike, try a higher "
        "--generation_temperature or a larger --grpo_sample_size. --filter_groups replaces such groups by those of "
        "other prompts, where there are better ones"
    ),
    format_never_reached: (
        "Ask for it in the prompt (--response_format), look at completions in rollouts/, or teach it first on some "
        "solutions (qwenvl warmup)"
    ),
    truncated: "They rarely reach their answer. Raise --generation_max_length, or give a stop by --stop_strings",
    looks_stop: (
        "Where the overview shows enough, looking brings nothing (see qwenvl probe --tools look). Show fewer frames "
        "(--frame_counts 4,8), reward looks that lead to a right answer (looked_and_right), and teach the form of a "
        "call on records with evidence (qwenvl warmup --tools look)"
    ),
    kl_grows: "Lower --learning_rate or raise --grpo_beta, and go on from a checkpoint before it grew",
    entropy_collapsed: (
        "Lower --learning_rate, raise --generation_temperature or --grpo_beta, or reward entropy (--entropy_coef, "
        "--entropy_target), and go on from an earlier checkpoint"
    ),
    reward_flat: (
        "Look at completions with high and low rewards in rollouts/. Raise --learning_rate where kl is near 0, "
        "--grpo_sample_size where group/zero_std_frac is high, and see whether better completions get higher rewards"
    ),
}
"""Functions from the history, and whether the run has ended and is judged as a whole, to the fault in words, or to None
without one; with the remedy. Each is warned of once. Where several hold, the remedy of the first helps most."""


def findings(history: History, ended: bool = False) -> Iterator[Finding]:
    """The faults at the end of the history, in the order of ``RULES``.

    Args:
        ended: the run has ended, so a short one is judged as a whole.

    Example:
        >>> history = [LogEntry(3, 3, 24, {"group/zero_std_frac": 1.0, "reward/total": 0.0})]
        >>> [finding.code for finding in findings(history)]
        ['equal_rewards']
    """
    for rule, remedy in RULES.items():
        fault = rule(history, ended)
        if fault is not None:
            yield Finding(code=rule.__name__, message=fault, advice=remedy)


def _last(groups: int) -> str:
    """The last groups in words."""
    return "the last group" if groups == 1 else f"the last {groups} groups"


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


WINDOW = 24
"""Groups, or optimizer steps for metrics of a step, that are judged together."""


@dataclass(frozen=True)
class LogEntry:
    """One entry of the log.

    Attributes:
        step: its last optimizer step.
        steps: the number of its optimizer steps.
        groups: sampled in these steps, over all processes.
        values: means over these, by metric.
    """

    step: int
    steps: int
    groups: int
    values: Mapping[str, float]


History = Sequence[LogEntry]


def history_of(rows: Sequence[Mapping[str, float]], prompts: int, iterations: int = 1) -> list[LogEntry]:
    """The entries of lines of ``metrics.jsonl`` of optimizer steps.

    Args:
        prompts: of a step that samples, over all processes, for rows without ``group/count``. A step has fewer where
            the data set is smaller.
        iterations: steps on the same completions.

    Example:
        >>> [entry.groups for entry in history_of([{"step": 2, "kl": 0.1}, {"step": 3, "kl": 0.1}], prompts=4)]
        [8, 4]
    """
    entries = []
    before = 0
    for row in rows:
        step = int(row["step"])
        # Of ``iterations`` steps on the same completions the first one samples.
        sampled = sum(each % iterations == 0 for each in range(before, step))
        groups = int(row.get("group/count", sampled * prompts))
        entries.append(LogEntry(step=step, steps=step - before, groups=groups, values=row))
        before = step
    return entries


def _last_while(entries: History, holds: Callable[[LogEntry], bool]) -> list[LogEntry]:
    """The entries at the end for which ``holds`` is true without a gap."""
    found = list(takewhile(holds, reversed(entries)))
    return found[::-1]


def having(history: History, name: str) -> list[LogEntry]:
    """The entries that have a finite number of this name."""
    return [entry for entry in history if math.isfinite(entry.values.get(name, math.nan))]


def last_of(entries: History, unit: str, enough: int = WINDOW) -> list[LogEntry]:
    """The last entries with ``enough`` groups or steps together, all entries where there are fewer."""
    found: list[LogEntry] = []
    so_far = 0
    for entry in reversed(entries):
        found.append(entry)
        so_far += getattr(entry, unit)
        if so_far >= enough:
            break
    return found[::-1]


def first_of(entries: History, unit: str, enough: int = WINDOW) -> list[LogEntry]:
    """The first entries with ``enough`` groups or steps together, all entries where there are fewer."""
    return last_of(entries[::-1], unit, enough)[::-1]


def last_two_of(entries: History, unit: str) -> tuple[list[LogEntry], list[LogEntry]]:
    """The window before the last one, and the last one. Both are empty where the history is too short for two."""
    last = last_of(entries, unit)
    before = last_of(entries[: len(entries) - len(last)], unit)
    enough = sum(getattr(entry, unit) for entry in before) >= WINDOW
    return (before, last) if enough else ([], [])


def mean_of(entries: History, name: str, unit: str) -> float:
    """The mean weighted by groups or steps. 0 where no entry has the metric."""
    with_value = having(entries, name)
    weighted = sum(getattr(entry, unit) * entry.values[name] for entry in with_value)
    return weighted / max(1, sum(getattr(entry, unit) for entry in with_value))
