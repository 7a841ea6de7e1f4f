"""The meaning of command lines: models, runs, adapters, the settings that come with them, and settings files."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import save_file

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.tool_options import ToolOptions
from qwenvl.evaluate import respondent as respondent_module
from qwenvl.evaluate import settings as settings_module
from qwenvl.evaluate.models import named_models
from qwenvl.evaluate.protocol import fingerprint, settings_otherwise
from qwenvl.evaluate.requests import evaluation_request, probe_request
from qwenvl.evaluate.settings import config_for
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
    drawn = evaluation_request([str(run), "data.json", "--frame_counts", "4,8"]).config
    assert (drawn.counts, drawn.base_interval) == ([4, 8], FrameOptions.base_interval)


@pytest.mark.parametrize("typed", [("video_max_frames", "8"), ("video_fps", "3"), ("base_interval", "1.5")])
def test_a_typed_number_of_frames_takes_the_place_of_the_runs_counts(run, typed):
    config = GRPOConfig(str(run), model_name_or_path="base", frame_counts="4,6")
    RunLog(run).write_config(config.to_dict())
    assert evaluation_request([str(run), "data.json"]).config.counts == [4, 6]
    name, value = typed
    asked = evaluation_request([str(run), "data.json", f"--{name}", value]).config
    assert asked.counts == [] and getattr(asked, name) == float(value)


def test_other_rewards_do_not_get_the_weights_of_the_run(run):
    config = GRPOConfig(str(run), model_name_or_path="base", reward_funcs=["format", "iou"], reward_weights=[0.3, 0.7])
    RunLog(run).write_config(config.to_dict())
    assert evaluation_request([str(run), "data.json"]).config.reward_weights == [0.3, 0.7]
    asked = evaluation_request([str(run), "data.json", "--reward_funcs", "timeline_iou"]).config
    assert (asked.reward_funcs, asked.reward_weights) == (["timeline_iou"], None)
    own = evaluation_request([str(run), "data.json", "--reward_weights", "1", "0"]).config
    assert (own.reward_funcs, own.reward_weights) == (["format", "iou"], [1.0, 0.0])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tools", "{folder}/my code.py:look_up"),
        ("reward_funcs", "verl:{folder}/x.py:right"),
        ("reward_funcs", "cosine(correctness_func={folder}/x.py:right)"),
        ("external_plugins", "{folder}/checkpoint-7/../x.py"),
    ],
)
def test_code_in_the_folder_of_a_model_is_run_only_where_a_flag_names_it(run, setting, value, capsys):
    value = value.format(folder=run)
    # As a file that somebody has sent: it was not written by these classes.
    document = json.loads((run / "run.json").read_text())
    document["config"][setting] = [value]
    (run / "run.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"code in the model's own folder, --{setting}"):
        evaluation_request([str(run), "data.json"])
    own = str(run.parent / "mine.py:f") if setting != "external_plugins" else str(run.parent / "mine.py")
    asked = evaluation_request([str(run), "data.json", f"--{setting}", own])
    assert getattr(asked.config, setting) == [own]
    document["config"][setting] = [own]
    (run / "run.json").write_text(json.dumps(document))
    evaluation_request([str(run), "data.json"])
    assert f"as the run {run} was trained: --{setting} {own}" in capsys.readouterr().err


def test_a_settings_file_takes_the_place_of_the_run(run, tmp_path):
    (tmp_path / "run.yaml").write_text("video_max_frames: 4\nmax_steps: 9\nmodel_name_or_path: other\n")
    asked = evaluation_request([str(run), "data.json", "--config", str(tmp_path / "run.yaml"), "--json"])
    assert (asked.config.video_max_frames, asked.config.base_interval) == (4, FrameOptions.base_interval)
    assert asked.settings_of == str(tmp_path / "run.yaml") and asked.options.json
    assert [model.path for model in asked.models] == [str(run)]


def test_models_are_named_by_the_part_of_the_path_that_tells_them_apart(run):
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


def test_two_folders_of_one_name_are_told_apart_where_one_is_the_current_folders(tmp_path, monkeypatch):
    for folder in (tmp_path / "mine" / "run", tmp_path / "theirs" / "run"):
        folder.mkdir(parents=True)
        save_file({}, folder / "model.safetensors")
    monkeypatch.chdir(tmp_path / "mine")
    models = named_models([str(tmp_path / "theirs" / "run"), "run"])
    assert [(model.name, model.path) for model in models][1] == ("mine/run", "run")
    with pytest.raises(ValueError, match=r"MODEL .*run is given twice"):
        named_models(["run", str(tmp_path / "mine" / "run")])


def test_a_model_whose_whole_path_is_the_end_of_anothers_has_a_name_of_its_own(tmp_path, monkeypatch):
    """A model in /m of a container, and a run in /runs/m."""
    monkeypatch.setattr("os.path.abspath", lambda path: "/" + str(path).removeprefix(str(tmp_path)).strip("/"))
    for folder in (tmp_path / "m", tmp_path / "runs" / "m"):
        folder.mkdir(parents=True)
        save_file({}, folder / "model.safetensors")
    both = [str(tmp_path / "runs" / "m"), str(tmp_path / "m")]
    assert [model.name for model in named_models(both)] == ["m", "/m"]
    assert [model.name for model in named_models(both[::-1])] == ["m", "runs/m"]
    with pytest.raises(ValueError, match="MODEL m: another model has the name m; rename a folder of them"):
        named_models([str(tmp_path / "runs" / "m"), "m"])  # one of the hub


def test_the_system_turn_of_a_run_is_its_text_and_not_a_file_that_may_be_gone(run):
    config = json.loads((run / "run.json").read_text())
    config["config"]["system"] = "prompts/gone.txt"
    (run / "run.json").write_text(json.dumps(config))
    text = "Be brief. " * 40  # longer than a file's name may be
    PromptSettings(FrameOptions(), PromptOptions(), system=text).save(run)
    assert evaluation_request([str(run), "data.json"]).config.system == text
    assert ReadOptions.of(evaluation_request([str(run), "data.json"]).config).system == text


PLACES = ["model", "data.json"]


def test_words_and_flags_of_a_probe_are_read_into_settings_and_options():
    request = probe_request([*PLACES, "--samples", "16", "--reward_funcs", "count", "format", "--seed=3"])
    config, options = request.config, request.options
    assert (config.model_name_or_path, config.dataset_use) == ("model", "data.json")
    assert (config.reward_funcs, config.seed, options.samples, options.limit) == (["count", "format"], 3, 16, 200)
    assert request.flags == ["--reward_funcs", "count", "format", "--seed=3"]
    assert config.on_bad_sample == "skip" and config.on_long_prompt == "error"
    assert probe_request([*PLACES, "--max_prompt_length", "99"]).config.on_long_prompt == "skip"


@pytest.fixture
def run_file(tmp_path):
    """A settings file of training."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "model_name_or_path: base\ndataset_use: sop.json\noutput_dir: runs/sop\nmax_steps: 300\ngrpo_beta: 0.02\n"
        "deepspeed: zero3.json\ntune_mm_vision: true\nvideo_max_frames: 16\non_bad_sample: error\n"
        "train_sampling_strategy: group_by_length\nlora_enable: true\nlora_r: 8\n"
    )
    return path


@pytest.mark.parametrize(
    "given",
    [lambda path: [str(path)], lambda path: ["--config", str(path)]],
    ids=["first", "by --config"],
)
def test_settings_that_only_training_reads_are_passed_over_in_a_file(given, run_file):
    request = probe_request([*given(run_file), "--seed", "5"])
    config = request.config
    assert (config.model_name_or_path, config.dataset_use, config.video_max_frames) == ("base", "sop.json", 16)
    assert (config.max_steps, config.grpo_beta, config.lora_enable) == (-1, GRPOConfig.grpo_beta, False)
    assert config.on_bad_sample == "skip" and config.train_sampling_strategy == "random"
    assert request.options.output_dir is None
    assert (request.file, request.words, request.flags) == (run_file, [], ["--seed", "5"])


def test_a_probe_takes_the_weights_that_the_run_of_a_file_begins_with(run_file):
    run_file.write_text("model_name_or_path: base\ndataset_use: sop.json\nstart_from_weights: runs/a\n")
    assert probe_request([str(run_file)]).config.model_name_or_path == "runs/a"
    assert probe_request([*PLACES, "--config", str(run_file)]).config.model_name_or_path == "model"


def test_settings_that_differ_from_those_of_training_are_listed(tmp_path):
    saved = PromptSettings(FrameOptions(video_max_frames=16), PromptOptions(max_pixels=999_999), system="Be brief.")
    saved.save(tmp_path)
    config = GRPOConfig(str(tmp_path), video_max_frames=4)
    assert settings_otherwise(str(tmp_path), config) == [
        ("video_max_frames", 16, 4),
        ("max_pixels", 999_999, PromptOptions.max_pixels),
        ("system", "Be brief.", None),
    ]
    assert settings_otherwise("org/base", config) == []


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
def test_a_text_saved_beside_weights_cannot_become_a_flag(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    PromptSettings(FrameOptions(), PromptOptions()).save(tmp_path)
    saved = json.loads((tmp_path / "prompt_settings.json").read_text())
    saved[name] = ["a", "--external_plugins", "evil.py"]
    (tmp_path / "prompt_settings.json").write_text(json.dumps(saved))
    [model] = named_models([str(tmp_path)])
    with pytest.raises(ValueError, match=f"{name} must be a text or null, got list"):
        config_for(model, [])


def test_tools_of_training_come_with_weights_without_their_run(tmp_path, capsys):
    """A merged copy, or one from the hub. Tools that are code of a file have to be named by who runs it."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    [model] = named_models([str(tmp_path)])
    trained = ToolOptions(tools=["look"], max_turns=5, look_frames=8)
    PromptSettings(FrameOptions(), PromptOptions(), tools=trained).save(tmp_path)
    assert ToolOptions.of(config_for(model, [])) == trained
    assert config_for(model, ["--max_turns", "2"]).max_turns == 2
    plain = GRPOConfig(str(tmp_path))
    assert settings_otherwise(str(tmp_path), plain) == [
        ("tools", ["look"], None),
        ("max_turns", 5, ToolOptions.max_turns),
        ("look_frames", 8, ToolOptions.look_frames),
    ]
    PromptSettings(FrameOptions(), PromptOptions(), tools=ToolOptions(tools=["look", "mine.py:f"])).save(tmp_path)
    assert capsys.readouterr().err == ""
    assert config_for(model, []).tools is None
    said = capsys.readouterr().err
    assert f"{tmp_path} was trained with --tools look mine.py:f, and has no tools here: mine.py:f is code" in said
    config_for(model, ["--tools", "look"])
    assert capsys.readouterr().err == ""
    assert settings_otherwise(str(tmp_path), plain) == [("tools", ["look", "mine.py:f"], None)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", 'expected an object with "config"'),
        ("[]", 'expected an object with "config"'),
        ('{"config": null}', 'expected an object with "config"'),
        ('{"config": {}, "earlier_starts": 5}', "earlier_starts must be a list, got 5"),
        ('{"config": {}, "finished": "x"}', 'finished must be an integer, got "x"'),
        ("{", "not JSON"),
    ],
)
def test_a_damaged_run_json_is_told_in_a_line(content, problem, run):
    (run / "run.json").write_text(content)
    with pytest.raises(ValueError) as error:
        evaluation_request([str(run), "data.json"])
    assert str(error.value).startswith(f"{run / 'run.json'}: ") and problem in str(error.value)
    assert "\n" not in str(error.value)


def changed_settings(**changes):
    """The text of saved prompt settings with other entries."""
    saved = asdict(PromptSettings(FrameOptions(), PromptOptions()))
    return json.dumps(saved | changes)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "Expecting"),
        ("[1]", "the file: expected an object, got list"),
        ("{}", "the file: frames is missing"),
        (changed_settings(newer=1), "the file: unknown entry 'newer'"),
        (changed_settings(frames=[1]), "frames: expected an object, got list"),
        (changed_settings(frames={"newer": 1}), "frames: unknown entry 'newer'"),
        (changed_settings(frames={"video_max_frames": "x"}), "frames: video_max_frames must be an integer, got 'x'"),
        (changed_settings(prompts=5), "prompts: expected an object, got int"),
        (changed_settings(framing=[1]), "framing: expected an object, got list"),
        (changed_settings(framing={"kinds": 5}), "framing: kinds must be a list of texts, got 5"),
        (changed_settings(framing={"kinds": [[1]]}), "framing: kinds must be a list of texts, got [[1]]"),
        (changed_settings(framing={"between": 5}), "framing: between must be a text, got 5"),
        (changed_settings(framing={"newer": 5}), "framing: unknown entry 'newer'"),
        (changed_settings(tools=["look"]), "tools: expected an object, got list"),
        (changed_settings(tools={"tools": ["--external_plugins"]}), "tools: tools external_plugins: "),
    ],
)
def test_damaged_prompt_settings_are_told_in_a_line(content, problem, run):
    file = run / "prompt_settings.json"
    file.write_text(content)
    with pytest.raises(ValueError) as error:
        evaluation_request([str(run), "data.json"])
    assert str(error.value).startswith(f"{file}: ") and problem in str(error.value), str(error.value)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_prompt_settings_of_an_earlier_version_are_read(run):
    (run / "prompt_settings.json").write_text('{"frames": {"video_max_frames": 6}, "prompts": {}}')
    assert PromptSettings.load(run) == PromptSettings(FrameOptions(video_max_frames=6), PromptOptions())


def test_a_word_of_a_list_of_a_run_cannot_become_a_flag(run):
    config = json.loads((run / "run.json").read_text())
    config["config"]["stop_strings"] = ["a", "--external_plugins", "evil.py"]
    (run / "run.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="stop_strings: '--external_plugins' reads as a flag"):
        evaluation_request([str(run), "data.json"])


def test_a_command_without_scores_takes_no_reward_files_of_a_run(run):
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
