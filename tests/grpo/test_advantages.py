import math

import pytest
import torch

from qwenvl.grpo.advantages import group_advantages


def test_group_scale_by_hand():
    # Group 1: mean 2, deviations -1 0 1, std sqrt(2/2) = 1. Group 2: mean 1, deviations -1 -1 2, std sqrt(6/2).
    got = group_advantages(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 3.0]), group_size=3)
    first, second = 1 / 1.0001, 1 / (math.sqrt(3) + 1e-4)
    torch.testing.assert_close(got, torch.tensor([-first, 0.0, first, -second, -second, 2 * second]))


def test_batch_scale_by_hand():
    # All four: mean 1.25, squares 0.0625 + 1.5625 + 3.0625 + 0.0625 = 4.75, std sqrt(4.75 / 3).
    got = group_advantages(torch.tensor([1.0, 0.0, 3.0, 1.0]), group_size=2, scale="batch")
    std = math.sqrt(4.75 / 3) + 1e-4
    torch.testing.assert_close(got, torch.tensor([0.5, -0.5, 1.0, -1.0]) / std)


def test_no_scale_only_centres():
    got = group_advantages(torch.tensor([1, 0, 3, 1]), group_size=2, scale="none")
    assert got.tolist() == [0.5, -0.5, 1.0, -1.0]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exact_zeros(scale):
    for reward in (1.0, 0.7, 10.1, 1000.1):  # large ones too: their mean in float32 is off by up to 6e-5
        assert group_advantages(torch.full((14,), reward), 7, scale).tolist() == [0.0] * 14


def test_groups_do_not_see_each_other():
    left = group_advantages(torch.tensor([1.0, 0.0, 5.0, 6.0]), 2)
    right = group_advantages(torch.tensor([1.0, 0.0, -500.0, 60.0]), 2)
    assert left[:2].tolist() == right[:2].tolist()


def test_no_rows():
    assert group_advantages(torch.empty(0), 4).shape == (0,)


def test_a_completion_without_a_reward_counts_nowhere():
    # 1, .5 and .25: mean 7/12, deviations 5/12 -1/12 -4/12, squares 42/144, std sqrt(21/144).
    rewards = torch.tensor([1.0, math.nan, 0.5, 0.25])
    expected = torch.tensor([5.0, 0.0, -1.0, -4.0]) / 12 / (math.sqrt(21) / 12 + 1e-4)  # 1.091, 0, -.218, -.873
    torch.testing.assert_close(group_advantages(rewards, 4), expected)
    alone = group_advantages(torch.tensor([1.0, 0.5, 0.25]), 3)
    assert group_advantages(rewards, 4)[[0, 2, 3]].tolist() == alone.tolist()


def test_a_completion_without_a_reward_is_no_part_of_the_batch():
    # Four rewards, 1 0 3 0: their mean is 1, squares 0 + 1 + 4 + 1, std sqrt(2). Deviations: -+.5 and -+1.5.
    got = group_advantages(torch.tensor([1.0, 0.0, math.nan, 3.0, math.nan, 0.0]), 3, scale="batch")
    expected = torch.tensor([0.5, -0.5, 0.0, 1.5, 0.0, -1.5]) / (math.sqrt(2) + 1e-4)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_of_at_most_one_reward_has_no_advantages(scale):
    nothing = [math.nan] * 3
    assert group_advantages(torch.tensor(nothing), 3, scale).tolist() == [0.0] * 3
    got = group_advantages(torch.tensor([*nothing, math.nan, 5.0, math.nan, 1.0, 2.0, 3.0]), 3, scale)
    assert got[:6].tolist() == [0.0] * 6 and got[6] < 0 == got[7] < got[8]


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinite_rewards_are_refused(bad):
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        group_advantages(torch.tensor([1.0, bad]), 2)


def test_refusals_name_the_cause():
    with pytest.raises(ValueError, match="grpo_sample_size"):
        group_advantages(torch.ones(4), 1)
    with pytest.raises(ValueError, match="whole groups of 3"):
        group_advantages(torch.ones(4), 3)
    with pytest.raises(ValueError, match="scale"):
        group_advantages(torch.ones(4), 2, "global")
