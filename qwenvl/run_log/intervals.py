"""Means of values with their intervals, without torch: for reports, and for all that evaluates."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

Key = TypeVar("Key")
RESAMPLES = 5000  # of the bootstrap: its ends then move by a few hundredths of the interval from seed to seed


class Interval(NamedTuple):
    """A mean over ``n`` independent clusters of values and its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


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
    sums = np.zeros(n)  # of the values of each cluster
    counts = np.zeros(n)
    for value, cluster in zip(values, clusters, strict=True):
        sums[places[cluster]] += value
        counts[places[cluster]] += 1
    # RESAMPLES x n: how often each cluster is drawn.
    times = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.quantile((times @ sums) / (times @ counts), [0.025, 0.975])
    return Interval(mean, float(low), float(high), n)


def clusters_by(media: Mapping[Key, Sequence[str]]) -> dict[Key, str]:
    """The cluster of each record, given its clips and images: records that share one, also through others, are in one.

    Example:
        >>> clusters_by({1: ["a"], 2: ["b", "c"], 3: ["c"], 4: ["a"]})
        {1: 'a', 2: 'c', 3: 'c', 4: 'a'}
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for own in media.values():
        for other in own[1:]:
            parent[root(other)] = root(own[0])
    return {key: root(own[0]) for key, own in media.items()}
