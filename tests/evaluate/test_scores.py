"""Estimators and intervals against all choices counted one by one, and against scipy."""

import math
from itertools import combinations

import pytest

from qwenvl.evaluate.scores import equal_chance, pass_at_k, share_interval


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


@pytest.mark.parametrize(("ones", "n"), [(0, 5), (3, 5), (5, 5), (1, 200), (130, 200)])
def test_shares_of_yes_and_no_have_wilsons_interval(ones, n):
    stats = pytest.importorskip("scipy.stats")
    wilson = stats.binomtest(ones, n).proportion_ci(method="wilson")
    found = share_interval([1.0] * ones + [0.0] * (n - ones), draws=8)
    assert found[:3] == pytest.approx((ones / n, wilson.low, wilson.high), abs=1e-6)
    assert found.n == n


def test_prompts_that_differ_less_make_a_narrower_interval():
    # Mean 1/2, variance 1/16: a quarter of that of 0 and 1, so each of the 10 prompts counts as four.
    halves = share_interval([0.25, 0.75] * 5, draws=8)
    assert halves[:3] == pytest.approx(share_interval([0.0, 1.0] * 20)[:3])
    # Prompts that are all alike are worth no more than their completions.
    assert share_interval([0.5] * 10, draws=8)[1:3] == pytest.approx(share_interval([0.0, 1.0] * 40)[1:3])


def test_no_prompt_tells_nothing():
    mean, low, high, n = share_interval([])
    assert math.isnan(mean) and (low, high, n) == (0.0, 1.0, 0)
