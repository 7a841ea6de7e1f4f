"""A step whose loss or gradients are not finite ends the run or is left out. The message names its records."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from qwenvl.run_log.log import read_metrics, read_rollouts
from qwenvl.step.meter import Meter
from qwenvl.train.run.finite_steps import FiniteSteps, nonfinite
from tests.step.made import nothing
from tests.train.conftest import turns
from tests.train.test_distributed import launch, weights


def test_values_that_are_not_finite_are_counted_by_parameter():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    assert nonfinite(model.named_parameters()) == []
    with torch.no_grad():
        model[0].weight[1, 0] = torch.nan
        model[0].weight[2, 1] = -torch.inf
        model[1].bias[0] = torch.inf
    assert nonfinite(model.named_parameters()) == [("0.weight", 2, 6), ("1.bias", 1, 1)]


def spoil_gradients(trainer, steps):
    """Makes the gradients of ``lm_head`` NaN, and of all below it, in the optimizer steps of these numbers."""

    def spoilt(module, inputs, outputs):
        return (inputs[0] * torch.nan,) if trainer.state.global_step + 1 in steps else None

    trainer.model.lm_head.register_full_backward_hook(spoilt)


def spoil_losses(trainer, steps, micro_batch):
    """Makes the loss of one micro-batch NaN, and no gradient, in the optimizer steps of these numbers."""
    objective, calls = trainer.objective, []

    def spoilt(inputs, counts):
        output = objective(inputs, counts)
        calls.append(trainer.state.global_step + 1)
        if calls[-1] in steps and calls.count(calls[-1]) == micro_batch:
            output.loss = output.loss + math.nan
            output.metrics["loss/policy"] = math.nan
        return output

    spoilt.entropy_coef = objective.entropy_coef  # the trainer reads it
    trainer.objective = spoilt


class Weights(TrainerCallback):
    """Keeps a weight as it is after each step, and what the optimizer knows of it."""

    def __init__(self):
        self.kept, self.states = [], []

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        weight = model.model.language_model.norm.weight
        self.kept.append(weight.detach().clone())
        self.states.append({name: value.clone() for name, value in optimizer.state.get(weight, {}).items()})


def logged(trainer, name):
    return [row[name] for row in read_metrics(trainer.args.output_dir) if "loss" in row]


@pytest.mark.parametrize("spoil", ["gradients", "loss"])
def test_a_step_that_is_left_out_changes_neither_weights_nor_optimizer(make_trainer, tmp_path, caplog, spoil):
    watch = Weights()
    settings = {"max_steps": 3, "gradient_accumulation_steps": 2, "callbacks": [watch], "weight_decay": 0.1}
    trainer = make_trainer(on_nonfinite="skip", **settings)
    spoil_gradients(trainer, {2}) if spoil == "gradients" else spoil_losses(trainer, {2}, micro_batch=2)
    trainer.train()
    first, second, third = watch.kept
    assert torch.equal(first, second) and not torch.equal(second, third)
    assert watch.states[0].keys() >= {"step", "exp_avg"}
    assert all(torch.equal(value, watch.states[1][name]) for name, value in watch.states[0].items())
    assert logged(trainer, "nonfinite/skipped_steps") == [0, 1, 0]
    assert logged(trainer, "learning_rate") == pytest.approx([1e-3, 1e-3 * 2 / 3, 1e-3 / 3])
    assert all(map(math.isfinite, logged(trainer, "loss")))  # of the Trainer, whose sum a NaN would stay in
    if spoil == "gradients":
        assert "step 2: the gradient of parameter model." in caplog.text
    else:
        where = [row.where for row in read_rollouts(tmp_path / "run", step=2)][-1]
        said = f"step 2: the loss of micro-batch 2 of 2 (loss/policy nan; {where}) is not finite"
        assert said in caplog.text
    assert "The step was left out, 1 in a row of at most 3" in caplog.text


def finite_steps(**settings) -> tuple[FiniteSteps, SimpleNamespace, Meter]:
    """The check of a run on one process, with its journal and its meter."""
    defaults = {"on_nonfinite": "skip", "process_index": 0, "world_size": 1, "num_iterations": 1, "fp16": False}
    args = SimpleNamespace(**defaults | {"learning_rate": 0.1, "max_grad_norm": 1.0} | settings)
    journal, meter = SimpleNamespace(trained_on=[]), Meter()
    return FiniteSteps(args, journal, meter, accelerator=None), journal, meter


@pytest.mark.parametrize(
    ("iterations", "bad", "ends"), [(1, {1, 3, 4, 5, 7, 8, 9, 10}, 10), (5, set(range(1, 21)), 16)]
)
def test_the_fourth_bad_step_in_a_row_ends_the_run(iterations, bad, ends):
    """Steps on the same completions count as one: they fail together where the completions are what fails."""
    (steps, journal, _), model, batch = finite_steps(num_iterations=iterations), nn.Linear(2, 1), nothing().batch
    with pytest.raises(FloatingPointError, match=rf"^step {ends}: .*3 steps in a row were left out before it"):
        for step in range(1, 21):
            journal.trained_on = [(batch, math.nan if step in bad else 0.5, {"loss/policy": math.nan})]
            steps.check(model, step)


@pytest.mark.parametrize(("shared_prefix", "in_sampling"), [("auto", True), ("off", False)])
def test_log_probs_that_are_not_finite_end_a_run(shared_prefix, in_sampling, make_trainer):
    trainer = make_trainer(gradient_accumulation_steps=2, shared_prefix=shared_prefix)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.model.lm_head.register_forward_hook(
        lambda module, inputs, outputs: outputs + torch.nan if trainer.model.training or in_sampling else None
    )
    said = r"^step 1: the loss of micro-batch 1 of 2 \(.*loss/policy nan.*\) and \d+ more are not finite"
    with pytest.raises(FloatingPointError, match=said) as error:
        trainer.train()
    assert "--on_nonfinite skip" in str(error.value) and "a lower --learning_rate (it is 0.001)" in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    if in_sampling:  # no loss shows it to an evaluation
        with pytest.raises(FloatingPointError, match="log-probs of sampled tokens are NaN"):
            batch = trainer.data_collator([trainer.train_dataset[0]])["prompts"]
            trainer.answer.complete([batch], 2, trainer.step_context())


def test_the_loss_scaler_of_fp16_leaves_out_its_own_steps():
    """Its steps are not counted. Of one whose loss is not finite, the gradients become what it leaves out by itself."""
    (steps, journal, meter), model, stand_in = finite_steps(fp16=True), nn.Linear(2, 1), nothing()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(number: int, gradient: float, loss: float) -> float:
        """The distance that a weight moves."""
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale((model.weight * gradient).sum() + model.bias.sum()).backward()
        journal.trained_on = [(stand_in.batch, loss, {})]
        steps.check(model, number)
        scaler.step(optimizer)
        scaler.update()
        return (model.weight - before).abs().max().item()

    assert step(1, gradient=1.0, loss=0.5) == pytest.approx(0.1)
    assert step(2, gradient=math.inf, loss=0.5) == 0 and scaler.get_scale() == 2
    assert meter.flush() == {"nonfinite/skipped_steps": 0}
    assert step(3, gradient=1.0, loss=math.nan) == 0 and scaler.get_scale() == 1
    assert meter.flush() == {"nonfinite/skipped_steps": 1}
    assert step(4, gradient=1.0, loss=0.5) == pytest.approx(0.1)


def test_all_processes_leave_out_a_step_that_one_of_them_cannot_use(tiny_checkpoint, tmp_path):
    """Only the loss of the second process is NaN, in the second of three steps. Gradients are finite."""
    data = tmp_path / "texts.json"
    data.write_text(json.dumps([{"id": str(n), "conversations": turns(f"What is {n}?", "(1)")} for n in range(4)]))
    output = tmp_path / "run"
    flags = {"on_nonfinite": "skip", "max_steps": 3, "grpo_sample_size": 2}
    launch(2, tiny_checkpoint(initializer_range=0.1), data, output, how={"nan_on_1": True}, **flags)
    rows = [row for row in read_metrics(output) if "loss" in row]
    assert [row["nonfinite/skipped_steps"] for row in rows] == [0, 1, 0]
    trained = {row.step: row.where for row in read_rollouts(output)}
    assert set(trained) == {1, 2, 3}
    assert all(value.isfinite().all() for value in weights(output).values())


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
    with pytest.raises(FloatingPointError, match=said):
        trainer.train()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
