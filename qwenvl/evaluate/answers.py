"""The completions of one prompt, and means over prompts with their 95 % intervals.

A mean over prompts is the mean of each prompt's own mean, so a prompt with many completions counts as much as one with
few. Prompts that share a clip depend on each other, so the intervals are drawn over clusters of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, TypeVar

from qwenvl.run_log.health import SAME_REWARD
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.run_log.log import LoggedCompletion
from qwenvl.types import TOTAL

PASSES = "passes"
Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution

Row = TypeVar("Row")
Scored = TypeVar("Scored", bound=LoggedCompletion)


@dataclass(frozen=True)
class Answers(Generic[Row]):
    """The completions of one prompt by one model.

    Attributes:
        rows: of an evaluation or of a run.
        prompt_tokens: vision tokens included.
        cluster: a key that correlated prompts share.
        scores: means over the completions, by reward, ``total`` and ``passes``. A reward that has a value for no
            completion is missing.
        passed: for each completion that has a value of the reward that decides, whether it passes.
    """

    rows: Sequence[Row]
    prompt_tokens: int
    cluster: str
    scores: dict[str, float]
    passed: list[bool]

    @classmethod
    def of(
        cls, rows: Sequence[Scored], prompt_tokens: int, cluster: str, pass_by: str, pass_at: float
    ) -> Answers[Scored]:
        """The answers to a prompt, with their scores.

        Args:
            rows: at least one completion.
            pass_by, pass_at: a completion passes where this reward is at least this value.
        """
        known: dict[str, list[float]] = {}  # by reward, the values of the completions that have one
        for name in (*rows[0].rewards, TOTAL):
            values = [reward_named(row, name) for row in rows]
            known[name] = [value for value in values if value is not None]
        # Rewards that are sums of floats may miss the threshold by a rounding error.
        passed = [value >= pass_at - SAME_REWARD for value in known[pass_by]]
        known[PASSES] = [float(each) for each in passed]
        scores = {name: sum(values) / len(values) for name, values in known.items() if values}
        return Answers(rows=rows, prompt_tokens=prompt_tokens, cluster=cluster, scores=scores, passed=passed)


def rows_of(prompts: Sequence[Answers[Row]]) -> list[Row]:
    """The completions of all prompts, prompt by prompt."""
    rows: list[Row] = []
    for each in prompts:
        rows += each.rows
    return rows


# ---- means over prompts


def mean_score(prompts: Sequence[Answers[Any]], name: str) -> Interval:
    """The mean of a reward, of ``total`` or of ``passes`` over the prompts that have a value."""
    valued = [each for each in prompts if name in each.scores]
    scores = [each.scores[name] for each in valued]
    clusters = [each.cluster for each in valued]
    if name == PASSES:
        return share_interval(scores, clusters)
    return clustered_interval(scores, clusters)


def pass_chances(prompts: Sequence[Answers[Any]], most: int) -> dict[int, Interval]:
    """pass@k by k up to ``most``, each over the prompts that have as many completions with a value."""
    found = {}
    for k in sample_counts(most):
        large_enough = [each for each in prompts if len(each.passed) >= k]
        chances = [pass_at_k(samples=len(each.passed), passed=sum(each.passed), k=k) for each in large_enough]
        found[k] = share_interval(chances, [each.cluster for each in large_enough])
    return found


def mean_over(
    prompts: Sequence[Answers[Row]],
    value_of: Callable[[Row], float | None],
    interval: Callable[[Sequence[float], Sequence[Hashable]], Interval] = clustered_interval,
) -> Interval:
    """The mean over prompts of the means over their completions.

    Args:
        value_of: the value of a completion. None: the completion does not count. A prompt without a completion that
            counts does not count either.
        interval: from the means of prompts and their clusters.
    """
    means = []
    clusters = []
    for answers in prompts:
        values = [value_of(row) for row in answers.rows]
        known = [value for value in values if value is not None]
        if known:
            means.append(sum(known) / len(known))
            clusters.append(answers.cluster)
    return interval(means, clusters)


def share_over(prompts: Sequence[Answers[Row]], holds: Callable[[Row], bool]) -> Interval:
    """The share of completions for which ``holds`` is true."""
    return mean_over(prompts, lambda row: float(holds(row)), share_interval)


def is_truncated(row: LoggedCompletion) -> bool:
    """True for a completion that was cut at the longest length."""
    return row.finish_reason == "length"


def reward_named(row: LoggedCompletion, name: str) -> float | None:
    """The value of a reward function, or the weighted sum for ``total``."""
    return row.total if name == TOTAL else row.rewards[name]


def differences(
    before: Mapping[Any, Answers[Any]], after: Mapping[Any, Answers[Any]], name: str
) -> dict[Any, float]:
    """The difference of a score, after minus before, for each key for which both sides have the score."""
    found = {}
    for key, earlier in before.items():
        if key not in after:
            continue
        later = after[key]
        if name in earlier.scores and name in later.scores:
            found[key] = later.scores[name] - earlier.scores[name]
    return found


# ---- formulas


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k completions passes, unbiased, from ``passed`` of ``samples`` that did.

    1 - C(samples - passed, k) / C(samples, k), k at most ``samples`` (arXiv:2107.03374, equation 1).

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def sample_counts(most: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to 128, and ``most``. Empty for 0."""
    if most == 0:
        return []
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most]


def equal_chance(rewards: Sequence[float | None], k: int) -> float:
    """The chance that k of a prompt's completions all have equal rewards, by all choices of k among those at hand.

    Such a group has no policy gradient. A completion without a reward (None) does not count in its group.

    Example:
        >>> equal_chance([1.0, 1.0, 1.0, 0.0], 2)  # 3 of the 6 pairs
        0.5
    """
    known = sorted(reward for reward in rewards if reward is not None)
    missing = len(rewards) - len(known)
    alike: list[list[float]] = []  # the rewards of each value
    for reward in known:
        if alike and reward - alike[-1][0] <= SAME_REWARD:
            alike[-1].append(reward)
        else:
            alike.append([reward])
    # A choice is equal if all its known rewards have one value, whatever number of missing ones it has. The choices of
    # missing rewards alone are in the count of every value, so they are taken off there and counted once.
    all_missing = math.comb(missing, k)
    equal = all_missing
    for same in alike:
        equal += math.comb(len(same) + missing, k) - all_missing
    return equal / math.comb(len(rewards), k)


def share_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """``clustered_interval`` of values from 0 to 1, with Wilson's (1927) ends where all are 0 or all are 1.

    The bootstrap's interval would be empty there.

    Example:
        >>> round(share_interval([0.0] * 20).high, 3)
        0.161
    """
    if set(values) not in ({0.0}, {1.0}):
        return clustered_interval(values, clusters)
    n = len(values if clusters is None else set(clusters))
    # Wilson's interval of a share p: (p + z/2 -+ sqrt(z p (1 - p) + z^2 / 4)) / (1 + z) with z = Z_975^2 / n.
    # With p = 0 it is 0 to z / (1 + z), and with p = 1 the mirror image.
    z = Z_975**2 / n
    if values[0] == 0:
        return Interval(mean=0.0, low=0.0, high=z / (1 + z), n=n)
    return Interval(mean=1.0, low=(1 + z / 2) / (1 + z) - z / 2 / (1 + z), high=1.0, n=n)


def as_json(value: Any) -> Any:
    """JSON values of dataclasses, mappings and sequences.

    An ``Interval`` becomes an object of its mean, its ends and ``n``, and NaN becomes None.
    """
    if is_dataclass(value):
        value = vars(value)
    elif isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
