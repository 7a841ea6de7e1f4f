import math

import pytest
import torch

from qwenvl.grpo.diagnostics import logprob_gap, mean_interval, reward_std, student_t_975, zero_std_fraction


def test_mean_interval_by_hand():
    # 1..5: mean 3, variance 2.5, standard error sqrt(0.5), t(4) = 2.7764.
    mean, half_width, n = mean_interval([1, 2, 3, 4, 5])
    assert (mean, n) == (3.0, 5)
    assert half_width == pytest.approx(2.7764 * math.sqrt(0.5))


def test_mean_interval_of_few_values():
    assert mean_interval([2.0])[::2] == (2.0, 1) and math.isnan(mean_interval([2.0]).half_width)
    assert math.isnan(mean_interval([]).mean)
    with pytest.raises(ValueError, match="NaN"):
        mean_interval([1.0, math.nan])


def test_student_t_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 10, 30, 31, 40, 127, 1000, 100_000):
        assert student_t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-4)


def test_zero_std_fraction():
    assert zero_std_fraction(torch.tensor([1.0, 1.0, 0.0, 1.0, 0.3, 0.3]), 2) == pytest.approx(2 / 3)
    assert zero_std_fraction(torch.empty(0), 2) == 0.0


def test_reward_std_by_hand():
    # Groups (0, 2) and (1, 1): stds sqrt(2) and 0.
    assert reward_std(torch.tensor([0.0, 2.0, 1.0, 1.0]), 2) == pytest.approx(math.sqrt(2) / 2)


def test_groups_are_told_without_completions_that_have_no_reward():
    # (0, nothing, 2) has a std of sqrt(2), (1, nothing, 1) of 0, one reward or none is no spread.
    none = math.nan
    rewards = torch.tensor([0.0, none, 2.0, 1.0, none, 1.0, none, 7.0, none, none, none, none])
    assert reward_std(rewards, 3) == pytest.approx(math.sqrt(2) / 4)
    assert zero_std_fraction(rewards, 3) == 0.75


def test_logprob_gap_looks_at_masked_tokens_only():
    sampler = torch.tensor([[-1.0, -2.0, 7.0]])
    trainer = torch.tensor([[-1.5, -2.0, math.nan]])
    mask = torch.tensor([[True, True, False]])
    assert logprob_gap(sampler, trainer, mask) == (0.5, 0.25)
    assert logprob_gap(sampler, trainer, ~mask) == (math.inf, math.inf)
    assert logprob_gap(sampler, trainer, torch.zeros_like(mask)) == (0.0, 0.0)
    assert logprob_gap(torch.tensor([[-math.inf]]), torch.tensor([[-math.inf]]), torch.tensor([[True]]))[0] == math.inf
