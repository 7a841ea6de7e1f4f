"""The parts of a run: the data sets that it may be given, and the rewards that its command line names."""

import shutil

import pytest
from transformers import TrainingArguments

from qwenvl import GRPOConfig, GRPOTrainer, WarmupConfig, WarmupTrainer
from qwenvl.config.command_line import parse_args
from qwenvl.data.errors import RecordError
from qwenvl.rewards.table import TABLE
from qwenvl.step.assemble import build_rewards
from qwenvl.train.assemble import build_policy


def test_several_evaluation_data_sets_have_metrics_of_their_own(make_trainer, sop_data):
    train = make_trainer().train_dataset
    trainer = make_trainer(datasets=[train, {"same": train, "file": sop_data}])
    metrics = trainer.evaluate()
    assert metrics["eval_same_total_reward_n"] == metrics["eval_file_total_reward_n"] == len(train)


def test_a_generation_config_that_could_not_be_saved_is_refused_before_training(
    make_trainer, tiny_checkpoint, tmp_path
):
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "checkpoint")
    (folder / "generation_config.json").write_text('{"temperature": 0.0001, "top_k": 1}')
    with pytest.raises(ValueError, match=rf"^{folder}/generation_config.json: .*temperature.*do_sample[^\n]*$"):
        make_trainer(model=str(folder))


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_reward_table_can_be_named_on_the_command_line(name, tmp_path):
    needed = ["--model_name_or_path", "m", "--dataset_use", "d.json", "--output_dir", str(tmp_path), "--use_cpu"]
    text = f"{name}(base_url='http://localhost:9', model='m')" if name in ("judge", "caption_answers") else name
    rubric = build_rewards(parse_args([*needed, "--reward_funcs", text]), None, None)
    assert rubric.names == (name,)
    rubric.close()


def test_bad_records_are_reported_before_the_weights_are_loaded(tiny_checkpoint, write_rows, make_row, monkeypatch):
    monkeypatch.setattr("qwenvl.train.assemble.build_policy", lambda *_: pytest.fail("the weights were loaded"))
    rows = {"no such file": make_row(prompt="<video>", video="gone.mp4"), "0 <video> tags": make_row(video="a.mp4")}
    for message, row in rows.items():
        args = GRPOConfig(output_dir="run", dataset_use=str(write_rows([row])), use_cpu=True)
        with pytest.raises(RecordError, match=message):
            GRPOTrainer(str(tiny_checkpoint()), args)


def test_a_wrong_name_of_a_layer_does_not_wait_for_the_weights(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("qwenvl.train.assemble.loaded_model", lambda *_, **__: pytest.fail("the weights were loaded"))
    config = GRPOConfig(str(tmp_path), use_cpu=True, lora_enable=True, lora_targets=["qproj"])
    with pytest.raises(ValueError, match="--lora_targets qproj"):
        build_policy(str(tiny_checkpoint()), config)


def test_arguments_of_another_class_are_refused_by_their_type(tmp_path):
    with pytest.raises(TypeError, match=r"expected a GRPOConfig as args, got dict: GRPOConfig\("):
        GRPOTrainer("model", {"output_dir": str(tmp_path)})
    with pytest.raises(TypeError, match="expected a GRPOConfig as args, got WarmupConfig"):
        GRPOTrainer("model", WarmupConfig(str(tmp_path), use_cpu=True))
    with pytest.raises(TypeError, match=r"expected a WarmupConfig as args, got transformers\.TrainingArguments"):
        WarmupTrainer("model", TrainingArguments(str(tmp_path), use_cpu=True))
