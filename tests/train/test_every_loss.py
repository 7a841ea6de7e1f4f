"""Every loss has the same gradient however a step is divided among micro-batches and processes. bnpo has not."""

import json

import pytest
import torch

from qwenvl.grpo.loss import LOSSES
from qwenvl.run_log.log import read_metrics, read_rollouts
from tests.train.conftest import turns
from tests.train.every_loss import GRADIENTS, LONGEST, STEPS
from tests.train.test_distributed import launch

SPLITS = {
    "1 x 8": (1, {"per_device_train_batch_size": 8}),
    "8 x 1": (1, {"gradient_accumulation_steps": 8}),
    "2 processes x 4": (2, {"per_device_train_batch_size": 4}),
}
FLAGS = {
    "num_train_epochs": 1,
    "max_steps": -1,
    "num_iterations": 1 + len(LOSSES),
    "generation_max_length": LONGEST,
    "max_grad_norm": 0,
    "grpo_beta": 0.3,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def runs(tiny_checkpoint, sop_data, tmp_path_factory):
    """The folder of each split: eleven prompts of different lengths in steps of eight."""
    folder = tmp_path_factory.mktemp("splits")
    data = folder / "texts.json"
    rows = [{"id": f"text-{n}", "conversations": turns("What comes next? " + "step " * n, "(1)")} for n in range(10)]
    rows.append(json.loads(sop_data.read_text())[7] | {"image": str(sop_data.parent / "part.png")})
    data.write_text(json.dumps(rows))
    made = {}
    for name, (processes, flags) in SPLITS.items():
        made[name] = folder / name
        start, how = tiny_checkpoint(initializer_range=0.1), {"trains": "every_loss"}
        launch(processes, start, data, made[name], how=how, **{**FLAGS, **flags})
    return made


@pytest.fixture(scope="module")
def gradients(runs):
    """The gradients that each run has saved, by the name of the run."""
    return {name: torch.load(folder / GRADIENTS) for name, folder in runs.items()}


def furthest(ours, theirs) -> float:
    """The largest difference of two gradients, of any parameter, relative to the largest value of that parameter."""
    assert ours.keys() == theirs.keys() and len(ours) > 10
    differences = {name: (ours[name] - theirs[name]).abs().max() for name in ours}
    return max((far / theirs[name].abs().max().clamp(min=1e-9)).item() for name, far in differences.items())


@pytest.mark.parametrize("split", ["8 x 1", "2 processes x 4"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_does_not_depend_on_how_a_step_is_divided(gradients, loss, split):
    for step in STEPS:
        one = gradients["1 x 8"][loss, step]
        assert sum(value.abs().max() > 1e-4 for value in one.values()) > 10
        difference = furthest(gradients[split][loss, step], one)
        # Of two processes, one has all prompts of the ragged step, in a micro-batch as in one process.
        is_divided = split == "8 x 1" or step == "whole"
        assert difference > 0.01 if loss == "bnpo" and is_divided else difference < 1e-6, step


def test_losses_differ_from_each_other(gradients):
    """Else the comparison above would say little: no two losses have the same gradient on the whole step."""
    found = {loss: gradients["1 x 8"][loss, "whole"] for loss in LOSSES if loss != "bnpo"}  # dapo in one micro-batch
    for loss, gradient in found.items():
        for other, theirs in found.items():
            assert loss == other or furthest(gradient, theirs) > 1e-3, (loss, other)


def test_the_compared_runs_clip_ratios_on_both_sides_and_have_ragged_steps(runs):
    """Ratios are limited on both sides, lengths differ, and of the ragged step one process has no prompt."""
    rows = [row for row in read_metrics(runs["1 x 8"]) if "loss" in row]
    assert len(rows) == 2 * (1 + len(LOSSES))
    for loss, row in zip(LOSSES, rows[1:], strict=False):
        limited = {name: share for name, share in row.items() if name.startswith("ratio/") and name.endswith("_frac")}
        assert len(limited) == {"cispo": 1, "sapo": 0, "vespo": 0, "reward_weighted": 0}.get(loss, 2), loss
        assert all(0 < share < 1 for share in limited.values()), loss
        assert row["ratio/mean"] != 1 and row["kl"] > 0, loss
    both = runs["2 processes x 4"]
    ragged = list(read_rollouts(both, step=2 + len(LOSSES)))
    assert len(ragged) == 3 * 3 and len({row.tokens for row in ragged}) > 3
    second = [json.loads(line)["step"] for line in (both / "rollouts" / "rank-1.jsonl").read_text().splitlines()]
    assert set(second) == {1} and len(second) == 4 * 3
