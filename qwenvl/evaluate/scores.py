"""From values of completions to numbers with 95 % intervals. Pure functions of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import numpy as np

Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution
RESAMPLES = 5000  # of the bootstrap: its ends then move by a few hundredths of the interval from seed to seed
SAME = 1e-6  # rewards that differ by no more are equal, as in qwenvl.grpo.diagnostics


class Interval(NamedTuple):
    """A mean of ``n`` independent values and its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k completions passes, unbiased, from ``passed`` of ``samples`` that did.

    1 - C(samples - passed, k) / C(samples, k) (arXiv:2107.03374, equation 1).

    Raises:
        ValueError: k is above ``samples``.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def equal_chance(rewards: Sequence[float | None], k: int) -> float:
    """The chance that k of a prompt's completions all have equal rewards, by all choices of k among those at hand.

    Such a group has no policy gradient. A completion without a reward (None) does not count in its group.

    Raises:
        ValueError: k is above the number of completions.

    Example:
        >>> equal_chance([1.0, 1.0, 1.0, 0.0], 2)  # 3 of the 6 pairs
        0.5
    """
    if not 1 <= k <= len(rewards):
        raise ValueError(f"groups of {k} out of {len(rewards)} completions")
    known = sorted(reward for reward in rewards if reward is not None)
    missing = len(rewards) - len(known)
    alike: list[int] = []  # completions of each value
    for n, reward in enumerate(known):
        if n and reward - known[n - 1] <= SAME:
            alike[-1] += 1
        else:
            alike.append(1)
    without_any = math.comb(missing, k)
    equal = without_any + sum(math.comb(count + missing, k) - without_any for count in alike)
    return equal / math.comb(len(rewards), k)


def share_interval(values: Sequence[float], draws: int = 1) -> Interval:
    """The mean of values from 0 to 1, each that of one prompt, with Wilson's score interval.

    The number of prompts in Wilson's formula (1927) is the effective one, mean (1 - mean) / variance: that of prompts
    which are 0 or 1 and have the same uncertainty. It is the number itself where they are 0 or 1, and never more than
    all completions. Unlike mean +- 2 standard errors the interval is not empty where all values are equal.

    Args:
        draws: completions of each prompt.

    Example:
        >>> round(share_interval([0.0] * 20).high, 3)
        0.161
    """
    n = len(values)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    mean = min(1.0, max(0.0, math.fsum(values) / n))
    variance = math.fsum((value - mean) ** 2 for value in values) / n
    most = float(n * draws) if 0 < mean < 1 else float(n)
    effective = min(most, n * mean * (1 - mean) / variance) if variance > 0 else most
    z = Z_975**2 / effective
    centre = (mean + z / 2) / (1 + z)
    half = math.sqrt(z * mean * (1 - mean) + z * z / 4) / (1 + z)
    # At 0 and at 1 the formula has these ends exactly, but for rounding.
    return Interval(mean, 0.0 if mean == 0 else centre - half, 1.0 if mean == 1 else centre + half, n)


def clustered_interval(values: Sequence[float], clusters: Sequence[Hashable], seed: int = 0) -> Interval:
    """The mean of values that depend on each other within clusters, such as the questions about one clip.

    The interval is that of the percentile bootstrap over clusters: as many clusters as there are, drawn with
    replacement, each with all of its values (Davison and Hinkley, 1997, section 3.8). Taken one by one, values of a
    clip would count as independent, and the interval would be too narrow.

    Args:
        values: one for each record.
        clusters: what each record belongs to.
        seed: of the draws. The same seed gives the same interval.

    Returns:
        The mean over records. Its ends are NaN where there are fewer than two clusters. ``n`` counts clusters.

    Raises:
        ValueError: a value is NaN or infinite.

    Example:
        >>> clustered_interval([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"])  # all a, all b, or one of each
        Interval(mean=0.5, low=0.0, high=1.0, n=2)
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError("clustered_interval: a value is NaN or infinite")
    mean = math.fsum(values) / len(values) if values else math.nan
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    n = len(places)
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    sums, counts = np.zeros(n), np.zeros(n)
    for value, cluster in zip(values, clusters, strict=True):
        sums[places[cluster]] += value
        counts[places[cluster]] += 1
    times = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.quantile((times @ sums) / (times @ counts), [0.025, 0.975])
    return Interval(mean, float(low), float(high), n)


def paired_difference(
    before: Mapping[str, float], after: Mapping[str, float], cluster_of: Mapping[str, Hashable], seed: int = 0
) -> Interval:
    """How much better ``after`` is than ``before`` on the same records, with the interval of ``clustered_interval``.

    What makes a record easy or hard for both drops out of its difference: the interval is narrower than those of the
    two means let expect.

    Args:
        before, after: the value of each record, by its place.
        cluster_of: what each record belongs to.

    Raises:
        ValueError: the two are not about the same records.

    Example:
        >>> paired_difference({"a": 0.0, "b": 0.5}, {"a": 0.5, "b": 1.0}, {"a": 1, "b": 2})
        Interval(mean=0.5, low=0.5, high=0.5, n=2)
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ValueError(f"a paired difference needs the same records on both sides: {odd[0]} is on one of them alone")
    differences = [after[record] - before[record] for record in before]
    return clustered_interval(differences, [cluster_of[record] for record in before], seed)


def as_json(value: Any) -> Any:
    """Numbers as JSON takes them. An interval is an object of its mean, its ends and ``n``, and NaN is null."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
