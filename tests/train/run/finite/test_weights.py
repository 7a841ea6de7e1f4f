"""Weights that are not finite end the run, by name and step, and are in no checkpoint."""

import json

import pytest
import torch
from transformers import TrainerCallback

from qwenvl.runlog import read_rollouts
from qwenvl.train.run.finite_steps import NonFiniteError


class Breaks(TrainerCallback):
    """Spoils a weight in the second step, as an update that overflows does."""

    def __init__(self, event: str, step: int):
        setattr(self, event, self.spoil)
        self.step = step

    def spoil(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            with torch.no_grad():
                model.model.language_model.norm.weight[0] = torch.nan


def test_a_step_that_breaks_weights_is_the_last_and_is_not_saved(make_trainer, tmp_path):
    trainer = make_trainer(save_strategy="steps", save_steps=1, max_steps=4, callbacks=[Breaks("on_optimizer_step", 1)])
    said = r"^step 2: after its update parameter model.language_model.norm.weight has 1 of \d+ values that are NaN or"
    with pytest.raises(NonFiniteError, match=said):
        trainer.train()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    report = json.loads((tmp_path / "run" / "nonfinite" / "step-000002.json").read_text())
    assert report["step"] == 2 and report["seed"] == 3
    assert [each["name"] for each in report["parameters"]] == ["model.language_model.norm.weight"]
    rows = list(read_rollouts(tmp_path / "run", step=2))
    (micro_batch,) = report["micro_batches"]
    (prompt,) = micro_batch["prompts"]
    assert {prompt["where"]} == {row.where for row in rows}
    assert [each["reward"] for each in prompt["completions"]] == [row.total for row in rows]


def test_broken_weights_are_found_before_they_are_sampled_with(make_trainer, tiny_pair):
    model, _ = tiny_pair(initializer_range=0.1)
    with torch.no_grad():
        model.model.visual.patch_embed.proj.weight.fill_(torch.nan)  # frozen
    with pytest.raises(NonFiniteError, match=r"^step 0: before any update parameter model.visual.patch_embed.proj"):
        make_trainer(model=model).train()
