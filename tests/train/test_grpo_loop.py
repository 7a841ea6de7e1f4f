"""The loop without the Trainer has the trainer's loss and gradient, and runs as a command."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from qwenvl.data.dataset import load_dataset
from qwenvl.model.loading import load_model
from qwenvl.rewards import build_rubric
from qwenvl.step.score import Score
from tests.train.conftest import letters

PATH = Path(__file__).parents[2] / "scripts" / "grpo_loop.py"
spec = importlib.util.spec_from_file_location("grpo_loop", PATH)
loop = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loop)


class Sampled:
    """An engine whose completions are there already."""

    def __init__(self, rollout):
        self.rollout = rollout

    def sample(self, *arguments):
        return [self.rollout]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_the_loop_has_the_loss_and_gradient_of_the_trainer(family, make_trainer, tiny_checkpoint):
    checkpoint = str(tiny_checkpoint(family, initializer_range=0.1))
    trainer = make_trainer(model=checkpoint)
    batch = trainer.data_collator([trainer.train_dataset[n] for n in (0, 3, 6, 7)])["prompts"]  # video, text, image
    trainer.model.train()
    expected = trainer.compute_loss(trainer.model, {"prompts": batch})
    expected.backward()

    sample = trainer.answer.sample
    policy = loop.Policy(checkpoint, torch.device("cpu"), sample.group_size, sample.params)
    policy.model.train()
    [experience] = trainer.step.experiences
    policy.sample = replace(policy.sample, engine=Sampled(experience.rollout))
    score = Score(trainer.rewards)
    objective = trainer.objective
    loss, _, scored = loop.grpo_loss(policy, batch, score, objective.alpha, objective.beta, seed=0)
    loss.backward()
    assert torch.equal(scored.rewards.total, experience.rewards.total) and scored.rewards.total.std() > 0
    torch.testing.assert_close(loss, expected)
    known = dict(trainer.model.named_parameters())
    learning = {name: each for name, each in policy.model.named_parameters() if each.requires_grad}
    assert learning.keys() == {name for name, each in known.items() if each.requires_grad}
    for name, parameter in learning.items():
        torch.testing.assert_close(parameter.grad, known[name].grad, msg=lambda text, name=name: f"{name}: {text}")


def test_the_loop_trains_and_saves(tiny_checkpoint, sop_data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, "build_rubric", lambda names: build_rubric([letters]))  # it differs within each group
    checkpoint = str(tiny_checkpoint(initializer_range=0.1))
    flags = {"model": checkpoint, "data": sop_data, "output": tmp_path / "out", "steps": 2, "max_tokens": 6, "group": 2}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    loop.train(loop.parse([*words, "--cpu", "--learning_rate", "1e-3"]))
    assert capsys.readouterr().out.count("step ") >= 2
    before, after = load_model(checkpoint), load_model(tmp_path / "out")
    assert any(not torch.equal(one, two) for one, two in zip(before.parameters(), after.parameters(), strict=True))


def test_each_epoch_draws_every_record_once_in_another_order(sop_data):
    dataset = load_dataset(sop_data)
    batches = loop.batches(dataset, lambda samples: {"prompts": [sample.record.id for sample in samples]}, 2, seed=0)
    ids = [record.id for record in dataset.records]
    of_an_epoch = -(-len(ids) // 2)
    orders = [[id for batch in islice(batches, of_an_epoch) for id in batch] for _ in range(2)]
    assert [sorted(order) for order in orders] == [sorted(ids)] * 2
    assert orders[0] != orders[1]
