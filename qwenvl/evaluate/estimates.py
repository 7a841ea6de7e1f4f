"""pass@k, the chance of equal rewards, and means with 95 % intervals, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution
RESAMPLES = 5000  # of the bootstrap: its ends then move by a few hundredths of the interval from seed to seed
SAME = 1e-6  # rewards that differ by no more are equal, as in qwenvl.grpo.diagnostics


class Interval(NamedTuple):
    """A mean over ``n`` independent clusters of values and its 95 % interval."""

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


def sample_counts(most: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to 128, and ``most``. Empty for 0."""
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most] * (most > 0)


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


def clustered_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None, seed: int = 0) -> Interval:
    """The mean of values that depend on each other within clusters, such as the questions about one clip.

    The interval is that of the percentile bootstrap over clusters: as many clusters as there are, drawn with
    replacement, each with all of its values (Davison and Hinkley, 1997, section 3.8). Drawing single values would treat
    those of a clip as independent, and the interval would be too narrow.

    Args:
        values: one for each record.
        clusters: the cluster of each record. None: each is its own.
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
    clusters = range(len(values)) if clusters is None else clusters
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


def share_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """``clustered_interval`` of values from 0 to 1, with Wilson's (1927) ends where all are 0 or all are 1.

    The bootstrap's interval would be empty there.

    Example:
        >>> round(share_interval([0.0] * 20).high, 3)
        0.161
    """
    interval = clustered_interval(values, clusters)
    if not interval.n or interval.mean not in (0.0, 1.0):
        return interval
    z = Z_975**2 / interval.n
    if interval.mean == 0:
        return interval._replace(low=0.0, high=z / (1 + z))
    return interval._replace(low=(1 + z / 2) / (1 + z) - z / 2 / (1 + z), high=1.0)


def as_json(value: Any) -> Any:
    """JSON values. An ``Interval`` becomes an object of its mean, its ends and ``n``, and NaN becomes None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
