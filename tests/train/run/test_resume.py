"""A resumed run takes its state from the checkpoint, refuses what does not fit, and does nothing twice."""

import json
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model.loading import MisfitError
from qwenvl.run_log.log import RunLog, read_config, read_metrics, read_rollouts
from qwenvl.run_log.run import read_runs
from qwenvl.train.run.checkpoints import seal
from qwenvl.train.run.resume import SettingsError, require_resumable, shared_settings
from tests.train.conftest import turns

SAVING = {"save_strategy": "steps", "save_steps": 1}


@pytest.fixture
def checkpoint(make_trainer, tmp_path):
    """``checkpoint(**settings)`` -> the checkpoint of a run that ended after its first step."""

    def make(**settings) -> str:
        make_trainer(**SAVING | settings, max_steps=1).train()
        return str(tmp_path / "run" / "checkpoint-1")

    return make


def test_settings_that_would_have_no_effect_are_refused_and_leave_the_folder_as_it_is(checkpoint, make_trainer):
    saved = checkpoint(data_seed=3)
    rows = read_metrics(saved + "/..")
    now = {"seed": 4, "data_seed": 4, "train_sampling_strategy": "sequential", "learning_rate": 1e-6}
    now |= {"weight_decay": 0.1, "tune_mm_mlp": False, "gradient_accumulation_steps": 2}
    with pytest.raises(SettingsError, match="can't change these settings:\n  --seed: 3 -> 4") as error:
        make_trainer(**SAVING | now).train(resume_from_checkpoint=saved)
    for line in (
        "--data_seed: 3 -> 4",
        "--train_sampling_strategy: random -> sequential",
        "--learning_rate: 0.001 -> 1e-06",
        "--weight_decay: 0.0 -> 0.1",
        "--tune_mm_mlp: True -> False",
        "prompts of an optimizer step: 1 -> 2",
    ):
        assert f"\n  {line}" in str(error.value)
    assert str(error.value).endswith("--start_from_weights") and read_metrics(saved + "/..") == rows


@pytest.mark.parametrize(
    ("settings", "changed", "refused"),
    [
        ({"lr_scheduler_type": "greedy"}, {"lr_scheduler_type": "linear"}, "--lr_scheduler_type: greedy -> None"),
        ({"lr_scheduler_type": "greedy"}, {"lr_scheduler_kwargs": {"patience": 3}}, r"--lr_scheduler_kwargs: \{\} -> "),
        ({"lr_scheduler_type": "linear"}, {"lr_scheduler_type": "cosine"}, None),
        ({"entropy_target": 0.5, "entropy_coef": 0.1}, {"entropy_coef": 0.3}, r"--entropy_coef: 0\.1 -> 0\.3"),
        ({"entropy_target": 0.5, "entropy_coef": 0.1}, {"entropy_target": 0.7}, None),
    ],
)
def test_settings_whose_state_is_restored_cannot_be_changed(settings, changed, refused, tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True)
    vars(args).update(settings)
    entry = {"args": {}, "attributes": {"shared": shared_settings(args)}}
    state = {"global_step": 1, "stateful_callbacks": {"Resumed": entry}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    require_resumable(tmp_path, args)
    vars(args).update(changed)
    with nullcontext() if refused is None else pytest.raises(SettingsError, match=refused):
        require_resumable(tmp_path, args)


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_of_another_model_is_refused_in_a_line(lora, make_trainer, tiny_checkpoint, tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 1, "generation_max_length": 2, "lora_enable": lora}
    make_trainer(max_steps=1, **saved).train()
    with pytest.raises(MisfitError) as error:
        make_trainer(model=str(tiny_checkpoint("qwen3_vl")), **saved).train(True)
    told = str(error.value)
    fits = "does not fit the model, which may be another one: size " if lora else "its weight files do not fit"
    assert told.startswith(f"{tmp_path}/run/checkpoint-1: {fits}") and "\n" not in told


def test_a_resumed_adapter_ends_as_one_of_a_whole_run(whole_and_resumed):
    whole, _ = whole_and_resumed(
        killed=2, resumed_from=1, **SAVING, lora_enable=True, lora_r=2, learning_rate=0.05, save_total_limit=3
    )
    learned = [p for name, p in whole.model.named_parameters() if "lora_B" in name]
    assert learned and all(p.requires_grad for p in learned) and any(p.abs().max() > 0 for p in learned)


def test_other_layers_with_adapters_are_refused_when_a_run_resumes_or_begins_with_them(make_trainer, tmp_path):
    adapters = {"generation_max_length": 2, "lora_enable": True, "tune_mm_mlp": False}
    make_trainer(max_steps=1, **SAVING, **adapters, lora_targets=["q_proj", "k_proj"]).train()
    folder = tmp_path / "run" / "checkpoint-1"
    told = r"adapter_model\.safetensors: \d+ of \d+ weights of the adapter are missing, such as \S*v_proj\.lora_A"
    other = adapters | {"lora_targets": ["q_proj", "k_proj", "v_proj"]}
    with pytest.raises(MisfitError, match=told):
        make_trainer(**SAVING, **other).train(resume_from_checkpoint=str(folder))
    with pytest.raises(MisfitError, match=rf"--start_from_weights {folder}/{told}"):
        make_trainer(output_dir=str(tmp_path / "second"), start_from_weights=str(folder), **other)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ([], "expected an object, got list"),
        ({}, "global_step must be at least 0, got none"),
        ({"global_step": -3}, "global_step must be at least 0, got -3"),
        ({"global_step": "x"}, 'global_step must be an integer, got "x"'),
        ({"global_step": 1, "log_history": 5}, "log_history must be a list or null, got 5"),
        ({"global_step": 1, "stateful_callbacks": [1]}, "stateful_callbacks must be an object or null"),
        ({"global_step": 1, "stateful_callbacks": {"Resumed": {}}}, "Resumed must have the objects args and attr"),
        ({"global_step": 1, "newer": 5}, "unknown entry 'newer', as a newer version of transformers"),
    ],
    ids=str,
)
def test_a_state_that_the_trainer_can_not_read_is_told_in_a_line(state, problem, tmp_path):
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps(state))
    with pytest.raises(ValueError) as error:
        require_resumable(tmp_path, GRPOConfig(str(tmp_path), use_cpu=True))
    assert str(error.value).startswith(f"{file}: ") and problem in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["{}", "[]", '{"config": null}', '{"config": {}, "earlier_starts": 5}', "{"])
def test_a_damaged_run_json_is_said_and_stops_no_resume(content, tmp_path, caplog):
    args = GRPOConfig(str(tmp_path), use_cpu=True)
    entry = {"args": {}, "attributes": {"shared": shared_settings(args)}}
    (tmp_path / "checkpoint-1").mkdir()
    state = {"global_step": 1, "stateful_callbacks": {"Resumed": entry}}
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "run.json").write_text(content)
    require_resumable(tmp_path / "checkpoint-1", args)
    (told,) = [line for line in caplog.messages if "run.json: " in line]
    assert "other settings are not compared" in told
    RunLog(tmp_path).write_config({"seed": 1}, resumed_at=1)
    assert read_config(tmp_path)["earlier_starts"] == []


def test_other_settings_are_taken_by_a_resumed_run_and_reported(checkpoint, make_trainer, caplog):
    saved = checkpoint(per_device_train_batch_size=2)
    caplog.clear()
    taken = {"gradient_accumulation_steps": 2, "data_seed": 3, "max_grad_norm": 0.5, "lr_scheduler_type": "constant"}
    taken |= {"loss_type": "dapo", "generation_temperature": 0.5}
    trainer = make_trainer(**SAVING | taken)
    trainer.train(resume_from_checkpoint=saved)
    assert trainer.state.global_step == 2
    (told,) = [line for line in caplog.messages if "with other settings" in line]
    assert "--loss_type grpo -> dapo" in told and "--per_device_train_batch_size 2 -> 1" in told
    assert read_config(saved + "/..")["config"]["loss_type"] == "dapo"


def test_a_second_run_of_a_script_leaves_the_first_as_it_is(make_trainer, tmp_path, monkeypatch, capfd):
    def moves(completions, **columns):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        os.chdir(tmp_path / "elsewhere")
        return [0.0] * len(completions)

    monkeypatch.chdir(tmp_path)
    here = {**SAVING, "output_dir": "trainer_output", "max_steps": 1}
    make_trainer(functions=[moves], **here).train()
    folder = tmp_path / "trainer_output"
    assert f"writing to {folder}" in capfd.readouterr().err
    assert list(read_rollouts(folder)) and not any((tmp_path / "elsewhere").iterdir())
    (run,) = read_runs([folder])
    assert run.finished == 1
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match=r"checkpoint-1: a checkpoint of an earlier run"):
        make_trainer(**here).train()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_checkpoint_without_the_settings_of_a_run_is_refused(checkpoint, make_trainer):
    path = Path(checkpoint()) / "trainer_state.json"
    state = json.loads(path.read_text())
    assert state["stateful_callbacks"].pop("Resumed")["attributes"]["shared"]["seed"] == 3
    path.write_text(json.dumps(state))
    seal(path.parent)
    with pytest.raises(SettingsError, match=f"has no settings of a run .*--start_from_weights {path.parent}"):
        make_trainer(**SAVING).train(resume_from_checkpoint=str(path.parent))


def test_a_resumed_run_says_that_its_data_have_changed(make_trainer, tmp_path, caplog):
    path = tmp_path / "data.json"

    def trained(to, solutions, resumed=True):
        rows = [{"id": str(k), "conversations": turns(f"Question {k}?", text)} for k, text in enumerate(solutions)]
        path.write_text(json.dumps(rows))
        caplog.clear()
        make_trainer(**SAVING, dataset_use=str(path), max_steps=to).train(resumed or None)
        return [line for line in caplog.messages if "other training data" in line]

    assert trained(1, ["a", "b", "c"], resumed=False) == []
    assert trained(2, ["a", "b", "c"]) == []
    (told,) = trained(3, ["a", "other", "c"])
    assert "some of their 3 ids, prompts or solutions differ" in told
    (told,) = trained(4, ["a", "other"])
    assert "(records 3 -> 2)" in told
    state = tmp_path / "run" / "checkpoint-4" / "trainer_state.json"
    saved = json.loads(state.read_text())
    assert saved["stateful_callbacks"]["Resumed"]["attributes"].pop("data")["records"] == 2
    state.write_text(json.dumps(saved))
    seal(state.parent)
    assert trained(5, ["a"]) == [], "a checkpoint of an earlier version has no fingerprint"


def test_a_resumed_run_says_that_its_reward_file_has_changed(make_trainer, tmp_path, caplog):
    plugin = tmp_path / "mine.py"
    code = "def count(completions, **columns):\n    return [float(len(text)) for text in completions]\n"

    def trained(to, text, resumed=True):
        plugin.write_text(text)
        caplog.clear()
        make_trainer(**SAVING, functions=None, reward_funcs=[f"{plugin}:count"], max_steps=to).train(resumed or None)
        return [line for line in caplog.messages if "another version of" in line]

    assert trained(1, code, resumed=False) == []
    assert trained(2, code) == []
    assert trained(3, code + "# other\n") == ["resumed with another version of mine.py than that of the checkpoint"]


@pytest.mark.parametrize("epochs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_finished_run_trains_no_step_and_writes_nothing_again(epochs, make_trainer, sop_data, tmp_path, caplog):
    # An epoch has eight steps: one run ends in its midst, the other after one and a half.
    steps = 12 if epochs else 3
    length = {"num_train_epochs": 1.5} if epochs else {}
    settings = {"save_strategy": "steps", "save_steps": steps, "eval_strategy": "epoch", "max_steps": 3, **length}
    settings |= {"eval_dataset_use": f"{sop_data}%25", "lr_scheduler_type": "constant"}
    settings |= {"max_steps": -1} if epochs else {}
    first = make_trainer(**settings)
    first.train()
    assert first.state.global_step == steps
    evaluated = [row for row in read_metrics(tmp_path / "run") if "eval_total_reward" in row]
    rollouts = list(read_rollouts(tmp_path / "run"))
    again = make_trainer(**settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{steps}"))
    assert again.state.global_step == steps and "the run is finished" in caplog.text
    assert not (tmp_path / "run" / f"checkpoint-{steps + 1}").exists()
    for (name, ours), before in zip(again.model.named_parameters(), first.model.parameters(), strict=True):
        assert torch.equal(ours, before), name
    assert [row for row in read_metrics(tmp_path / "run") if "eval_total_reward" in row] == evaluated
    assert list(read_rollouts(tmp_path / "run")) == rollouts


def test_a_run_that_went_back_is_not_resumed_from_what_it_has_left(make_trainer, tmp_path, capfd):
    """``--resume auto`` takes the newest checkpoint, and later ones of the weights before are newer in number alone."""
    folder = tmp_path / "run"
    make_trainer(**SAVING, max_steps=3).train()
    back = make_trainer(**SAVING, max_steps=2, grpo_beta=0.5)
    back.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    names = ["abandoned-checkpoint-2", "abandoned-checkpoint-3", "checkpoint-1", "checkpoint-2"]
    assert sorted(each.name for each in folder.glob("*checkpoint-*")) == names
    said = "goes back to step 1; the later checkpoints, of other weights, are now abandoned-checkpoint-2, abandoned-"
    assert said in capfd.readouterr().err
    again = make_trainer(**SAVING, max_steps=4, grpo_beta=0.5, resume="auto")
    again.train()
    assert read_config(folder)["resumed_at"] == 2
    assert [row["step"] for row in read_metrics(folder, split="train") if "loss" in row] == [1, 2, 3, 4]
    make_trainer(**SAVING, max_steps=2).train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    assert (folder / "abandoned-checkpoint-2-2").is_dir() and (folder / "abandoned-checkpoint-4").is_dir()


def test_the_start_is_evaluated_once(make_trainer, sop_data, tmp_path):
    settings = SAVING | {"eval_dataset_use": str(sop_data), "eval_on_start": True, "eval_strategy": "steps"}
    settings |= {"eval_steps": 1}
    make_trainer(**settings, max_steps=1).train()
    resumed = make_trainer(**settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert resumed.args.eval_on_start, "what the user set is as it was"
    steps = [row["step"] for row in read_metrics(tmp_path / "run") if "eval_total_reward" in row]
    assert steps == [0, 1, 2]
    assert Counter(row.step for row in read_rollouts(tmp_path / "run", split="eval")) == {0: 8, 1: 8, 2: 8}


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(make_trainer, sop_data, tmp_path):
    settings = {"eval_dataset_use": str(sop_data), "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 9}
    dying = make_trainer(**settings, functions=[broken])
    with pytest.raises(ValueError, match="died"):
        dying.train()
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0]
    again = make_trainer(**settings)
    again.train()
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "eval_total_reward" in row] == [0, 2]
    assert Counter(row.step for row in read_rollouts(tmp_path / "run", split="eval")) == {0: 8, 2: 8}


def broken(completions, trainer_state, **columns):
    """A reward of 0 in evaluation, which scores one completion of a prompt; it fails in training."""
    if len(completions) > 1:
        raise ValueError("died")
    return [0.0]


class Killed(Exception):
    """Ends a run as a signal that nobody can catch would."""


class KillFirstStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise Killed


def test_an_evaluation_before_training_stays(make_trainer, sop_data, tmp_path):
    killed = make_trainer(eval_dataset_use=str(sop_data), callbacks=[KillFirstStep()])
    killed.evaluate()
    with pytest.raises(Killed):
        killed.train()
    # The second process of the script finds what the first one left.
    trainer = make_trainer(eval_dataset_use=str(sop_data))
    trainer.evaluate()
    trainer.train()
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "eval_total_reward" in row] == [0]
    assert Counter(row.step for row in read_rollouts(tmp_path / "run", split="eval")) == {0: 8}


def rows_of(folder):
    return (folder / "metrics.jsonl").read_bytes(), (folder / "rollouts" / "rank-0.jsonl").read_bytes()


def test_a_second_call_of_train_replaces_no_rows(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.train()
    before = rows_of(tmp_path / "run")
    with pytest.raises(FileExistsError, match=r"run: .* 2 steps .* this trainer .*overwrite_output_dir=True"):
        trainer.train()
    # A cell of a notebook that makes the trainer too.
    with pytest.raises(FileExistsError, match=r"run: .* 2 steps.* another output_dir.*overwrite_output_dir=True"):
        make_trainer().train()
    assert rows_of(tmp_path / "run") == before
    trained = make_trainer(model=trainer.model, output_dir=str(tmp_path / "second"))
    trained.train()
    assert rows_of(tmp_path / "run") == before
    trained.args.overwrite_output_dir = True
    trained.train()
    assert [row["step"] for row in read_metrics(tmp_path / "second") if "loss" in row] == [1, 2]


def test_a_trainer_that_was_interrupted_does_not_begin_anew_with_its_weights(make_trainer, tmp_path):
    trainer = make_trainer(callbacks=[KillFirstStep()])
    with pytest.raises(Killed):
        trainer.train()
    with pytest.raises(FileExistsError, match=r"run: .* 1 step that this trainer has trained"):
        trainer.train()
    make_trainer().train()  # as the second process of a script that was killed


@pytest.mark.parametrize("lora", [False, True])
def test_a_new_run_begins_with_the_weights_of_another(lora, make_trainer, tmp_path):
    adapters = {"lora_enable": True, "lora_r": 4, "lora_alpha": 8} if lora else {}
    first = make_trainer(**SAVING | adapters)
    first.train()
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    second = make_trainer(output_dir=str(tmp_path / "second"), start_from_weights=checkpoint, seed=5, **adapters)
    untrained = make_trainer(output_dir=str(tmp_path / "third"), **adapters)
    learning = {name: p.clone() for name, p in first.model.named_parameters() if p.requires_grad}
    for name, parameter in second.model.named_parameters():
        assert parameter.requires_grad == (name in learning), name
        if name in learning:
            assert torch.equal(parameter, learning[name]), name
    if not lora:  # the reference is the model that the first run began with
        with second.reference.model() as reference:
            for (name, ours), theirs in zip(reference.named_parameters(), untrained.model.parameters(), strict=True):
                assert torch.equal(ours, theirs), name
    second.train()
    assert second.state.global_step == 2
    assert any(not torch.equal(p, learning[name]) for name, p in second.model.named_parameters() if name in learning)
