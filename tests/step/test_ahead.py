"""Steps that are sampled ahead: which weights sample which step, what is trained on, and that it can be resumed."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from transformers import TrainerCallback

from qwenvl.config.command_line import parse_args
from qwenvl.grpo.loss import objective_of
from qwenvl.rollout.options import EngineOptions
from qwenvl.run_log.log import read_rollouts
from qwenvl.step import kernels
from qwenvl.train.run.resume import SettingsError
from tests.train.conftest import caught_gradients
from tests.train.conftest import logged as all_logged
from tests.train.copying_engine import with_copying_engine

EPOCH_OF_4 = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "logging_steps": 1}


@pytest.fixture
def engine_of_its_own(monkeypatch):
    """An engine with a copy of the weights, which can sample in the background."""
    with_copying_engine(monkeypatch)


def logged(trainer) -> list[dict]:
    return all_logged(trainer, times=False)


def texts(trainer) -> dict[int, list[str]]:
    steps: dict[int, list[str]] = {}
    for row in read_rollouts(trainer.args.output_dir):
        if row.split == "train":
            steps.setdefault(row.step, []).append(row.completion)
    return steps


class Snapshots(TrainerCallback):
    """The policy before each step, and the steps as they ended."""

    def __init__(self):
        self.policies, self.steps = [], []

    def follow(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_step_begin(self, args, state, control, **kwargs):
        self.policies.append(copy.deepcopy(self.trainer.model))

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(self.trainer.step)


def likelihoods(trainer, policy, experience):
    rollout = experience.rollout
    with torch.no_grad():
        return trainer.logprobs.likelihood.of_rollout(policy, experience.prompts, rollout).logprobs


@pytest.mark.parametrize(
    "depth, versions, staleness",
    [
        (1, [0, 1, 2, 4], [0, 1, 1, 1, 0, 1]),
        (2, [0, 2, 4], [0, 1, 2, 1, 0, 1]),
    ],
)
def test_each_step_is_sampled_by_weights_as_old_as_its_depth_allows(
    make_trainer, engine_of_its_own, depth, versions, staleness
):
    """Epochs of four steps, of which the run has one and a half."""
    trainer = make_trainer(async_rollouts=depth, max_steps=6, learning_rate=3e-2, **EPOCH_OF_4)
    seen = Snapshots().follow(trainer)
    trainer.train()
    engine = trainer.answer.sample.engine.engine
    assert engine.versions == versions
    assert engine.requests == [("sampling-ahead", step - late) for step, late in enumerate(staleness)]
    assert [row["async/staleness"] for row in logged(trainer)] == staleness
    for step, (late, ended) in enumerate(zip(staleness, seen.steps, strict=True)):
        for each, fixed in zip(ended.experiences, ended.fixed, strict=True):
            assert each.staleness == late
            own = likelihoods(trainer, seen.policies[step - late], each)
            assert torch.allclose(own, each.rollout.logprobs, atol=1e-5)
            assert torch.equal(each.sampler_logprobs, each.rollout.logprobs)
            if late:
                now = likelihoods(trainer, seen.policies[step], each)
                assert not torch.allclose(own, now, atol=1e-2), "the weights have moved"
                assert torch.allclose(fixed.old, now, atol=1e-5)
    assert "parity/max" in logged(trainer)[0]
    assert not any(each.name == "sampling-ahead" for each in threading.enumerate())


@pytest.mark.parametrize("correction", ["token_truncate", "none"])
def test_the_gradient_of_completions_of_older_weights_is_corrected_or_clipped(
    make_trainer, engine_of_its_own, correction
):
    """Corrected for, their weight is min(w, bound). Else the ratio reaches back to these weights, and is clipped."""
    own = {"importance_correction": "token_truncate(max=1.02)"}
    if correction == "none":
        own = {"importance_correction": "none", "grpo_epsilon": 0.05}
    trainer = make_trainer(
        async_rollouts=1,
        max_steps=2,
        grpo_alpha=0.7,
        grpo_beta=0.0,
        max_grad_norm=0.0,
        **own,
        **EPOCH_OF_4,
    )
    gradients = caught_gradients(trainer, lr=0.5)
    seen = Snapshots().follow(trainer)
    trainer.train()
    policy, experiences = seen.policies[1], seen.steps[1].experiences
    rows, limited = sum(len(each.advantages) for each in experiences), 0
    for each in experiences:
        assert each.staleness == 1
        ids, mask = each.rollout.completion_ids, each.rollout.completion_mask
        logprobs = trainer.logprobs.likelihood(policy, each.prompts, ids, mask).logprobs
        sampled = each.rollout.logprobs
        loss = 0
        for n, advantage in enumerate(each.advantages.tolist()):
            length = int(mask[n].sum())
            for t in range(length):
                weight = math.exp(logprobs[n, t].item() - sampled[n, t].item())
                if correction != "none":
                    limited += weight > 1.02
                    weight = min(weight, 1.02)
                else:  # beyond the clip a token has no gradient
                    out = (weight > 1.05 and advantage > 0) or (weight < 0.95 and advantage < 0)
                    limited, weight = limited + out, 0.0 if out else weight
                loss = loss - 0.7 * advantage * weight * logprobs[n, t] / length / rows
        loss.backward()
    tokens = sum(int(each.loss_mask.sum()) for each in experiences)
    assert 0 < limited < tokens
    for name, parameter in policy.named_parameters():
        if name in gradients[1]:
            torch.testing.assert_close(parameter.grad, gradients[1][name], rtol=1e-3, atol=1e-6, msg=name)
    row = logged(trainer)[1]
    if correction != "none":
        assert row["sampler/limited_frac"] == pytest.approx(limited / tokens)
    else:
        assert row["ratio/clipped_low_frac"] + row["ratio/clipped_high_frac"] == pytest.approx(limited / tokens)
        assert "ratio/mean" in row and "ratio/mean" not in logged(trainer)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"killed": 2, "resumed_from": 1, "async_rollouts": 2, "importance_correction": "none", "max_steps": 4},
        {"killed": 3, "resumed_from": 2, "async_rollouts": 3, "num_iterations": 2, "max_steps": 6, "save_steps": 2}
        | {"advantage_estimator": "grpo(kl_in_reward=True)"},
    ],
    ids=str,
)
def test_a_resumed_run_trains_on_the_same_completions(whole_and_resumed, engine_of_its_own, tmp_path, settings):
    defaults = {"max_steps": 6, "save_steps": 1, "save_strategy": "steps"}
    whole, resumed = whole_and_resumed(**{**defaults, **settings, **EPOCH_OF_4})
    first = settings["resumed_from"]
    assert (tmp_path / f"cut/checkpoint-{first}/sampled_ahead_0.pt").is_file()
    assert {step: rows for step, rows in texts(whole).items() if step > first} == {
        step: rows for step, rows in texts(resumed).items() if step > first
    }
    assert logged(whole) == logged(resumed)


def test_an_evaluation_in_between_changes_nothing(make_trainer, engine_of_its_own, sop_data, tmp_path):
    """It has the weights of its step. What was asked for before is sampled by the older ones."""
    settings = {**EPOCH_OF_4, "max_steps": 4, "async_rollouts": 2}
    evaluated = {"eval_strategy": "steps", "eval_steps": 3, "eval_dataset_use": str(sop_data)}
    plain = make_trainer(output_dir=str(tmp_path / "plain"), **settings)
    between = make_trainer(output_dir=str(tmp_path / "between"), **settings, **evaluated)
    for each in (plain, between):
        each.train()
    assert texts(plain) == texts(between)
    assert plain.answer.sample.engine.engine.versions == [0, 2]
    assert between.answer.sample.engine.engine.versions == [0, 2, 3, 4]
    assert [row["async/staleness"] for row in logged(between)] == [0, 1, 2, 1]
    other = dict(between.model.named_parameters())
    assert all(torch.equal(parameter, other[name]) for name, parameter in plain.model.named_parameters())


def every_other(completions, id, **columns):
    """A reward that differs within the groups of half of the records."""
    return [float(n % 3) if each in ("clip-1", "clip-2", "text", "image") else 1.0 for n, each in enumerate(id)]


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_run_with_replaced_groups_resumes_the_same(whole_and_resumed, engine_of_its_own, iterations):
    """The engine samples replacements of groups with the weights of the step, in turn.

    A checkpoint between the two steps on the same completions cannot be resumed: with two, every other step is saved.
    """
    settings = {"filter_groups": "total(max_rounds=3)", "functions": [every_other], "async_rollouts": 2}
    saved = {"max_steps": 4 * iterations, "save_steps": iterations, "save_strategy": "steps"}
    killed = {"killed": iterations + 1, "resumed_from": iterations}
    whole, resumed = whole_and_resumed(**killed, **saved, **EPOCH_OF_4, **settings, num_iterations=iterations)
    assert logged(whole) == logged(resumed) and len(logged(whole)) == 4 * iterations
    weights_of_resumed = dict(resumed.model.named_parameters())
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, weights_of_resumed[name]), name
    requests = whole.answer.sample.engine.engine.requests
    now = [version for thread, version in requests if thread == "MainThread"]
    rounds = [row["filter/rounds"] for row in logged(whole) if "filter/rounds" in row]
    assert now == sorted(now) and 0 < sum(rounds) == len(now)


def test_an_error_of_sampling_in_the_background_ends_training(make_trainer, engine_of_its_own):
    trainer = make_trainer(async_rollouts=3, max_steps=4, overwrite_output_dir=True, **EPOCH_OF_4)
    engine = trainer.answer.sample.engine
    engine.engine.fails = 3, ConnectionError("the server is gone")
    ended = []

    class WaitForIt(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            ended.append(state.global_step)
            if state.global_step == 1:
                engine._pending[-1].answer.exception(60)  # waits for it

    trainer.add_callback(WaitForIt())
    with pytest.raises(ConnectionError, match="the server is gone"):
        trainer.train()
    assert 2 not in ended, "it was not needed yet: it is of the third step"
    assert not any(each.name == "sampling-ahead" for each in threading.enumerate()) and engine.waiting == 0
    engine.engine.fails = None
    trainer.train()  # begins anew
    assert [row["async/staleness"] for row in logged(trainer)] == [0, 1, 2, 3]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_second_training_of_a_script_samples_by_the_weights_that_the_first_one_left(
    ahead, make_trainer, engine_of_its_own
):
    """Its first step has the number of the only step whose weights the engine had."""
    trainer = make_trainer(async_rollouts=ahead, max_steps=1, overwrite_output_dir=True, **EPOCH_OF_4)
    trainer.train()
    trainer.train()  # the parity check of its first step would end it
    engine = trainer.answer.sample.engine
    assert (engine.engine if ahead else engine).versions[-2:] == [0, 0]


def test_a_checkpoint_of_other_data_is_refused(make_trainer, engine_of_its_own, tmp_path):
    settings = {**EPOCH_OF_4, "async_rollouts": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=3, **settings).train()
    other = make_trainer(max_steps=3, **settings)
    for record in other.train_dataset.records:
        object.__setattr__(record, "id", record.id + "-changed")
    with pytest.raises(RuntimeError, match="of other prompts than those of this step"):
        other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    with pytest.raises(SettingsError, match="--async_rollouts: 2 -> 1"):
        make_trainer(max_steps=3, **{**settings, "async_rollouts": 1}).train(
            resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1")
        )


def test_the_policys_own_engine_and_a_second_group_are_refused(make_trainer, monkeypatch):
    with pytest.raises(ValueError, match=r"--async_rollouts 1 needs --rollout_engine vllm_server"):
        make_trainer(async_rollouts=1)
    monkeypatch.setattr(EngineOptions, "engine_has_own_weights", True)
    with pytest.raises(ValueError, match=r"--temporal_contrast .*sampled ahead"):
        make_trainer(temporal_contrast=True, async_rollouts=1)
    monkeypatch.setattr(kernels, "server_engine", lambda args, policy, local: local)
    with pytest.raises(ValueError, match=r"--async_rollouts 1: SharedPrefixEngine can't sample while"):
        make_trainer(async_rollouts=1)


def test_older_weights_are_corrected_by_token_weights_or_by_the_ratio(tmp_path, monkeypatch):
    def args(*flags):
        needed = ["--model_name_or_path", "m", "--dataset_use", "d.json", "--output_dir", str(tmp_path), "--use_cpu"]
        return parse_args([*needed, *flags])

    assert objective_of(args(), 8).weighting.correction == "none"
    monkeypatch.setattr(EngineOptions, "engine_has_own_weights", True)
    assert objective_of(args(), 8).weighting.correction == "none"
    ahead = args("--async_rollouts", "2")
    assert objective_of(ahead, 8).weighting.correction == "token_truncate" and not ahead.ratio_from_sampler
    for flags in (["--importance_correction", "none"], ["--loss_type", "vespo"]):
        back = args("--async_rollouts", "2", *flags)
        assert objective_of(back, 8).weighting.correction == "none" and back.ratio_from_sampler
    assert args("--async_rollouts", "2", "--importance_correction", "none", "--grpo_epsilon", "0.1").grpo_epsilon == 0.1
    with pytest.raises(SystemExit):
        args("--async_rollouts", "2", "--grpo_epsilon", "0.1")


def test_a_script_that_asks_for_a_loss_has_its_prompts_sampled_now(make_trainer, engine_of_its_own):
    trainer = make_trainer(async_rollouts=2)
    trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
    assert trainer.answer.sample.engine.engine.requests == [("MainThread", None)]
    assert [each.staleness for each in trainer.step.experiences] == [0]
