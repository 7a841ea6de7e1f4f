"""The additions to any objective, weights of its policy term and the entropy bonus, by hand in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from qwenvl.grpo.loss import LOSSES, StepCounts, objective_of
from qwenvl.grpo.options import CORRECTION_ROWS, ObjectiveOptions
from qwenvl.grpo.surrogates import CORRECTIONS, Weighting, entropy_floor, off_policy
from tests.grpo.by_hand import ADVANTAGES, COUNTS, LENGTHS, Case, check, random_case, settled

ROWS = ["grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "reward_weighted", "bnpo"]


@pytest.fixture
def case() -> Case:
    """Random log-probs, advantages and masks of a step."""
    return random_case()


@pytest.fixture
def sampler(case) -> torch.Tensor:
    """Log-probs of an engine with weights of its own: its ratios lie on all sides of the bounds 0.8 and 1.25."""
    generator = torch.Generator().manual_seed(11)
    return case.old + 0.3 * torch.randn(6, 6, generator=generator, dtype=torch.float64)


def test_the_options_name_the_corrections():
    assert tuple(CORRECTION_ROWS) == ("none", *CORRECTIONS)


@pytest.mark.parametrize("kind", CORRECTIONS)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("lowest", [None, 0.8])
def test_each_correction_weighs_tokens_by_its_bounded_ratio(case, sampler, kind, row, lowest):
    ratios, weights = [], []
    for n, length in enumerate(LENGTHS):
        logs = [(case.old[n, t] - sampler[n, t]).item() for t in range(length)]
        if kind.startswith("sequence"):
            logs = [sum(logs)] * length
        ratios.append([math.exp(value) for value in logs])
        for w in ratios[-1]:
            assert abs(w - 1.25) > 1e-6
        low = lowest or 0.0
        if kind.endswith("truncate"):
            weights.append([min(max(w, low), 1.25) for w in ratios[-1]])
        else:
            weights.append([w if low <= w <= 1.25 else 0.0 for w in ratios[-1]])
    flat = [pair for row in zip(ratios, weights, strict=True) for pair in zip(*row, strict=True)]
    limited = sum(w != bounded for w, bounded in flat)
    assert 0 < limited < len(flat)
    objective = replace(settled(LOSSES[row]), weighting=Weighting(kind, lowest, 1.25))
    inputs = replace(case.inputs(), sampler_logprobs=sampler.masked_fill(~case.mask, math.nan))
    logged = {"sampler/ratio_mean": sum(w for w, _ in flat) / len(flat), "sampler/limited_frac": limited / len(flat)}
    check(objective, case, inputs, weights, **logged)


def test_a_sampler_that_is_the_policy_changes_nothing(case):
    for kind in CORRECTIONS:
        plain, corrected = (replace(settled(LOSSES["grpo"]), weighting=Weighting(name)) for name in ("none", kind))
        inputs = replace(case.inputs(), sampler_logprobs=case.old)
        assert corrected(inputs, COUNTS).loss.item() == plain(inputs, COUNTS).loss.item()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("own_weights", [False, True])
def test_completions_that_the_policy_has_left_are_dropped_where_they_are_bad(case, sampler, row, own_weights):
    sampled, threshold = sampler if own_weights else case.old, 0.05
    # All have become less likely by more than the threshold but the second, and a good one may.
    case.logprobs.data[[0, 1, 3, 4, 5]] -= 0.5
    case.logprobs.data[1] += 1.5
    weights, dropped = [], 0
    for n, (length, a) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        fallen = [(sampled[n, t] - case.logprobs[n, t]).item() for t in range(length)]
        gone = a < 0 and sum(fallen) / length > threshold
        weights.append([0.0 if gone else 1.0] * length)
        dropped += length * gone
    assert weights[1] == [1.0] * 2 and weights[4] == [0.0] * 5 and weights[0] == [1.0] * 6
    inputs = replace(case.inputs(), sampler_logprobs=sampler if own_weights else None)
    objective = replace(settled(LOSSES[row]), weighting=Weighting(off_policy_threshold=threshold))
    check(objective, case, inputs, weights, **{"off_policy/dropped_frac": dropped / sum(LENGTHS)})


def test_of_the_advantages_of_tokens_the_negative_ones_are_dropped():
    fallen = torch.tensor([[1.0, 0.2, 0.3], [0.1, 0.1, 0.1]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    by_token = torch.tensor([[-1.0, 0.5, -1.0], [-1.0, -1.0, 1.0]])
    dropped = off_policy(fallen, by_token, mask, 0.4)  # means of 0.5 and 0.1
    assert dropped.tolist() == [[True, False, True], [False] * 3]
    of_completions = off_policy(fallen, torch.tensor([[-1.0], [-1.0]]), mask, 0.4)
    assert of_completions.tolist() == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("row", ROWS)
def test_the_policy_term_takes_the_tokens_of_highest_entropy(case, row):
    entropies = torch.rand(6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ranked = sorted((entropies[n, t].item() for n, length in enumerate(LENGTHS) for t in range(length)), reverse=True)
    lowest = ranked[5]  # six of twenty tokens
    assert entropy_floor(entropies[case.mask], 0.3) == lowest
    weights = [[float(entropies[n, t] >= lowest) for t in range(length)] for n, length in enumerate(LENGTHS)]
    inputs = replace(case.inputs(), policy_mask=case.mask & (entropies >= lowest))
    check(settled(LOSSES[row]), case, inputs, weights, **{"top_entropy/frac": 6 / 20})


def test_the_entropy_floor_keeps_the_share_of_highest_values():
    values = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    for share, floor in ((1.0, 0.1), (0.75, 0.2), (0.74, 0.3), (0.5, 0.3), (0.25, 0.4), (0.2, 0.5), (0.01, 0.5)):
        assert entropy_floor(values, share) == floor
    assert entropy_floor(torch.tensor([2.0]), 0.2) == 2.0
    assert entropy_floor(torch.zeros(0), 0.2) == 0.0
    assert entropy_floor(torch.tensor([1.0, 1.0, 1.0, 3.0]), 0.5) == 1.0  # equal ones are taken together


@pytest.mark.parametrize("row", LOSSES)
def test_the_entropy_bonus_is_a_mean_over_the_tokens_of_the_step(case, row):
    """Under every average, with a gradient of its own, and exact however the step is split."""
    plain, coefficient = settled(LOSSES[row]), 0.2
    entropies = torch.rand(6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mean = sum(entropies[n, :length].sum().item() for n, length in enumerate(LENGTHS)) / sum(LENGTHS)
    entropies = entropies.masked_fill(~case.mask, math.inf).requires_grad_()
    inputs = replace(case.inputs(), entropies=entropies)
    without = plain(inputs, COUNTS)
    out = replace(plain, entropy_coef=coefficient)(inputs, COUNTS)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(without.loss.item() - coefficient * mean, rel=1e-10)
    torch.testing.assert_close(entropies.grad, -coefficient / sum(LENGTHS) * case.mask.double(), rtol=1e-10, atol=0)
    assert out.metrics["entropy"] == without.metrics["entropy"] == pytest.approx(mean, rel=1e-10)
    assert out.metrics["loss/entropy"] == pytest.approx(-coefficient * mean, rel=1e-10)
    assert out.metrics["entropy_coef"] == coefficient and "entropy_coef" not in without.metrics
    parts = [
        replace(plain, entropy_coef=coefficient)(replace(case.inputs(rows), entropies=entropies[rows]), COUNTS)
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert sum(part.metrics["loss/entropy"] for part in parts) == pytest.approx(-coefficient * mean, rel=1e-10)


def test_a_bonus_of_0_in_a_step_is_logged_and_gives_no_gradient(case):
    entropies = torch.ones(6, 6, dtype=torch.float64, requires_grad=True)
    objective = replace(settled(LOSSES["grpo"]), entropy_coef=0.0, entropy_coef_moves=True)
    out = objective(replace(case.inputs(), entropies=entropies), COUNTS)
    out.loss.backward()
    assert out.metrics["entropy_coef"] == 0.0 and entropies.grad is None


def test_all_terms_are_zero_where_no_token_counts(case, sampler):
    nothing = replace(
        case.inputs(),
        mask=torch.zeros(6, 6, dtype=torch.bool),
        sampler_logprobs=sampler * math.nan,
        entropies=torch.full((6, 6), math.nan, dtype=torch.float64),
        policy_mask=torch.zeros(6, 6, dtype=torch.bool),
    )
    for row in LOSSES.values():
        objective = replace(settled(row), weighting=Weighting("sequence_mask", 0.8, 1.25, 0.1), entropy_coef=0.1)
        out = objective(nothing, StepCounts(6, 0))
        out.loss.backward()
        assert out.loss.item() == 0.0 and set(out.metrics.values()) <= {0.0, 0.1}
        assert case.logprobs.grad.eq(0).all()


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_a_log_prob_of_the_engine_that_is_no_number_is_not_hidden_by_a_mask(case, kind):
    inputs = replace(case.inputs(), sampler_logprobs=case.old * math.nan)
    assert math.isnan(replace(settled(LOSSES["grpo"]), weighting=Weighting(kind))(inputs, COUNTS).loss.item())


def test_a_missing_input_of_an_objective_is_named(case):
    objective = settled(LOSSES["grpo"])
    with pytest.raises(ValueError, match=r"entropy_coef is 0\.1 and needs entropies"):
        replace(objective, entropy_coef=0.1)(case.inputs(), COUNTS)
    with pytest.raises(ValueError, match=r"distill is 0\.5 and needs divergences"):
        replace(objective, distill=0.5)(case.inputs(), COUNTS)
    with pytest.raises(ValueError, match="importance_correction is token_mask and needs sampler_logprobs"):
        replace(objective, weighting=Weighting("token_mask"))(case.inputs(), COUNTS)
    with pytest.raises(ValueError, match=r"policy_mask: expected shape \(6, 6\), got \(6, 5\)"):
        objective(replace(case.inputs(), policy_mask=case.mask[:, 1:]), COUNTS)


def test_the_options_reach_the_objective():
    options = ObjectiveOptions(
        entropy_coef=0.01,
        num_iterations=2,
        loss_type="grpo(off_policy_mask=0.2)",
        importance_correction="sequence_truncate(min=0.5, max=2)",
    )
    objective = objective_of(options, 8)
    assert objective.weighting == Weighting("sequence_truncate", 0.5, 2.0, 0.2) and objective.entropy_coef == 0.01
    plain = objective_of(ObjectiveOptions(), 8)
    assert plain.weighting == Weighting() and plain.entropy_coef == 0
    assert not ObjectiveOptions().reads_sampled_entropies
    assert ObjectiveOptions(top_entropy_quantile=0.2).reads_sampled_entropies
    assert ObjectiveOptions(entropy_coef=0.1, entropy_target=0.5).reads_sampled_entropies
