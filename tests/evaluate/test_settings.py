"""What command lines mean: models, runs, adapters, the settings that come with them, and settings files."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import save_file

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.records.parse import ReadOptions
from qwenvl.evaluate import respondent as respondent_module
from qwenvl.evaluate import settings as settings_module
from qwenvl.evaluate.protocol import fingerprint, trained_otherwise
from qwenvl.evaluate.settings import config_for, evaluation_request, named_models, probe_request
from qwenvl.run_log.log import RunLog

FLAGS = ("--use_cpu", "--generation_max_length", "4")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder as training leaves it, without weights."""
    folder = tmp_path / "runs" / "sop"
    settings = {"video_max_frames": 6, "base_interval": 0.5, "reward_funcs": ["count"], "generation_temperature": 0.9}
    settings |= {"chat_template_kwargs": {"enable_thinking": False}, "stop_strings": ["</answer>"], "max_steps": 7}
    config = GRPOConfig(str(folder), model_name_or_path="base", grpo_sample_size=6, **settings)
    RunLog(folder).write_config(config.to_dict())
    for each in (folder, folder / "checkpoint-7"):
        each.mkdir(exist_ok=True)
        (each / "config.json").write_text("{}")
        (each / "model.safetensors").write_bytes(b"")
    return folder


def test_the_run_of_a_model_gives_its_settings(run):
    for model in (run, run / "checkpoint-7"):
        asked = evaluation_request(["org/base", str(model), "data.json", "--samples", "4", "--video_max_frames", "8"])
        config = asked.config
        assert asked.settings_of == str(run) and (config.dataset_use, config.max_steps) == ("data.json", -1)
        assert (config.video_max_frames, config.base_interval, config.reward_funcs) == (8, 0.5, ["count"])
        assert (config.generation_temperature, config.stop_strings) == (0.9, ["</answer>"])
        assert config.template_arguments == {"enable_thinking": False} and config.on_bad_sample == "skip"
        assert config.grpo_sample_size == GRPOConfig.grpo_sample_size
    assert evaluation_request(["org/base", "data.json"]).settings_of is None
    rated = evaluation_request([str(run), "data.json", "--video_fps", "2"]).config  # the other way to say base_interval
    assert (rated.video_fps, rated.base_interval) == (2, FrameOptions.base_interval)


def test_a_settings_file_takes_the_place_of_the_run(run, tmp_path):
    (tmp_path / "run.yaml").write_text("video_max_frames: 4\nmax_steps: 9\nmodel_name_or_path: other\n")
    asked = evaluation_request([str(run), "data.json", "--config", str(tmp_path / "run.yaml"), "--json"])
    assert (asked.config.video_max_frames, asked.config.base_interval) == (4, FrameOptions.base_interval)
    assert asked.settings_of == str(tmp_path / "run.yaml") and asked.options.json
    assert [model.path for model in asked.models] == [str(run)]


def test_models_are_named_by_what_tells_them_apart(run):
    words = ["org/base", str(run), f"{run}/checkpoint-7/"]
    assert [model.name for model in named_models(words)] == ["base", "sop", "sop/checkpoint-7"]
    assert [model.name for model in named_models(["a/base", "b/base"])] == ["base", "b/base"]
    assert [model.run for model in named_models(words)] == [None, str(run), str(run)]
    with pytest.raises(ValueError, match=r"MODEL .*sop is given twice"):
        named_models([str(run), f"{run}/"])
    (run / "model.safetensors").unlink()
    save_file({}, run / "checkpoint-7" / "model.safetensors")
    [newest] = named_models([str(run)])  # a run that goes on has its newest whole checkpoint asked
    assert (newest.name, newest.path, newest.run) == ("sop/checkpoint-7", f"{run}/checkpoint-7", str(run))


def test_the_system_turn_of_a_run_is_its_text_and_not_a_file_that_may_be_gone(run):
    config = json.loads((run / "run.json").read_text())
    config["config"]["system"] = "prompts/gone.txt"
    (run / "run.json").write_text(json.dumps(config))
    text = "Be brief. " * 40  # longer than a file's name may be
    PromptSettings(FrameOptions(), PromptOptions(), system=text).save(run)
    assert evaluation_request([str(run), "data.json"]).config.system == text
    assert ReadOptions.of(evaluation_request([str(run), "data.json"]).config).system == text


PLACES = ["model", "data.json"]


def test_words_and_flags():
    request = probe_request([*PLACES, "--samples", "16", "--reward_funcs", "count", "format", "--seed=3"])
    config, options = request.config, request.options
    assert (config.model_name_or_path, config.dataset_use) == ("model", "data.json")
    assert (config.reward_funcs, config.seed, options.samples, options.limit) == (["count", "format"], 3, 16, 200)
    assert request.flags == ["--reward_funcs", "count", "format", "--seed=3"]
    assert config.on_bad_sample == "skip" and config.on_long_prompt == "error"
    assert probe_request([*PLACES, "--max_prompt_length", "99"]).config.on_long_prompt == "skip"


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "model_name_or_path: base\ndataset_use: sop.json\noutput_dir: runs/sop\nmax_steps: 300\ngrpo_beta: 0.02\n"
        "deepspeed: zero3.json\ntune_mm_vision: true\nvideo_max_frames: 16\non_bad_sample: error\n"
        "train_sampling_strategy: group_by_length\nlora_enable: true\nlora_r: 8\n"
    )
    return path


@pytest.mark.parametrize("given", [lambda path: [str(path)], lambda path: ["--config", str(path)]])
def test_what_training_alone_reads_is_passed_over_in_a_file(given, run_file):
    request = probe_request([*given(run_file), "--seed", "5"])
    config = request.config
    assert (config.model_name_or_path, config.dataset_use, config.video_max_frames) == ("base", "sop.json", 16)
    assert (config.max_steps, config.grpo_beta, config.lora_enable) == (-1, GRPOConfig.grpo_beta, False)
    assert config.on_bad_sample == "skip" and config.train_sampling_strategy == "random"
    assert request.options.output_dir is None
    assert (request.file, request.words, request.flags) == (run_file, [], ["--seed", "5"])


def test_a_file_whose_run_begins_with_other_weights(run_file):
    run_file.write_text("model_name_or_path: base\ndataset_use: sop.json\nstart_from_weights: runs/a\n")
    assert probe_request([str(run_file)]).config.model_name_or_path == "runs/a"
    assert probe_request([*PLACES, "--config", str(run_file)]).config.model_name_or_path == "model"


def test_what_a_model_was_trained_with_is_told_where_it_differs(tmp_path):
    saved = PromptSettings(FrameOptions(video_max_frames=16), PromptOptions(max_pixels=999_999), system="Be brief.")
    saved.save(tmp_path)
    config = GRPOConfig(str(tmp_path), video_max_frames=4)
    assert trained_otherwise(str(tmp_path), config) == [
        ("video_max_frames", 16, 4),
        ("max_pixels", 999_999, PromptOptions.max_pixels),
        ("system", "Be brief.", None),
    ]
    assert trained_otherwise("org/base", config) == []


def test_a_fingerprint_tells_weights_apart(tiny_checkpoint, tmp_path):
    one, other = tiny_checkpoint(initializer_range=0.1), tiny_checkpoint(initializer_range=0.1, seed=1)
    assert fingerprint(str(one)) == fingerprint(str(one)) != fingerprint(str(other))
    assert fingerprint("org/base") is None
    large = tmp_path / "model.safetensors"
    large.write_bytes(bytes(70 * 65536))
    before = fingerprint(str(tmp_path))
    large.write_bytes(bytes(70 * 65536 - 1) + b"x")  # the last byte of a file that is read in pieces
    assert fingerprint(str(tmp_path)) != before


@pytest.mark.parametrize("name", ["system", "prompt_template"])
def test_what_stands_beside_weights_cannot_become_a_flag(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    PromptSettings(FrameOptions(), PromptOptions()).save(tmp_path)
    saved = json.loads((tmp_path / "prompt_settings.json").read_text())
    saved[name] = ["a", "--external_plugins", "evil.py"]
    (tmp_path / "prompt_settings.json").write_text(json.dumps(saved))
    [model] = named_models([str(tmp_path)])
    with pytest.raises(ValueError, match=f"{name} must be a text or null, got list"):
        config_for(model, [])


def test_a_word_of_a_list_of_a_run_cannot_become_a_flag(run):
    config = json.loads((run / "run.json").read_text())
    config["config"]["stop_strings"] = ["a", "--external_plugins", "evil.py"]
    (run / "run.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="stop_strings: '--external_plugins' reads as a flag"):
        evaluation_request([str(run), "data.json"])


def test_what_scores_nothing_takes_no_rewards_of_a_run(run):
    config = json.loads((run / "run.json").read_text())
    config["config"]["external_plugins"] = ["evil.py"]
    (run / "run.json").write_text(json.dumps(config))
    [model] = named_models([str(run)])
    assert config_for(model, [], scores=False).external_plugins is None
    assert config_for(model, []).external_plugins == ["evil.py"]


def test_a_question_whose_list_of_steps_nobody_fills_in_is_refused(tmp_path):
    (tmp_path / "question.txt").write_text("Which?\n{steps}")
    with pytest.raises(ValueError, match=r"question\.txt: .*\{steps\}.*from-folder"):
        settings_module.record_of([], str(tmp_path / "question.txt"), None, None)


def test_a_file_gets_a_line_now_and_then_in_place_of_a_bar(monkeypatch, capsys):
    seconds = iter([0.0, 4.0, 11.0, 11.0, 15.0])  # the start, each item, and after a line once more
    monkeypatch.setattr(respondent_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert list(respondent_module.with_progress("abc", 3, "run")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "run: 2 of 3 prompts\n"
