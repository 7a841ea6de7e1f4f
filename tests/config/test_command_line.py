"""Command lines and settings files."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.config.flags import FLAG_GROUPS, WARMUP_GROUPS, settings_class
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig

NEEDED = ["--model_name_or_path", "tiny", "--dataset_use", "sop", "--use_cpu"]


@pytest.fixture
def parse(tmp_path):
    """``parse(*argv)`` adds what every run needs."""
    return lambda *argv: parse_args([*argv, *NEEDED, "--output_dir", str(tmp_path / "run")])


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(capsys, argv) -> str:
    with pytest.raises(SystemExit) as exit:
        parse_args(argv)
    assert exit.value.code == 2
    return capsys.readouterr().err


def test_flags_of_both_origins(parse):
    config = parse("--grpo_beta", "0.04", "--max_steps", "7", "--loss_type=dr_grpo", "--lr_scheduler_type", "cosine")
    assert (config.grpo_beta, config.max_steps, config.loss_type) == (0.04, 7, "dr_grpo")
    assert config.lr_scheduler_type == "cosine"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--tune_mm_llm", "False"], False),
        (["--no_tune_mm_llm"], False),
        (["--tune-mm-llm", "no"], False),
        (["--tune_mm_llm"], True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_truth_values(parse, argv, expected):
    assert parse(*argv).tune_mm_llm is expected


@pytest.mark.parametrize("argv", [["--report_to", "tensorboard"], ["--report_to=tensorboard"]], ids=" ".join)
def test_one_tracker_or_several(parse, argv):
    assert parse(*argv).report_to == ["tensorboard"]
    assert parse("--report_to", "tensorboard", "mlflow").report_to == ["tensorboard", "mlflow"]
    assert parse("--report_to", "none").report_to == []


YAML = """
# numbers and words as people write them, which YAML 1.1 reads otherwise
learning_rate: 1e-6
eval_strategy: no
tune_mm_mlp: false
mm_projector_lr: null
max_prompt_length:
run_name: 007
report_to: [tensorboard, mlflow]
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr: 1e-7}
chat_template_kwargs: {enable_thinking: false}
logging_steps: 0.5
"""


def check_file_values(config):
    assert config.learning_rate == 1e-6
    assert config.eval_strategy == "no"
    assert config.tune_mm_mlp is False
    assert config.mm_projector_lr is None and config.max_prompt_length is None
    assert config.run_name == "007"
    assert config.report_to == ["tensorboard", "mlflow"]
    assert config.lr_scheduler_kwargs == {"min_lr": 1e-7}
    assert config.template_arguments == {"enable_thinking": False}
    assert config.logging_steps == 0.5


def test_a_yaml_file_first_or_by_config(parse, write):
    file = write(YAML)
    check_file_values(parse(file))
    check_file_values(parse("--config", file))
    check_file_values(parse(f"--config={file}"))


def test_a_json_file(parse, write):
    settings = {
        "learning_rate": 1e-6,
        "eval_strategy": "no",
        "tune_mm_mlp": False,
        "mm_projector_lr": None,
        "run_name": "007",
        "report_to": ["tensorboard", "mlflow"],
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 1e-7},
        "chat_template_kwargs": {"enable_thinking": False},
        "logging_steps": 0.5,
    }
    check_file_values(parse(write(json.dumps(settings), "run.json")))


def test_flags_override_the_file_even_with_the_default_value(parse, write):
    file = write("grpo_beta: 0.5\ngrpo_alpha: 0.7\ntune_mm_vision: true\n")
    config = parse(file, "--grpo_beta", "0.1", "--tune_mm_vision", "False")
    assert (config.grpo_beta, config.grpo_alpha, config.tune_mm_vision) == (0.1, 0.7, False)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("lerning_rate: 1e-6", "run.yaml", "unknown flag lerning_rate; near: learning_rate"),
        ("warmup_ratio: 0.1", "run.yaml", "unknown flag warmup_ratio; use --warmup_steps with a value below 1"),
        ("learning_rate: fast", "run.yaml", "argument --learning_rate: invalid float value: 'fast'"),
        ("scale_rewards: all", "run.yaml", "invalid choice: 'all'"),
        ("grpo_beta: null", "run.yaml", "grpo_beta cannot be null; leave it out for its default, 0.1"),
        ("seed: 1\nseed: 2", "run.yaml", "seed is given twice"),
        ('{"seed": 1, "seed": 2}', "run.json", "seed is given twice"),
        ("- a\n- b", "run.yaml", "expected settings as `name: value`, got a list"),
        ('{"seed": 1', "run.json", "line 1 column 11"),
        ("", "run.yaml", "expected settings as `name: value`, got nothing: it is empty"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(capsys, write, text, name, expected):
    file = write(text, name)
    message = refusal(capsys, ["--config", file])
    assert f"error: {file}: " in message and expected in message


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--grpo_sampl_size", "8"], "unknown flag --grpo_sampl_size; near: grpo_sample_size"),
        (["--num_generations", "8"], "unknown flag num_generations; use --grpo_sample_size"),
        (["run.yam"], "stray word run.yam; a file of settings comes first, there is one, and its name ends in .yaml"),
        (["--use_vllm"], "unknown flag use_vllm; use --rollout_engine vllm_server or vllm_colocate"),
        (["--learning_rate", "-1e-6"], "--learning_rate must be above 0, got -1e-06"),
        (["--output_dir", ""], "--output_dir is empty: name the folder of the run"),
        (["--config", "/nowhere/run.yaml"], "/nowhere/run.yaml: no such file"),
        (["--config", "/dev/null"], "/dev/null: expected a regular file, this is a pipe, socket or device"),
        (["--config"], "argument --config: expected one argument"),
        (["--grpo_sample_size", "1"], "--grpo_sample_size must be at least 2, got 1"),
        (["--eval_strategy", "steps"], "--eval_strategy steps needs --eval_dataset_use"),
        (["--hub_model_id", "org/sop"], "--hub_model_id has no effect without --push_to_hub"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_told_what_is_wrong(capsys, argv, expected):
    assert f"error: {expected}" in refusal(capsys, [*argv, *NEEDED])


def test_negative_numbers_with_an_exponent_are_values(parse, write):
    file = write("reward_funcs: [cosine, format]\nreward_weights: [1, -5e-1]\n")
    config = parse(file, "--grpo_alpha", "2.5E-1", "--reward_weights", "-.5", "-2.5E-1")
    assert config.reward_weights == [-0.5, -0.25] and config.grpo_alpha == 0.25


def test_arguments_of_rewards_in_a_file_and_on_the_command_line(parse, write):
    text = (
        "reward_funcs:\n  - format\n  - cosine: {max_len: 99, min_len_value_wrong: -2.5e-1, correctness_func: count}\n"
    )
    expected = ["format", "cosine(max_len=99, min_len_value_wrong=-0.25, correctness_func='count')"]
    assert parse(write(text)).reward_funcs == expected
    assert parse("--reward_funcs", *expected).reward_funcs == expected
    assert parse(
        write("reward_funcs: [format, {box_iou: {units: thousandths}}, {temporal_iou: {boundary: true}}]")
    ).reward_funcs[1:] == ["box_iou(units='thousandths')", "temporal_iou(boundary=True)"]


@pytest.mark.parametrize(
    ("flag", "use"),
    [
        ("--cosine_max_len", '--reward_funcs "cosine(max_len=512)"'),
        ("--dual-clip", '--loss_type "grpo(dual_clip=3)"'),
        ("--filter_by", '--filter_groups "total(max_rounds=3)"'),
    ],
)
def test_a_flag_that_became_an_argument_is_refused_with_it(capsys, flag, use):
    assert f"unknown flag {flag[2:].replace('-', '_')}; use {use}" in refusal(capsys, [flag, "3", *NEEDED])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("loss_type: cispo(bound=4)", ("loss_type", "cispo(bound=4)")),
        ("loss_type: {cispo: {bound: 4}}", ("loss_type", "cispo(bound=4)")),
        ("filter_groups: true", ("filter_groups", True)),
        ("filter_groups: no", ("filter_groups", False)),
        ("filter_groups: accuracy(max_rounds=2)", ("filter_groups", "accuracy(max_rounds=2)")),
        ("importance_correction: null", ("importance_correction", None)),
    ],
)
def test_rows_in_a_file_and_on_the_command_line(parse, write, line, expected):
    name, value = expected
    several = ["--num_iterations", "2"]
    assert getattr(parse(write(line), *several), name) == value
    if value is not None:
        assert getattr(parse(*several, f"--{name}={value}"), name) == value
    if value is True:
        assert getattr(parse(f"--{name}"), name) is True


def test_two_files_are_refused(capsys, write):
    assert "two settings files" in refusal(capsys, [write("seed: 1", "a.yaml"), "--config", write("seed: 1", "b.yaml")])


@pytest.mark.parametrize("missing", ["model_name_or_path", "dataset_use"])
def test_a_command_without_model_or_data_is_told_so(capsys, missing):
    argv = {"model_name_or_path": "tiny", "dataset_use": "sop"}
    del argv[missing]
    message = refusal(capsys, ["--use_cpu", *(part for name, value in argv.items() for part in (f"--{name}", value))])
    assert f"--{missing} is missing" in message


SHOWN = """
import sys
from qwenvl.cli import main
from qwenvl.failure import printable
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code in (None, 0, 2), end.code
assert not {"torch", "transformers", "numpy"} & set(sys.modules), set(sys.modules)
"""


def shown(*words: str) -> str:
    """What a command prints that must not wait for torch or numpy."""
    done = subprocess.run([sys.executable, "-c", SHOWN, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("command", ["train", "warmup", "plan"])
def test_help_is_of_a_usual_run_of_all_flags_or_of_a_word(command):
    usual, everything, word = (shown(command, "--help", *words) for words in ([], ["all"], ["early"]))
    for flag in ("--dataset_use", "--output_dir", "--max_steps", "--gradient_accumulation_steps", "--seed"):
        assert f"{flag} " in usual and f"{flag} " in everything
    assert ("--grpo_sample_size " in usual) == (command != "warmup") and "--base_interval " not in usual
    assert ("--target_template " in usual) == (command == "warmup")
    assert "--base_interval float Seconds between the frames" in everything and "--adam_beta1 float" in everything
    assert "no flag has the word early" in word
    assert "--video_backend auto|pyav|decord" in shown(command, "--help", "video_back")


def test_a_wrong_command_line_waits_for_no_import(tmp_path):
    (tmp_path / "clip.mp4").touch()
    flags = f"--model_name_or_path {tmp_path}/clip.mp4 --dataset_use exampl --use_cpu"
    said = shown("train", *flags.split(), "--eval_on_start")
    assert "--eval_on_start needs --eval_dataset_use" in said and "did you mean example?" in said
    assert "clip.mp4: a file; expected the folder of a model" in said
    both = shown("train", "--grpo_sample_size", "1", "--lora_r", "8")
    assert "--grpo_sample_size must be at least 2" in both and "--lora_r has no effect without --lora_enable" in both
    assert "did you mean cosine?" in shown("train", "--lr_scheduler_type", "cosin")
    missing = shown("warmup")
    assert "--model_name_or_path is missing" in missing and "--dataset_use is missing" in missing


def test_settings_without_torch_are_those_of_the_config():
    free = {each.name: each for each in fields(settings_class(FLAG_GROUPS))}
    assert free.keys() == {each.name for each in fields(GRPOConfig)}
    for each in fields(GRPOConfig):
        default = getattr(each.default, "value", each.default)
        assert free[each.name].default == default or each.name == "optim", each.name
    own = {each.name for each in fields(settings_class(WARMUP_GROUPS))}
    assert own == {each.name for each in fields(WarmupConfig)}
