import math
from dataclasses import fields, replace

import pytest
import torch

from qwenvl.grpo.loss import LOSSES, LossInputs, LossOutput, StepCounts
from qwenvl.grpo.surrogates import RatioBounds, kl_estimate

LOGPROBS = [[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.0]]
REFERENCE = [[-1.5, -1.0, -9.0], [-0.25, -2.5, -9.0]]
MASK = [[True, True, False], [True, True, True]]


def leaf(values):
    return torch.tensor(values, requires_grad=True)


def loss_of(
    logprobs, advantages, mask, *, old_logprobs=None, ref_logprobs=None, loss_type="grpo", **settings
) -> LossOutput:
    """The loss of a micro-batch that is a step of its own."""
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    counts = StepCounts(len(mask), int(mask.sum()))
    inputs = LossInputs(logprobs, old, ref_logprobs, advantages, mask)
    row = LOSSES[loss_type]
    bounds = {name: settings.pop(name) for name in [field.name for field in fields(RatioBounds)] if name in settings}
    return replace(row, bounds=replace(row.bounds, **bounds), **settings)(inputs, counts)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # d = reference - policy = 1 and -0.5
    [("k1", [-1.0, 0.5]), ("k2", [0.5, 0.125]), ("k3", [math.e - 2, math.exp(-0.5) - 0.5])],
)
def test_kl_estimators_follow_their_formulas(estimator, expected):
    got = kl_estimate(torch.tensor([[-2.0, -1.0]]), torch.tensor([[-1.0, -1.5]]), estimator)
    torch.testing.assert_close(got, torch.tensor([expected]))


def test_kl_is_clamped_and_finite():
    got = kl_estimate(torch.tensor([[-200.0, -1.0]]), torch.tensor([[-1.0, -300.0]]), "k3")
    torch.testing.assert_close(got, torch.tensor([[math.exp(20) - 21, math.exp(-20) + 19]]))


def test_kl_estimators_average_to_the_true_divergence():
    """Over all outcomes of a small distribution the expectations can be written out."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    true = (policy * (policy / reference).log()).sum()
    for estimator in ("k1", "k3"):
        torch.testing.assert_close((policy * kl_estimate(policy.log(), reference.log(), estimator)).sum(), true)


@pytest.mark.parametrize(("estimator", "divergence"), [("k1", None), ("k2", "reverse"), ("k3", "forward")])
def test_each_kl_estimator_as_a_loss_term_has_the_documented_gradient(estimator, divergence):
    """The gradient is that of 0 for k1, of KL(policy || reference) for k2, and of KL(reference || policy) for k3."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    surrogate = (policy.detach().exp() * kl_estimate(policy, reference, estimator)).sum()
    (got,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    if divergence is None:
        expected = torch.zeros_like(logits)
    elif divergence == "reverse":
        (expected,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits)
    else:
        (expected,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), logits)
    torch.testing.assert_close(got, expected)


def test_masked_positions_may_hold_anything():
    logprobs = torch.tensor([[-1.0, -math.inf], [-2.0, math.nan]], requires_grad=True)
    reference = torch.tensor([[-1.0, math.nan], [-2.5, math.inf]])
    mask = torch.tensor([[True, False], [True, False]])
    out = loss_of(logprobs, torch.tensor([1.0, -1.0]), mask, ref_logprobs=reference)
    out.loss.backward()
    assert math.isfinite(out.loss.item()) and all(map(math.isfinite, out.metrics.values()))
    assert logprobs.grad[:, 1].tolist() == [0.0, 0.0]
    assert torch.isfinite(logprobs.grad).all()


def test_empty_completion_contributes_zero_and_counts():
    args = dict(ref_logprobs=torch.tensor([[-1.5], [-9.0]]), alpha=1.0, beta=0.0)
    out = loss_of(leaf([[-1.0], [-9.0]]), torch.tensor([3.0, 5.0]), torch.tensor([[True], [False]]), **args)
    assert out.loss.item() == pytest.approx(-3.0 / 2)
    nothing = loss_of(leaf([[-1.0], [-9.0]]), torch.tensor([3.0, 5.0]), torch.zeros(2, 1, dtype=torch.bool), **args)
    nothing.loss.backward()
    assert nothing.loss.item() == 0.0 and nothing.metrics["kl"] == 0.0


def test_no_rows_or_no_tokens_give_zero():
    assert loss_of(torch.empty(0, 3), torch.empty(0), torch.empty(0, 3, dtype=torch.bool), beta=0.0).loss.item() == 0
    assert loss_of(torch.empty(2, 0), torch.ones(2), torch.empty(2, 0, dtype=torch.bool), beta=0.0).loss.item() == 0


def test_beta_zero_needs_no_reference_and_measures_a_given_one():
    mask, advantages = torch.tensor(MASK), torch.tensor([1.0, -2.0])
    plain, measured = leaf(LOGPROBS), leaf(LOGPROBS)
    without = loss_of(plain, advantages, mask, beta=0.0)
    with_ref = loss_of(measured, advantages, mask, beta=0.0, ref_logprobs=torch.tensor(REFERENCE))
    without.loss.backward()
    with_ref.loss.backward()
    assert "kl" not in without.metrics and with_ref.metrics["kl"] > 0
    assert torch.equal(plain.grad, measured.grad)


def test_the_reference_gets_no_gradient():
    reference = leaf(REFERENCE)
    loss_of(leaf(LOGPROBS), torch.ones(2), torch.tensor(MASK), ref_logprobs=reference).loss.backward()
    assert reference.grad is None


def test_half_precision_is_computed_in_float32():
    low = torch.tensor(LOGPROBS, dtype=torch.bfloat16, requires_grad=True)
    out = loss_of(low, torch.ones(2), torch.tensor(MASK), ref_logprobs=torch.tensor(REFERENCE).bfloat16())
    out.loss.backward()
    assert out.loss.dtype == torch.float32 and low.grad.dtype == torch.bfloat16


def test_missing_inputs_and_wrong_shapes_are_refused_by_name():
    logprobs, advantages, mask = torch.tensor(LOGPROBS), torch.ones(2), torch.tensor(MASK)
    with pytest.raises(ValueError, match="ref_logprobs"):
        loss_of(logprobs, advantages, mask)
    with pytest.raises(ValueError, match="max_completion_length"):
        loss_of(logprobs, advantages, mask, beta=0.0, loss_type="dr_grpo")
    with pytest.raises(ValueError, match="expected bool"):
        loss_of(logprobs, advantages, mask.long(), beta=0.0)
    with pytest.raises(ValueError, match=r"old_logprobs: expected shape \(2, 3\), got \(2, 2\)"):
        loss_of(logprobs, advantages, mask, beta=0.0, old_logprobs=torch.zeros(2, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["logprobs", "old_logprobs", "ref_logprobs"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_log_prob_that_is_not_finite_makes_the_loss_nan(loss_type, name, bad):
    """Whatever a limit makes of it. Where the mask is false it does nothing."""
    given = {each: torch.full((2, 3), -1.0) for each in ("logprobs", "old_logprobs", "ref_logprobs")}
    mask, advantages = torch.tensor(MASK), torch.tensor([1.0, -1.0])
    objective = replace(LOSSES[loss_type], beta=0.1, max_completion_length=3)
    counts = StepCounts(2, int(mask.sum()))
    for row, token in mask.nonzero().tolist() + (~mask).nonzero().tolist():
        values = {each: value.clone() for each, value in given.items()}
        values[name][row, token] = bad
        loss = objective(LossInputs(**values, advantages=advantages, mask=mask), counts).loss
        if mask[row, token]:
            # Without a ratio there is no use of the old log-probs.
            assert loss.isnan() or (loss_type, name) == ("reward_weighted", "old_logprobs")
        else:
            assert loss.isfinite()
