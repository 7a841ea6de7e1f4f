"""Command lines and settings files."""

import json
import subprocess
import sys
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from transformers import TrainingArguments

from qwenvl.commands.preview import main as preview
from qwenvl.config.command_line import parse_args, read_command, without_dry_run
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.config.settings import TrainingSettings, WarmupSettings
from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.evaluate.requests import probe_request
from qwenvl.option import choices_of

NEEDED = ["--model_name_or_path", "tiny", "--dataset_use", "sop", "--use_cpu"]


@pytest.fixture
def parse(tmp_path):
    """``parse(*argv)`` adds what every run needs."""
    return lambda *argv: parse_args([*argv, *NEEDED, "--output_dir", str(tmp_path / "run")])


@pytest.fixture
def write(tmp_path):
    """Writes a settings file and returns its path."""

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


def test_flags_of_qwenvl_and_of_the_trainer_are_parsed_together(parse):
    config = parse("--grpo_beta", "0.04", "--max_steps", "7", "--loss_type=dr_grpo", "--lr_scheduler_type", "cosine")
    assert (config.grpo_beta, config.max_steps, config.loss_type) == (0.04, 7, "dr_grpo")
    assert config.lr_scheduler_type == "cosine"


def test_report_to_takes_one_tracker_several_or_none(parse):
    for given, expected in ((["tensorboard"],) * 2, (["tensorboard", "mlflow"],) * 2, (["none"], [])):
        assert parse("--report_to", *given).report_to == expected


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


JSON = {
    **{"learning_rate": 1e-6, "eval_strategy": "no", "tune_mm_mlp": False, "mm_projector_lr": None, "run_name": "007"},
    **{"report_to": ["tensorboard", "mlflow"], "lr_scheduler_type": "cosine_with_min_lr", "logging_steps": 0.5},
    **{"lr_scheduler_kwargs": {"min_lr": 1e-7}, "chat_template_kwargs": {"enable_thinking": False}},
}


def test_settings_are_read_from_a_yaml_or_json_file_given_first_or_by_config(parse, write):
    file = write(YAML)
    for words in ([file], ["--config", file], [f"--config={file}"], [write(json.dumps(JSON), "run.json")]):
        config = parse(*words)
        found = {name: getattr(config, name) for name in JSON.keys() - {"chat_template_kwargs"}}
        assert found == {name: JSON[name] for name in found} and config.max_prompt_length is None
        assert config.template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(("False", False), ("FALSE", False), ("True", True), ("None", None), ("null", None), ("007", "007")),
        *(('"no"', "no"), ("'False'", "False"), ("north", "north"), ("0.5", 0.5)),
        *(('"1.0"', "1.0"), ("'true'", "true"), ('"null"', "null"), ("2024", 2024)),
    ],
)
def test_truth_values_in_a_mapping_of_yaml_are_read_in_any_case(parse, write, written, read):
    config = parse(write(f"chat_template_kwargs: {{value: {written}, list: [{written}]}}"))
    assert config.template_arguments == {"value": read, "list": [read]}


def test_texts_in_a_mapping_of_json_stay_texts(parse, write):
    config = parse(write('{"chat_template_kwargs": {"value": "true", "year": "2024", "number": 1}}', "run.json"))
    assert config.template_arguments == {"value": "true", "year": "2024", "number": 1}
    assert parse("--chat_template_kwargs", '{"value": "true"}').template_arguments == {"value": "true"}


def test_a_mapping_of_the_trainer_is_read_from_a_flag_and_a_file(parse, write):
    given = {"rope": True, "swiglu": False}
    words = ["--use_liger_kernel", "--liger_kernel_config"]
    assert parse(*words, json.dumps(given)).liger_kernel_config == given
    file = write("use_liger_kernel: true\nliger_kernel_config: {rope: true, swiglu: false}")
    assert parse(file).liger_kernel_config == given


def test_truth_values_for_a_reward_function_are_read_as_on_the_command_line(parse, write):
    config = parse(write('reward_funcs: [{"own.py:name": {strict: False, name: "False"}}]'))
    assert config.reward_funcs == parse("--reward_funcs", "own.py:name(strict=False, name='False')").reward_funcs


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
        ("chat_template_kwargs: {a: no}", "run.yaml", "chat_template_kwargs: no may be a truth value or a text"),
        ("seed: 1\nseed: 2", "run.yaml", "seed is given twice"),
        ('{"seed": 1, "seed": 2}', "run.json", "seed is given twice"),
        ('{"seed": 1', "run.json", "line 1 column 11"),
        ('{"seed": ' + "[" * 100_000, "run.json", "nested too deeply for settings"),
        ("", "run.yaml", "expected settings as `name: value`, got nothing: it is empty"),
    ],
)
def test_a_wrong_settings_file_is_refused_with_its_path_and_the_mistake(capsys, write, text, name, expected):
    file = write(text, name)
    message = refusal(capsys, ["--config", file])
    assert f"error: {file}: " in message and expected in message
    assert "two settings files" in refusal(capsys, [file, "--config", file])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--grpo_sampl_size", "8"], "unknown flag --grpo_sampl_size; near: grpo_sample_size"),
        (["run.yam"], "stray word run.yam; a file of settings comes first, there is one, and its name ends in .yaml"),
        (["--use_vllm"], "unknown flag use_vllm; use --rollout_engine vllm_server or vllm_colocate"),
        (["--learning_rate", "-1e-6"], "--learning_rate must be above 0, got -1e-06"),
        (["--output_dir", ""], "--output_dir is empty: name the folder of the run"),
        (["--cosine_max_len", "3"], 'unknown flag cosine_max_len; use --reward_funcs "cosine(max_len=512)"'),
        (["--stop-words", "a"], "unknown flag stop_words; use --stop_strings"),
        (["--config", "/nowhere/run.yaml"], "/nowhere/run.yaml: no such file"),
        (["--config", "/dev/null"], "/dev/null: expected a regular file, this is a pipe, socket or device"),
        (["--config"], "argument --config: expected one argument"),
        (["--eval_strategy", "steps"], "--eval_strategy steps needs --eval_dataset_use"),
        (["--hub_model_id", "org/sop"], "--hub_model_id has no effect without --push_to_hub"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_refused_with_the_flag_and_the_remedy(capsys, argv, expected):
    assert f"error: {expected}" in refusal(capsys, [*argv, *NEEDED])


def test_negative_numbers_with_an_exponent_are_values(parse, write):
    file = write("reward_funcs: [cosine, format]\nreward_weights: [1, -5e-1]\n")
    config = parse(file, "--grpo_alpha", "2.5E-1", "--reward_weights", "-.5", "-2.5E-1")
    assert config.reward_weights == [-0.5, -0.25] and config.grpo_alpha == 0.25


def test_arguments_of_rewards_read_the_same_in_a_file_and_on_the_command_line(parse, write):
    text = (
        "reward_funcs:\n  - format\n  - cosine: {max_len: 99, min_len_value_wrong: -2.5e-1, correctness_func: count}\n"
    )
    expected = ["format", "cosine(max_len=99, min_len_value_wrong=-0.25, correctness_func='count')"]
    assert parse(write(text)).reward_funcs == expected
    assert parse("--reward_funcs", *expected).reward_funcs == expected


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
def test_losses_filters_and_corrections_read_the_same_in_a_file_and_on_the_command_line(parse, write, line, expected):
    name, value = expected
    several = ["--num_iterations", "2"]
    assert getattr(parse(write(line), *several), name) == value
    if value is not None:
        assert getattr(parse(*several, f"--{name}={value}"), name) == value
    if value is True:
        assert getattr(parse(f"--{name}"), name) is True


SHOWN = """
import json, sys
from qwenvl.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        assert end.code in (None, 0, 2), end.code
    print("END", flush=True)
assert not {"torch", "transformers", "numpy"} & set(sys.modules), set(sys.modules)
"""


def shown(*lines: list[str]) -> list[str]:
    """The output of each of several command lines, which must not wait for torch or numpy."""
    command = [sys.executable, "-c", SHOWN, json.dumps(lines)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return [" ".join(each.split()) for each in done.stdout.split("END\n")[:-1]]


def test_the_texts_of_a_short_help_fit_a_terminal():
    commands = ("train", "warmup", "plan")
    argv = [sys.executable, "-c", SHOWN, json.dumps([[command, "--help"] for command in commands])]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("usage:", "  "))) <= 100


def test_help_shows_the_usual_flags_all_flags_or_the_flags_with_a_word():
    commands, asked = ("train", "warmup", "plan"), ([], ["all"], ["early"], ["video_back"])
    printed = iter(shown(*([command, "--help", *words] for command in commands for words in asked)))
    for command in commands:
        usual, everything, no_word, word = (next(printed) for _ in asked)
        for flag in ("--dataset_use", "--output_dir", "--max_steps", "--gradient_accumulation_steps", "--seed"):
            assert f"{flag} " in usual and f"{flag} " in everything
        assert ("--grpo_sample_size " in usual) == (command != "warmup") and "--base_interval " not in usual
        assert ("--target_template " in usual) == (command == "warmup")
        assert "--base_interval float Seconds between the frames" in everything and "--adam_beta1 float" in everything
        assert "no flag has the word early" in no_word and "--video_backend auto|pyav|decord" in word


def test_a_wrong_command_line_waits_for_no_import(tmp_path):
    (tmp_path / "clip.mp4").touch()
    flags = f"--model_name_or_path {tmp_path}/clip.mp4 --dataset_use exampl --use_cpu --eval_on_start"
    said, both, scheduler, missing = shown(
        ["train", *flags.split(), "--eval_sample_size", "4"],
        ["train", "--grpo_sample_size", "1", "--lora_r", "8"],
        ["train", "--lr_scheduler_type", "cosin"],
        ["warmup"],
    )
    assert "--eval_sample_size has no effect without --eval_dataset_use" in said
    assert "--eval_on_start needs --eval_dataset_use" in said and "did you mean example?" in said
    assert "clip.mp4: a file; expected the folder of a model" in said
    assert "--grpo_sample_size must be at least 2" in both and "--lora_r has no effect without --lora_enable" in both
    assert "did you mean cosine?" in scheduler
    assert "--model_name_or_path is missing" in missing and "--dataset_use is missing" in missing


def test_settings_read_without_torch_equal_those_of_the_config():
    free = {each.name: each for each in fields(TrainingSettings)}
    assert free.keys() == {each.name for each in fields(GRPOConfig)}
    for each in fields(GRPOConfig):
        default = getattr(each.default, "value", each.default)
        assert free[each.name].default == default or each.name == "optim", each.name
    own = {each.name for each in fields(WarmupSettings)}
    assert own == {each.name for each in fields(WarmupConfig)}


def plain(hint) -> set:
    """The types that a hint allows: of an Enum its values, of a generic type its class."""
    kinds = set()
    for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        is_enum = isinstance(part, type) and issubclass(part, Enum)
        kinds |= {each.value for each in part} if is_enum else set(choices_of(part)) or {get_origin(part) or part}
    return kinds


def test_the_settings_of_the_trainer_have_the_types_of_its_class():
    """A flag takes the values of the Enum where the class takes an Enum or any text, and some of its texts alone."""
    ours, theirs = get_type_hints(TrainerSettings), get_type_hints(TrainingArguments)
    for name, hint in ours.items():
        if name == "parallelism_config":  # an object that a script makes
            continue
        expected = plain(theirs[name])
        values = plain(hint)
        if name == "liger_kernel_config":  # its JSON, as for other mappings
            values -= {str}
        if choices_of(hint) and str not in values:
            expected -= {str}
            expected = expected - {NoneType} or values
        assert values - {NoneType} == expected - {NoneType}, name


def test_prompts_that_differ_from_those_of_training_are_reported(tmp_path, capsys):
    """By train, warmup, probe and preview, before anything is loaded. The template's own arguments are none of them."""
    prompts = PromptOptions(chat_template_kwargs={"enable_thinking": False})
    PromptSettings(FrameOptions(video_max_frames=16), prompts, system="Be brief.").save(tmp_path)
    model = str(tmp_path)
    words = ["--model_name_or_path", model, "--dataset_use", "example", "--output_dir", str(tmp_path / "run")]
    read_command("qwenvl train", [*words, "--video_max_frames", "4", "--use_cpu"], begins=True)
    read_command("qwenvl warmup", [*words, "--video_max_frames", "4", "--use_cpu"], begins=True)
    probe_request([model, "example", "--video_max_frames", "4", "--use_cpu"], begins=True)
    with pytest.raises(SystemExit):  # there is no processor in the folder
        preview(["example", "--model", model, "--video_max_frames", "4"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("worth a look: ")]
    assert told == 4 * [
        f"worth a look: {model} was trained with --video_max_frames 16, and here it is 4",
        f"worth a look: {model} was trained with --system Be brief., and here it is unset",
    ]
    same = ["--video_max_frames", "16", "--system", "Be brief.", "--use_cpu"]
    read_command("qwenvl train", [*words, *same], begins=True)
    assert "worth a look" not in capsys.readouterr().err


def test_weights_in_4_bits_on_a_cpu_are_refused_before_anything_is_read(tmp_path, capsys):
    words = ["--model_name_or_path", str(tmp_path), "--dataset_use", "example", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as end:
        read_command("qwenvl train", [*words, "--lora_enable", "--load_in_4bit", "--use_cpu"], begins=True)
    assert end.value.code == 2 and "--load_in_4bit needs a CUDA device" in capsys.readouterr().err


def test_weights_in_4_bits_are_not_given_to_servers(tmp_path):
    packed = {"output_dir": str(tmp_path), "lora_enable": True, "load_in_4bit": True}
    with pytest.raises(ValueError, match="--load_in_4bit cannot be used with --rollout_engine vllm_colocate"):
        GRPOConfig(**packed, rollout_engine="vllm_colocate")


@pytest.mark.parametrize(
    ("words", "rest", "value"),
    [
        (["a.yaml", "--seed", "1"], ["a.yaml", "--seed", "1"], ""),
        (["--dry_run", "--seed", "1"], ["--seed", "1"], "changed"),
        (["--seed", "1", "--dry-run"], ["--seed", "1"], "changed"),
        (["--dry-run", "all", "--seed", "1"], ["--seed", "1"], "all"),
        (["--seed", "1", "--dry_run=all"], ["--seed", "1"], "all"),
        (["--dry_run=some"], ["--dry_run=some"], ""),  # an unknown flag
        (["--dry_run", "True", "--seed", "1"], ["--seed", "1"], "changed"),
        (["--dry_run=false", "--seed", "1"], ["--seed", "1"], ""),
        (["--dry_run", "run.yaml"], ["run.yaml"], "changed"),
    ],
)
def test_a_dry_run_is_asked_for_in_either_notation(words, rest, value):
    assert without_dry_run(words) == (rest, value)
