"""Advantages of tokens and the KL to a teacher, by hand and by autograd in float64."""

from dataclasses import replace

import pytest
import torch

from qwenvl.grpo.loss import LOSSES
from qwenvl.model.logprobs import reverse_kl
from tests.grpo.by_hand import ADVANTAGES, COUNTS, LENGTHS, check, random_case, settled


@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if row.ratio == "token"])
def test_losses_take_an_advantage_for_each_token(name):
    case, own = random_case(), torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None] + own  # of both signs in a completion
    inputs = replace(case.inputs(), advantages=advantages.masked_fill(~case.mask, torch.nan))
    check(settled(LOSSES[name]), case, inputs, advantages=advantages.tolist())


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_advantage_for_all_tokens_is_that_of_the_completion(name):
    objective, case = settled(LOSSES[name]), random_case()
    inputs = case.inputs()
    spread = replace(inputs, advantages=inputs.advantages[:, None].expand(6, 6))
    assert objective(inputs, COUNTS) == objective(spread, COUNTS)


def test_the_exact_kl_is_a_term_of_the_loss():
    """alpha * weight * KL of each token, in the average of the loss."""
    case = random_case()
    divergences = torch.rand(6, 6, dtype=torch.float64).masked_fill(~case.mask, torch.inf).requires_grad_()
    averages = {"grpo": lambda length: 1 / max(1, length) / 6, "dapo": lambda length: 1 / sum(LENGTHS)}
    for name, weight_of in averages.items():
        plain = settled(LOSSES[name])
        with_term = replace(plain, distill=0.3)
        output = with_term(replace(case.inputs(), divergences=divergences), COUNTS)
        weights = [[weight_of(length)] * length + [0.0] * (6 - length) for length in LENGTHS]
        pairs = zip(divergences.tolist(), weights, strict=True)
        term = plain.alpha * 0.3 * sum(d * w for ds, ws in pairs for d, w in zip(ds, ws, strict=True) if w)
        assert output.metrics["loss/distill"] == pytest.approx(term, rel=1e-12)
        assert output.loss.item() == pytest.approx(plain(case.inputs(), COUNTS).loss.item() + term, rel=1e-12)
        [gradient] = torch.autograd.grad(output.loss, divergences)
        expected = plain.alpha * 0.3 * torch.tensor(weights, dtype=torch.float64)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


def distributions():
    draw = torch.Generator().manual_seed(5)
    logits, teacher = (torch.randn(4, 7, generator=draw, dtype=torch.float64) * 2 for _ in range(2))
    return logits.requires_grad_(), teacher


def test_the_reverse_kl_and_its_gradient_follow_the_formula():
    logits, teacher = distributions()
    got = reverse_kl(logits, torch.cat([teacher, torch.full((4, 3), 9.0)], 1))  # a vocabulary padded further
    [gradient] = torch.autograd.grad(got.sum(), logits)
    p, q = logits.detach().softmax(1), teacher.softmax(1)
    expected = (p * (p / q).log()).sum(1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    by_hand = p * ((p / q).log() - expected[:, None])  # d KL / d logit
    torch.testing.assert_close(gradient, by_hand, rtol=1e-10, atol=1e-14)
    assert torch.autograd.gradcheck(lambda own: reverse_kl(own, teacher), (logits,))


def test_the_gradient_of_sampled_tokens_is_that_of_the_exact_kl_in_expectation():
    """The sum over all tokens of p * A * grad log p, with A = teacher - policy log-prob, is minus the KL's gradient."""
    logits, teacher = distributions()
    [exact] = torch.autograd.grad(reverse_kl(logits, teacher).sum(), logits)
    own = logits.log_softmax(1)
    advantages = (teacher.log_softmax(1) - own).detach()
    [sampled] = torch.autograd.grad(-(own.detach().exp() * advantages * own).sum(), logits)
    torch.testing.assert_close(sampled, exact, rtol=1e-10, atol=1e-14)
