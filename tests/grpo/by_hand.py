"""Six completions, and the loss of a step of them written out token by token, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from qwenvl.grpo.loss import LossInputs, Objective, StepCounts

ALPHA, BETA, MAX_LENGTH = 0.7, 0.3, 8
LENGTHS, ADVANTAGES = [6, 2, 0, 4, 5, 3], [1.3, -0.7, 2.0, 0.0, -2.0, 0.4]
COUNTS = StepCounts(len(LENGTHS), sum(LENGTHS))


@dataclass
class Case:
    """Six completions of both signs, ragged, one of them empty. Anything may stand behind a completion's end."""

    logprobs: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor

    @property
    def mask(self):
        return torch.arange(6) < torch.tensor(LENGTHS)[:, None]

    def inputs(self, rows=slice(None)):
        return LossInputs(
            self.logprobs[rows],
            self.old.masked_fill(~self.mask, math.nan)[rows],
            self.reference.masked_fill(~self.mask, math.inf)[rows],
            torch.tensor(ADVANTAGES, dtype=torch.float64)[rows],
            self.mask[rows],
        )


def random_case() -> Case:
    """Log-probs of three models, with ratios of about 0.3 to 3."""
    generator = torch.Generator().manual_seed(7)
    draw = lambda: torch.randn(6, 6, generator=generator, dtype=torch.float64)
    old = draw() - 2
    return Case((old + 0.4 * draw()).requires_grad_(), old, old + 0.4 * draw())


def settled(objective: Objective) -> Objective:
    return replace(objective, alpha=ALPHA, beta=BETA, max_completion_length=MAX_LENGTH)


def gain_and_slopes(objective: Objective, r: float, logp: float, log_ratios: list[float], a: float):
    """The maximised term of one token, and its derivatives with respect to r and to the token's own log-prob."""
    b = objective.bounds
    if objective.limit == "clip":
        low, high = 1 - b.epsilon, 1 + (b.epsilon if b.epsilon_high is None else b.epsilon_high)
        free = min(r, b.delta) if b.delta else r
        clipped = min(max(r, low), high)
        if free * a <= clipped * a:
            gain, by_r = free * a, (a if free == r else 0.0)
        else:
            gain, by_r = clipped * a, (a if low <= r <= high else 0.0)
        if b.dual_clip and a < 0 and gain < b.dual_clip * a:
            gain, by_r = b.dual_clip * a, 0.0
        return gain, by_r, 0.0
    if objective.limit == "cispo":
        weight = min(r, b.cispo) * a
        return weight * logp, 0.0, weight
    if objective.limit == "sapo":
        t = b.sapo[0] if a > 0 else b.sapo[1]
        sigmoid = 1 / (1 + math.exp(-t * (r - 1)))
        return a * 4 / t * sigmoid, a * 4 * sigmoid * (1 - sigmoid), 0.0
    if objective.limit == "vespo":
        k, lam = b.vespo[0] if a >= 0 else b.vespo[1]
        log_w = max(sum(log_ratios), math.log(1e-8))
        phi = math.exp(lam + k * log_w - lam * math.exp(log_w))
        return phi * a * logp, 0.0, phi * a
    return a * logp, 0.0, a


def by_hand(
    objective: Objective,
    case: Case,
    weights: list[list[float]] | None = None,
    advantages: list[list[float]] | None = None,
) -> tuple[float, list]:
    """The loss of the whole step, and its gradient. A token may have a weight of its policy term, and an advantage."""
    loss, gradient, tokens = 0.0, [[0.0] * 6 for _ in LENGTHS], sum(LENGTHS)
    for n, (length, a) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        weight = {
            "completions": 1 / max(1, length) / len(LENGTHS),
            "max_length": 1 / (len(LENGTHS) * MAX_LENGTH),
            "tokens": 1 / tokens,
            "micro_batch_tokens": 1 / tokens,
            "completion_sums": 1 / len(LENGTHS),
        }[objective.average]
        logp, old, ref = (x[n, :length].tolist() for x in (case.logprobs.detach(), case.old, case.reference))
        log_ratios = [p - q for p, q in zip(logp, old, strict=True)]
        for t in range(length):
            own = 1.0 if weights is None else weights[n][t]
            if objective.ratio == "token":
                r = math.exp(log_ratios[t])
                slopes = [r if u == t else 0.0 for u in range(length)]
            else:
                r = math.exp(sum(log_ratios) / length)
                spread = objective.ratio == "sequence"
                slopes = [r / length if spread else (r if u == t else 0.0) for u in range(length)]
            own_a = a if advantages is None else advantages[n][t]
            gain, by_r, by_logp = gain_and_slopes(objective, r, logp[t], log_ratios, own_a)
            d = ref[t] - logp[t]
            k3, k3_slope = math.exp(d) - d - 1, 1 - math.exp(d)
            factor = r if objective.kl_unbiased else 1.0
            loss += weight * (-ALPHA * own * gain + BETA * k3 * factor)
            gradient[n][t] += weight * (-ALPHA * own * by_logp + BETA * k3_slope * factor)
            for u in range(length):
                kl_slope = BETA * k3 * slopes[u] if objective.kl_unbiased else 0.0
                gradient[n][u] += weight * (-ALPHA * own * by_r * slopes[u] + kl_slope)
    return loss, gradient


def check(objective: Objective, case: Case, inputs: LossInputs, weights=None, advantages=None, **metrics) -> None:
    """Loss, gradient and metrics of a step are those by hand."""
    out = objective(inputs, COUNTS)
    out.loss.backward()
    loss, gradient = by_hand(objective, case, weights, advantages)
    assert out.loss.item() == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(case.logprobs.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert out.metrics["loss/policy"] + out.metrics["loss/kl"] == pytest.approx(loss, rel=1e-10)
    for name, value in metrics.items():
        assert out.metrics[name] == pytest.approx(value, rel=1e-10), name
