import math

import pytest
import torch

from qwenvl.grpo.diagnostics import equal_groups, logprob_gap, reward_std


def test_reward_std_is_the_mean_over_groups():
    # Groups (0, 2) and (1, 1): stds sqrt(2) and 0.
    assert reward_std(torch.tensor([0.0, 2.0, 1.0, 1.0]), 2) == pytest.approx(math.sqrt(2) / 2)


def test_measures_of_groups_leave_out_completions_without_a_reward():
    # (0, nothing, 2) has a std of sqrt(2), (1, nothing, 1) of 0, one reward or none is no spread.
    none = math.nan
    rewards = torch.tensor([0.0, none, 2.0, 1.0, none, 1.0, none, 7.0, none, none, none, none])
    assert reward_std(rewards, 3) == pytest.approx(math.sqrt(2) / 4)
    assert equal_groups(rewards, 3).tolist() == [False, True, True, True]


def test_logprob_gap_looks_at_masked_tokens_only():
    sampler = torch.tensor([[-1.0, -2.0, 7.0]])
    trainer = torch.tensor([[-1.5, -2.0, math.nan]])
    mask = torch.tensor([[True, True, False]])
    assert logprob_gap(sampler, trainer, mask) == (0.5, 0.25)
    assert logprob_gap(sampler, trainer, ~mask) == (math.inf, math.inf)
    assert logprob_gap(sampler, trainer, torch.zeros_like(mask)) == (0.0, 0.0)
    assert logprob_gap(torch.tensor([[-math.inf]]), torch.tensor([[-math.inf]]), torch.tensor([[True]]))[0] == math.inf
