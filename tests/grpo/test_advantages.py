import math
from statistics import mean, stdev

import pytest
import torch

from qwenvl.grpo.advantages import ESTIMATORS, group_advantages, needs_whole_step
from qwenvl.grpo.options import ESTIMATOR_ROWS

NAN = math.nan


@pytest.mark.parametrize(
    ("rewards", "size", "scale", "centred", "spread"),
    [
        # Group 1: mean 2, std sqrt(2/2) = 1. Group 2: mean 1, std sqrt(6/2).
        ([1, 2, 3, 0, 0, 3], 3, "group", [-1, 0, 1, -1, -1, 2], [1] * 3 + [math.sqrt(3)] * 3),
        # All four: mean 1.25, squares 0.0625 + 1.5625 + 3.0625 + 0.0625 = 4.75.
        ([1, 0, 3, 1], 2, "batch", [0.5, -0.5, 1, -1], [math.sqrt(4.75 / 3)] * 4),
        ([1, 0, 3, 1], 2, "none", [0.5, -0.5, 1, -1], None),
        # A completion without a reward counts nowhere. 1, .5 and .25: mean 7/12, squares 42/144.
        ([1, NAN, 0.5, 0.25], 4, "group", [5 / 12, 0, -1 / 12, -4 / 12], [math.sqrt(21) / 12] * 4),
        # Four rewards, 1 0 3 0: their mean is 1, squares 0 + 1 + 4 + 1.
        ([1, 0, NAN, 3, NAN, 0], 3, "batch", [0.5, -0.5, 0, 1.5, 0, -1.5], [math.sqrt(2)] * 6),
        ([], 4, "group", [], []),
    ],
)
def test_advantages_are_centred_by_group_and_divided_by_the_scale(rewards, size, scale, centred, spread):
    expected = torch.tensor(centred) if spread is None else torch.tensor(centred) / (torch.tensor(spread) + 1e-4)
    torch.testing.assert_close(group_advantages(torch.tensor(rewards), size, scale), expected, check_dtype=False)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_and_groups_of_at_most_one_give_exact_zeros(scale):
    for reward in (1.0, 0.7, 10.1, 1000.1):  # large ones too: their mean in float32 is off by up to 6e-5
        assert group_advantages(torch.full((14,), reward), 7, scale).tolist() == [0.0] * 14
    assert group_advantages(torch.full((3,), NAN), 3, scale).tolist() == [0.0] * 3
    got = group_advantages(torch.tensor([NAN, NAN, NAN, NAN, 5.0, NAN, 1.0, 2.0, 3.0]), 3, scale)
    assert got[:6].tolist() == [0.0] * 6 and got[6] < 0 == got[7] < got[8]


@pytest.mark.parametrize(
    ("rewards", "size", "more", "message"),
    [
        (torch.tensor([1.0, math.inf]), 2, {}, r"rows \[1\]"),
        (torch.tensor([1.0, -math.inf]), 2, {}, r"rows \[1\]"),
        (torch.ones(4), 1, {}, "grpo_sample_size"),
        (torch.ones(4), 3, {}, "whole groups of 3"),
        (torch.ones(4), 2, {"scale": "global"}, "scale"),
        (torch.ones(4), 2, {"estimator": "ppo"}, "expected one of grpo, rloo"),
        (torch.ones(4), 2, {"estimator": "gdpo"}, "K weights"),
        (torch.ones(4), 2, {"components": torch.ones(4, 3), "weights": [1.0, 1.0]}, "K weights"),
    ],
)
def test_infinite_rewards_broken_groups_and_unknown_names_are_refused(rewards, size, more, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, size, **more)


def test_the_options_name_the_estimators():
    assert tuple(ESTIMATOR_ROWS) == tuple(ESTIMATORS)


# Three groups of three, two functions with weights 2 and 0.5. A row without any value has no reward.
FIRST = [1.0, 0.0, 0.5, NAN, 2.0, 1.0, NAN, NAN, 0.25]
SECOND = [10.0, 30.0, 20.0, 0.0, 40.0, NAN, 10.0, NAN, 70.0]
WEIGHTS = [2.0, 0.5]


def weighted(*values):
    """The weighted sum of those that are there, or NaN."""
    own = [weight * value for weight, value in zip(WEIGHTS, values, strict=True) if not math.isnan(value)]
    return sum(own) if own else NAN


TOTALS = [*map(weighted, FIRST, SECOND)]


def groups(values):
    return [values[n : n + 3] for n in (0, 3, 6)]


def known(values):
    return [value for value in values if not math.isnan(value)]


def centred(values):
    return [value - mean(known(group)) for group in groups(values) for value in group]


def estimate(estimator, rows=slice(None)):
    components = torch.tensor([FIRST, SECOND], dtype=torch.float64).T[rows]
    totals = torch.tensor(TOTALS, dtype=torch.float64)[rows]
    return group_advantages(totals, 3, estimator=estimator, components=components, weights=WEIGHTS).tolist()


def without_nan(values):
    return pytest.approx([0.0 if math.isnan(value) else value for value in values], rel=1e-12, abs=1e-15)


def test_rloo_subtracts_the_mean_of_the_other_rewards():
    """Each reward minus the mean of the others that have one. The groups have 3, 3 and 2 of them."""
    expected = []
    for group in groups(TOTALS):
        for k, value in enumerate(group):
            expected.append(value - mean(known(group[:k] + group[k + 1 :])))
    assert estimate("rloo") == without_nan(expected)
    alone = group_advantages(torch.tensor([NAN, 5.0, NAN]), 3, estimator="rloo")
    assert alone.tolist() == [0.0, 0.0, 0.0]


def test_reinforce_plus_plus_divides_by_the_std_of_deviations():
    """The deviations from the groups' means, divided by their own standard deviation and not that of rewards."""
    deviations = centred(TOTALS)
    assert mean(known(deviations)) == pytest.approx(0, abs=1e-12)
    spread = stdev(known(deviations)) + 1e-4
    assert estimate("reinforce_plus_plus") == without_nan([value / spread for value in deviations])
    assert abs(spread - stdev(known(TOTALS))) > 1


def test_gdpo_normalises_each_reward_before_summing():
    """Each function normalised where it has values, weighed, summed, and normalised over the step."""
    parts = []
    for values in (FIRST, SECOND):
        spreads = [stdev(group) if len(group := known(each)) > 1 else 0.0 for each in groups(values)]
        parts.append([value / (spreads[n // 3] + 1e-4) for n, value in enumerate(centred(values))])
    sums = [*map(weighted, *parts)]
    assert mean(known(sums)) == pytest.approx(0, abs=1e-12)
    spread = stdev(known(sums)) + 1e-4
    assert estimate("gdpo") == without_nan([value / spread for value in sums])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_say_whether_they_need_the_whole_step(estimator):
    """An estimator that says it needs the whole step gives other numbers to a part of it. Others give the same."""
    whole, part = estimate(estimator)[:6], estimate(estimator, slice(0, 6))
    assert (whole != part) == needs_whole_step(estimator, "group")
    assert needs_whole_step("grpo", "batch") and not needs_whole_step("rloo", "batch")


@pytest.mark.parametrize("estimator", ["rloo", "reinforce_plus_plus", "gdpo"])
def test_a_group_of_equal_rewards_has_exact_zeros_in_every_step(estimator):
    totals = torch.tensor([0.7, 0.7, 0.7, 0.1, 0.9, 0.4])
    got = group_advantages(totals, 3, estimator=estimator, components=totals[:, None], weights=[1.0])
    assert got[:3].tolist() == [0.0] * 3 and got[3:].abs().min() > 0
