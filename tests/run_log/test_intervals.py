"""Intervals of means: the bootstrap over clusters, with draws redone one by one."""

import math

import numpy as np
import pytest

from qwenvl.run_log.intervals import RESAMPLES, clustered_interval

VALUES, CLIPS = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.25], ["a", "b", "a", "c", "d", "b", "d"]


def test_the_bootstrap_draws_whole_clusters():
    """Against records put together one by one, for the same draws of clusters."""
    of_clip = {clip: [v for v, own in zip(VALUES, CLIPS, strict=True) if own == clip] for clip in "abcd"}
    means = []
    for times in np.random.default_rng(7).multinomial(4, [0.25] * 4, RESAMPLES):
        drawn = [value for clip, count in zip("abcd", times, strict=True) for value in of_clip[clip] * count]
        means.append(sum(drawn) / len(drawn))
    found = clustered_interval(VALUES, CLIPS, seed=7)
    assert found[:3] == pytest.approx((sum(VALUES) / 7, *np.quantile(means, [0.025, 0.975])))
    assert found.n == 4 and clustered_interval(VALUES, CLIPS, seed=7) == found


def test_clusters_of_one_are_scipys_bootstrap():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=60)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20000, random_state=1)
    ours = clustered_interval(list(values), range(60))
    assert ours[1:3] == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert ours.mean == pytest.approx(values.mean())


def test_one_cluster_has_no_interval_and_nan_is_refused():
    mean, low, high, n = clustered_interval([0.0, 1.0], ["a", "a"])
    assert (mean, n) == (0.5, 1) and math.isnan(low) and math.isnan(high)
    assert math.isnan(clustered_interval([], []).mean)
    with pytest.raises(ValueError, match="NaN"):
        clustered_interval([math.nan], ["a"])
