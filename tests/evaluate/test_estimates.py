"""Estimators and intervals against all choices counted one by one, and against scipy."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from qwenvl.evaluate.estimates import (
    RESAMPLES,
    clustered_interval,
    equal_chance,
    pass_at_k,
    share_interval,
)


def test_pass_at_k_by_hand():
    # 1 of 4 passes: 3 of the 6 pairs hold it, and each choice of 4.
    assert [pass_at_k(4, 1, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert [pass_at_k(4, passed, 2) for passed in (0, 3, 4)] == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="pass@5 of 4"):
        pass_at_k(4, 1, 5)


@pytest.mark.parametrize("samples", [1, 5, 8])
def test_pass_at_k_counts_all_choices(samples):
    for passed in range(samples + 1):
        passes = [n < passed for n in range(samples)]
        for k in range(1, samples + 1):
            choices = list(combinations(passes, k))
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@pytest.mark.parametrize(
    "rewards",
    [
        [1.0, 1.0, 0.0, 0.3, 0.3, 0.3],
        [0.5] * 6,
        [None, 1.0, 1.0, 0.0, None, 0.2],
        [None] * 6,
        [0.1 + 0.2, 0.3, 0.3 + 1e-9, 0.4, None, 0.4],
    ],
)
def test_equal_chance_counts_all_choices(rewards):
    for k in range(1, 7):
        choices = list(combinations(rewards, k))
        known = [[reward for reward in choice if reward is not None] for choice in choices]
        equal = sum(not each or max(each) - min(each) <= 1e-6 for each in known)
        assert equal_chance(rewards, k) == pytest.approx(equal / len(choices), abs=1e-12)


def test_equal_chance_of_more_than_there_are():
    with pytest.raises(ValueError, match="groups of 3 out of 2"):
        equal_chance([1.0, 0.0], 3)


@pytest.mark.parametrize("n", [5, 200])
def test_shares_that_are_0_or_1_everywhere_have_wilsons_interval(n):
    stats = pytest.importorskip("scipy.stats")
    for value in (0, 1):
        wilson = stats.binomtest(value * n, n).proportion_ci(method="wilson")
        found = share_interval([float(value)] * n)
        assert found[:3] == pytest.approx((value, wilson.low, wilson.high), abs=1e-6) and found.n == n
    assert share_interval([0.0, 1.0] * n) == clustered_interval([0.0, 1.0] * n)


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


def test_the_ends_are_those_of_all_samples_there_are():
    """Six clusters make 6^6 samples, all equally likely: 2.5 % of them lie beyond each end."""
    sums, counts = np.array([1.0, 0.0, 3.0, 1.0, 2.0, 0.5]), np.array([1, 2, 3, 2, 2, 1])
    every = np.array(list(product(range(6), repeat=6)))
    means = sums[every].sum(1) / counts[every].sum(1)
    values = [total / count for total, count in zip(sums, counts, strict=True) for _ in range(count)]
    clusters = [clip for clip, count in enumerate(counts) for _ in range(count)]
    found = clustered_interval(values, clusters)
    assert found[1:3] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


def test_clusters_of_one_are_scipys_bootstrap():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=60)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20000, random_state=1)
    ours = clustered_interval(list(values), range(60))
    assert ours[1:3] == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert ours.mean == pytest.approx(values.mean())


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Ten questions about each of 40 clips, a clip being easy or hard as a whole. Without clusters it is far off."""
    draw, held, held_without = np.random.default_rng(3), 0, 0
    for _ in range(100):
        values = draw.beta(1, 1, size=40).repeat(10) + draw.normal(size=400) * 0.1
        clustered = clustered_interval(list(values), np.arange(40).repeat(10).tolist())
        held += clustered.low <= 0.5 <= clustered.high
        alone = values.std() / 20 * 1.96
        held_without += abs(values.mean() - 0.5) <= alone
    assert 90 <= held <= 98
    assert held_without < 60


def test_few_clusters_and_wrong_values():
    mean, low, high, n = clustered_interval([0.0, 1.0], ["a", "a"])
    assert (mean, n) == (0.5, 1) and math.isnan(low) and math.isnan(high)
    assert math.isnan(clustered_interval([], []).mean)
    with pytest.raises(ValueError, match="NaN"):
        clustered_interval([math.nan], ["a"])
