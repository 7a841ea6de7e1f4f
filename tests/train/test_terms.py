"""The terms of any objective in runs: which tokens count, what weighs them, and an engine with weights of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from qwenvl.rollout.options import EngineOptions
from qwenvl.run_log.log import read_rollouts
from qwenvl.step import kernels
from tests.train.conftest import logged, with_kernels
from tests.train.test_grpo_trainer import first_batch, gradients_of_one_step

VOWELS = list("aeiou")
TERMS = {
    "mask_truncated_completions": True,
    "top_entropy_quantile": 0.4,
    "entropy_coef": 0.05,
    "entropy_target": 100.0,
}


class Cuts:
    """The engine of the run, which says that the first completion of each group was cut."""

    def __init__(self, engine):
        self._engine = engine

    def sample(self, model, request):
        rollouts = self._engine.sample(model, request)
        reasons = ["length", *["stop"] * (request.group_size - 1)]
        return [replace(each, finish_reasons=reasons * (len(each.texts) // request.group_size)) for each in rollouts]


def test_accumulation_is_exact_with_every_term(make_trainer, tmp_path):
    """The tokens of highest entropy, those of whole completions and the mean entropy are those of the step."""
    results, metrics = [], []
    for size in (4, 1):
        trainer = make_trainer(
            output_dir=str(tmp_path / f"run-{size}"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=4 // size,
            max_steps=1,
            max_grad_norm=0.0,
            generation_max_length=12,
            **TERMS,
        )
        with_kernels(trainer, engine=Cuts(trainer.kernels.engine))
        results.append(gradients_of_one_step(trainer))
        (row,) = logged(trainer, times=False)
        metrics.append({name: value for name, value in row.items() if not name.startswith("prompt/")})
    for name, gradient in results[1].items():
        torch.testing.assert_close(gradient, results[0][name], rtol=1e-4, atol=1e-7, msg=name)
    assert max(g.abs().max() for g in results[0].values()) > 1e-4
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-6)
    counted = [r.tokens for r in read_rollouts(trainer.args.output_dir) if r.finish_reason == "stop"]
    assert metrics[0]["completion/truncated_frac"] == pytest.approx(1 / 3) and len(counted) == 8
    taken = metrics[0]["top_entropy/frac"] * sum(counted)
    assert taken == pytest.approx(sum(counted) - math.ceil((sum(counted) - 1) * 0.6 - 1e-9))


def test_the_policy_term_takes_the_same_tokens_in_every_iteration(make_trainer):
    loss = "grpo(off_policy_mask=0.01)"
    trainer = make_trainer(num_iterations=2, max_steps=2, top_entropy_quantile=0.4, loss_type=loss)
    masks, trained = [], trainer.journal.trained
    trainer.journal.trained = lambda step, number, output: (
        masks.append(step.policy_mask(step.experiences[number])) or trained(step, number, output)
    )
    trainer.train()
    assert torch.equal(*masks)
    assert all(0 <= row["off_policy/dropped_frac"] <= 1 for row in logged(trainer))


class Stale:
    """An engine with older weights: it gives the tokens of another, and other log-probs."""

    def __init__(self, engine):
        self._engine = engine

    def sample(self, model, request):
        rollouts = self._engine.sample(model, request)
        generator = torch.Generator().manual_seed(9)
        noise = [0.4 * torch.randn(each.logprobs.shape, generator=generator) for each in rollouts]
        return [replace(each, logprobs=each.logprobs - by) for each, by in zip(rollouts, noise, strict=True)]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_engine_with_weights_of_its_own_is_corrected_for(make_trainer, monkeypatch, level):
    monkeypatch.setattr(EngineOptions, "engine_has_own_weights", True)
    monkeypatch.setattr(kernels, "server_engine", lambda args, policy, local: Stale(local))
    trainer = make_trainer(
        per_device_train_batch_size=2,
        importance_correction=f"{level}_mask(max=1.3)",
        check_parity="off",
        grpo_alpha=0.8,
        grpo_beta=0.0,
    )
    loss = trainer.compute_loss(trainer.model, first_batch(trainer)).item()
    (experience,), (fixed,) = trainer.step.experiences, trainer.step.fixed
    total, masked = 0.0, 0
    rows = len(experience.advantages)
    for n in range(rows):
        length = int(experience.rollout.completion_mask[n].sum())
        logs = [(fixed.old[n, t] - experience.rollout.logprobs[n, t]).item() for t in range(length)]
        if level == "sequence":
            logs = [sum(logs)] * length
        weights = [math.exp(each) if math.exp(each) <= 1.3 else 0.0 for each in logs]
        masked += weights.count(0.0)
        total += sum(-0.8 * experience.advantages[n].item() * w for w in weights) / length
    tokens = int(experience.loss_mask.sum())
    assert 0 < masked < tokens and loss == pytest.approx(total / rows, rel=1e-4)
    assert trainer.meter.flush()["sampler/limited_frac"] == pytest.approx(masked / tokens)
