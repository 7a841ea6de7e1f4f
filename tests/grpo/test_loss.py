import math

import pytest
import torch

from qwenvl.grpo.loss import grpo_loss, kl_estimate

LOGPROBS = [[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.0]]
REFERENCE = [[-1.5, -1.0, -9.0], [-0.25, -2.5, -9.0]]
MASK = [[True, True, False], [True, True, True]]


def leaf(values):
    return torch.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # d = reference - policy = 1 and -0.5
    [("k1", [-1.0, 0.5]), ("k2", [0.5, 0.125]), ("k3", [math.e - 2, math.exp(-0.5) - 0.5])],
)
def test_kl_estimators_by_hand(estimator, expected):
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
def test_gradient_of_each_estimator_as_a_loss_term(estimator, divergence):
    """What the docstring says: 0 for k1, KL(policy || reference) for k2, KL(reference || policy) for k3."""
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


def test_grpo_loss_by_hand():
    out = grpo_loss(
        leaf(LOGPROBS),
        torch.tensor([1.0, -2.0]),
        torch.tensor(MASK),
        ref_logprobs=torch.tensor(REFERENCE),
        alpha=0.5,
        beta=0.1,
        kl_estimator="k2",
    )
    # Policy: rows -0.5 * 1 and -0.5 * -2, mean 0.25. k2: row 1 (0.125 + 0.5) / 2; row 2 (0 + 0.125 + 32) / 3.
    kl = (0.3125 + 32.125 / 3) / 2
    assert out.loss.item() == pytest.approx(0.25 + 0.1 * kl)
    assert out.metrics["loss/policy"] == pytest.approx(0.25)
    assert out.metrics["loss/kl"] == pytest.approx(0.1 * kl)
    assert out.metrics["kl"] == pytest.approx((0.125 + 0.5 + 0 + 0.125 + 32) / 5)


def test_dr_grpo_loss_by_hand():
    out = grpo_loss(
        leaf(LOGPROBS),
        torch.tensor([1.0, -2.0]),
        torch.tensor(MASK),
        ref_logprobs=torch.tensor(REFERENCE),
        alpha=1.0,
        beta=0.1,
        kl_estimator="k1",
        loss_type="dr_grpo",
        max_completion_length=4,
    )
    # Sums over tokens: policy -1 * 2 + 2 * 3 = 4; k1 = -d summed: -(-0.5 + 1) - (0 + 0.5 - 8) = 7. Divided by 2 * 4.
    assert out.loss.item() == pytest.approx((4 + 0.1 * 7) / 8)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_gradient_by_hand_and_its_sign(loss_type):
    """d loss / d logp = weight * (-alpha A + beta (1 - exp(d))) for k3: a good completion's tokens are pushed up."""
    logprobs, advantages = leaf(LOGPROBS), torch.tensor([1.0, -2.0])
    grpo_loss(
        logprobs,
        advantages,
        torch.tensor(MASK),
        ref_logprobs=torch.tensor(REFERENCE),
        alpha=0.5,
        beta=0.1,
        loss_type=loss_type,
        max_completion_length=4,
    ).loss.backward()
    weight = torch.tensor([[1 / 4] * 3, [1 / 6] * 3]) if loss_type == "grpo" else torch.full((2, 3), 1 / 8)
    d = torch.tensor(REFERENCE) - torch.tensor(LOGPROBS)
    expected = weight * (-0.5 * advantages[:, None] + 0.1 * (1 - d.exp())) * torch.tensor(MASK)
    torch.testing.assert_close(logprobs.grad, expected)
    descent = -logprobs.grad
    assert (descent[0, :2] > 0).all() and (descent[1] < 0).all()


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_micro_batches_weighed_by_their_share_sum_to_the_step(loss_type):
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(4, 6, generator=generator, dtype=torch.float64) - 2
    reference = torch.randn(4, 6, generator=generator, dtype=torch.float64) - 2
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [2], [0], [4]])

    def gradient(size):
        logprobs, total = values.clone().requires_grad_(), 0.0
        for start in range(0, 4, size):
            rows = slice(start, start + size)
            out = grpo_loss(
                logprobs[rows],
                advantages[rows],
                mask[rows],
                ref_logprobs=reference[rows],
                loss_type=loss_type,
                max_completion_length=6,
            )
            loss = out.loss * len(mask[rows]) / 4
            loss.backward()
            total += loss.item()
        return total, logprobs.grad

    whole_loss, whole = gradient(4)
    for size in (1, 2, 3):
        loss, grad = gradient(size)
        assert loss == pytest.approx(whole_loss, rel=1e-12)
        torch.testing.assert_close(grad, whole, rtol=1e-12, atol=0)
    assert whole_loss == pytest.approx(
        grpo_loss(
            values, advantages, mask, ref_logprobs=reference, loss_type=loss_type, max_completion_length=6
        ).loss.item()
    )


def test_masked_positions_may_hold_anything():
    logprobs = torch.tensor([[-1.0, -math.inf], [-2.0, math.nan]], requires_grad=True)
    reference = torch.tensor([[-1.0, math.nan], [-2.5, math.inf]])
    mask = torch.tensor([[True, False], [True, False]])
    out = grpo_loss(logprobs, torch.tensor([1.0, -1.0]), mask, ref_logprobs=reference)
    out.loss.backward()
    assert math.isfinite(out.loss.item()) and all(map(math.isfinite, out.metrics.values()))
    assert logprobs.grad[:, 1].tolist() == [0.0, 0.0]
    assert torch.isfinite(logprobs.grad).all()


def test_empty_completion_contributes_zero_and_counts():
    args = dict(ref_logprobs=torch.tensor([[-1.5], [-9.0]]), alpha=1.0, beta=0.0)
    out = grpo_loss(leaf([[-1.0], [-9.0]]), torch.tensor([3.0, 5.0]), torch.tensor([[True], [False]]), **args)
    assert out.loss.item() == pytest.approx(-3.0 / 2)
    nothing = grpo_loss(leaf([[-1.0], [-9.0]]), torch.tensor([3.0, 5.0]), torch.zeros(2, 1, dtype=torch.bool), **args)
    nothing.loss.backward()
    assert nothing.loss.item() == 0.0 and nothing.metrics["kl"] == 0.0


def test_no_rows_or_no_tokens_give_zero():
    assert grpo_loss(torch.empty(0, 3), torch.empty(0), torch.empty(0, 3, dtype=torch.bool), beta=0.0).loss.item() == 0
    assert grpo_loss(torch.empty(2, 0), torch.ones(2), torch.empty(2, 0, dtype=torch.bool), beta=0.0).loss.item() == 0


def test_beta_zero_needs_no_reference_and_measures_a_given_one():
    mask, advantages = torch.tensor(MASK), torch.tensor([1.0, -2.0])
    plain, measured = leaf(LOGPROBS), leaf(LOGPROBS)
    without = grpo_loss(plain, advantages, mask, beta=0.0)
    with_ref = grpo_loss(measured, advantages, mask, beta=0.0, ref_logprobs=torch.tensor(REFERENCE))
    without.loss.backward()
    with_ref.loss.backward()
    assert "kl" not in without.metrics and with_ref.metrics["kl"] > 0
    assert torch.equal(plain.grad, measured.grad)


def test_the_reference_gets_no_gradient():
    reference = leaf(REFERENCE)
    grpo_loss(leaf(LOGPROBS), torch.ones(2), torch.tensor(MASK), ref_logprobs=reference).loss.backward()
    assert reference.grad is None


def test_half_precision_is_computed_in_float32():
    low = torch.tensor(LOGPROBS, dtype=torch.bfloat16, requires_grad=True)
    out = grpo_loss(low, torch.ones(2), torch.tensor(MASK), ref_logprobs=torch.tensor(REFERENCE).bfloat16())
    out.loss.backward()
    assert out.loss.dtype == torch.float32 and low.grad.dtype == torch.bfloat16


def test_refusals_name_the_cause():
    logprobs, advantages, mask = torch.tensor(LOGPROBS), torch.ones(2), torch.tensor(MASK)
    with pytest.raises(ValueError, match="ref_logprobs"):
        grpo_loss(logprobs, advantages, mask)
    with pytest.raises(ValueError, match="max_completion_length"):
        grpo_loss(logprobs, advantages, mask, beta=0.0, loss_type="dr_grpo")
    with pytest.raises(ValueError, match="expected bool"):
        grpo_loss(logprobs, advantages, mask.long(), beta=0.0)
    with pytest.raises(ValueError, match=r"logprobs\[1, 2\] is nan"):
        broken = logprobs.clone()
        broken[1, 2] = math.nan
        grpo_loss(broken, advantages, mask, beta=0.0)
    for name in ("loss_type", "kl_estimator"):
        with pytest.raises(ValueError, match="expected"):
            grpo_loss(logprobs, advantages, mask, ref_logprobs=logprobs, **{name: "nonsense"})
