"""Which settings of training a probe reads, and what it says of the others."""

from pathlib import Path

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.evaluate.settings import probe_request

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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*PLACES, "--learning_rate", "1e-6"], "--learning_rate has no effect: only training reads it; leave it out"),
        ([*PLACES, "--no_tune_mm_llm"], "--tune_mm_llm has no effect: only training reads it"),
        ([*PLACES, "--start_from_weights", "x"], "--start_from_weights has no effect: give the model as MODEL"),
        ([*PLACES, "--dataset_use", "x"], "--dataset_use has no effect: give the data as DATA"),
        ([*PLACES, "--eval_sample_size", "4"], "--samples, of qwenvl try -n, sets the number of completions"),
        ([*PLACES, "--on_bad_sample", "error"], "left out, counted and named"),
        ([*PLACES, "--nonsense", "4"], "unknown flag --nonsense"),
        ([*PLACES, "--generation_top_p", "2"], "--generation_top_p must be at most 1|--generation_top_p must be above"),
        ([*PLACES, "--samples", "1"], "--samples must be at least 2, got 1"),
        ([*PLACES, "--samples", "4", "--grpo_sample_size", "8"], "--samples 4 is below --grpo_sample_size 8"),
        ([*PLACES, "--limit", "many"], "argument --limit: invalid int value: 'many'"),
        (["model"], "expected MODEL DATA or a settings file before the flags, got model"),
        (["run.yaml", "data.json"], "expected MODEL DATA or a settings file"),
        (["--samples", "8"], "expected MODEL DATA or a settings file before the flags, got nothing"),
        (["half.yaml"], "half.yaml: dataset_use is missing; set it there, or give MODEL DATA"),
    ],
)
def test_what_is_refused(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("half.yaml").write_text("model_name_or_path: m\n")
    with pytest.raises(ValueError, match=message):
        probe_request(argv)
