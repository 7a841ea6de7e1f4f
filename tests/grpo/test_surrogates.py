"""Every objective, its gradient and its metrics against sums over tokens that are written out by hand, in float64."""

import math
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
import torch

from qwenvl.grpo.loss import LOSSES, LossInputs, StepCounts
from qwenvl.grpo.options import CLIPPED_LOSSES, LOSS_ROWS, SEQUENCE_LOSSES, ObjectiveOptions, RatioArguments
from qwenvl.grpo.surrogates import KL_ESTIMATORS, RATIOS, RatioBounds
from qwenvl.option import choices_of
from tests.grpo.by_hand import ADVANTAGES, COUNTS, LENGTHS, Case, by_hand, check, random_case, settled


def test_the_options_name_the_rows_of_the_table():
    assert tuple(LOSS_ROWS) == tuple(LOSSES)
    assert {name for name, row in LOSSES.items() if row.limit == "clip"} == set(CLIPPED_LOSSES)
    assert {name for name, row in LOSSES.items() if row.ratio == "sequence"} == set(SEQUENCE_LOSSES)
    assert choices_of(get_type_hints(RatioArguments)["ratio"]) == tuple(RATIOS)
    (kl,) = (each for each in fields(ObjectiveOptions) if each.name == "kl_estimator")
    assert tuple(kl.metadata["rows"]) == tuple(KL_ESTIMATORS)


@pytest.fixture
def case() -> Case:
    """Random log-probs, advantages and masks of a step."""
    return random_case()


OBJECTIVES = {
    **LOSSES,
    "grpo, sequence": replace(LOSSES["grpo"], ratio="sequence", bounds=RatioBounds(0.05, 0.1)),
    "gspo, wider": replace(LOSSES["gspo"], bounds=RatioBounds(0.05, 0.1)),
    "gspo-token": replace(LOSSES["gspo"], ratio="sequence_token", bounds=RatioBounds(0.05, 0.1)),
    "dapo, delta": replace(LOSSES["dapo"], bounds=RatioBounds(0.1, 0.2, delta=1.3)),
    "grpo, dual clip": replace(LOSSES["grpo"], bounds=RatioBounds(0.1, 0.2, dual_clip=1.2)),
    "cispo, tight": replace(LOSSES["cispo"], bounds=RatioBounds(cispo=1.1)),
    "sapo, sequence": replace(LOSSES["sapo"], ratio="sequence"),
    "grpo, unbiased KL": replace(LOSSES["grpo"], kl_unbiased=True),
    "gspo, unbiased KL": replace(LOSSES["gspo"], kl_unbiased=True),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_equals_its_formula(case, name):
    check(settled(OBJECTIVES[name]), case, case.inputs())


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "bnpo"])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_the_shares_of_ragged_micro_batches_sum_to_the_step(case, name, size):
    """As many micro-batches as there are, an empty one among them, of any size."""
    objective, counts = settled(OBJECTIVES[name]), replace(COUNTS, micro_batches=7)
    whole, gradient = by_hand(objective, case)
    parts = [objective(case.inputs(slice(start, start + size)), counts) for start in range(0, len(LENGTHS), size)]
    empty = objective(replace(case.inputs(slice(0, 1)), mask=torch.zeros(1, 6, dtype=torch.bool)), counts)
    assert empty.loss.item() == 0.0
    total = sum(part.loss for part in [*parts, empty])
    total.backward()
    assert total.item() == pytest.approx(whole, rel=1e-10)
    torch.testing.assert_close(case.logprobs.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_bnpo_is_a_mean_over_micro_batches(case):
    """By definition it depends on how a step is split."""
    objective = replace(settled(LOSSES["bnpo"]), beta=0.0)
    halves, counts = (slice(0, 2), slice(2, 6)), replace(COUNTS, micro_batches=2)
    shares = sum(objective(case.inputs(rows), counts).loss.item() for rows in halves)
    assert shares == pytest.approx(sum(objective(case.inputs(rows), COUNTS).loss.item() for rows in halves) / 2)
    assert shares != pytest.approx(objective(case.inputs(), COUNTS).loss.item())


def test_where_each_limit_acts_is_counted(case):
    """Shares of the tokens of completions, on both sides."""
    ratio = (case.logprobs - case.old).exp()
    signs = torch.tensor(ADVANTAGES)[:, None]
    tokens = sum(LENGTHS)

    def share(where):
        return pytest.approx((where & case.mask).sum().item() / tokens)

    def metrics(name, **bounds):
        objective = replace(settled(LOSSES[name]), bounds=RatioBounds(**bounds))
        return objective(case.inputs(), COUNTS).metrics

    found = metrics("grpo", epsilon=0.1, epsilon_high=0.3, delta=1.5, dual_clip=1.4)
    assert found["ratio/clipped_low_frac"] == share((ratio < 0.9) & (signs < 0)) and found["ratio/clipped_low_frac"]
    assert found["ratio/clipped_high_frac"] == share((ratio > 1.3) & (signs > 0)) and found["ratio/clipped_high_frac"]
    assert found["ratio/clipped_delta_frac"] == share((ratio > 1.5) & (signs < 0))
    assert found["ratio/clipped_dual_frac"] == share((ratio > 1.4) & (signs < 0))
    assert found["ratio/mean"] == pytest.approx((ratio * case.mask).sum().item() / tokens)
    assert metrics("cispo", cispo=1.1)["ratio/clipped_high_frac"] == share(ratio > 1.1)
    assert "ratio/clipped_low_frac" not in metrics("sapo")


def test_equal_rewards_give_only_the_kl_term(case):
    for name, row in LOSSES.items():
        inputs = replace(case.inputs(), advantages=torch.zeros(6, dtype=torch.float64))
        out = settled(row)(inputs, COUNTS)
        assert out.metrics["loss/policy"] == 0.0 and out.metrics["loss/kl"] > 0, name


def test_ratios_beyond_all_bounds_stay_finite():
    """Exponents are clamped, those of sums over a completion too."""
    for name, row in OBJECTIVES.items():
        for shift in (500.0, -500.0):
            logprobs = torch.full((2, 3), -1.0, dtype=torch.float64, requires_grad=True)
            inputs = LossInputs(
                logprobs,
                logprobs.detach() - shift,
                logprobs.detach() + shift,
                torch.tensor([1.0, -1.0], dtype=torch.float64),
                torch.ones(2, 3, dtype=torch.bool),
            )
            out = settled(row)(inputs, StepCounts(2, 6))
            out.loss.backward()
            assert math.isfinite(out.loss.item()) and torch.isfinite(logprobs.grad).all(), name
