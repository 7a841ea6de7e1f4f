"""Estimators and intervals against all choices counted one by one, and against scipy."""

from itertools import combinations

import pytest

from qwenvl.evaluate.results import equal_chance, pass_at_k, share_interval
from qwenvl.grpo.diagnostics import clustered_interval


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
