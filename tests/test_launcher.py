"""``scripts/train_grpo.sh``: each setting from the environment or appended, from any folder; the files beside it."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from qwenvl.config.command_line import parse_args

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "scripts" / "train_grpo.sh"
COMMAND = str(ROOT / "qwenvl" / "train" / "train_grpo.py")
OPTIONS = re.findall(r"^ *option (--\w+) +(\w+) +(\S+)", LAUNCHER.read_text(encoding="utf-8"), flags=re.MULTILINE)
VARIABLES = {variable for _, variable, _ in OPTIONS} | {"NPROC", "DEEPSPEED", "FSDP", "PYTHON", "CUDA_VISIBLE_DEVICES"}
VARIABLES |= {"NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}


@pytest.fixture
def launch(tmp_path):
    """``launch(*arguments, **environment)`` -> the words of the command that would run, started from another folder.

    ``without`` names variables that are not set.
    """

    def launch(*arguments: str, without: Collection[str] = (), **environment: str) -> list[str]:
        clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        given = {**clean, "DRY_RUN": "1", "CUDA_VISIBLE_DEVICES": "", "VIRTUAL_ENV": "active", **environment}
        done = subprocess.run(
            ["bash", str(LAUNCHER), *arguments],
            env={name: value for name, value in given.items() if name not in without},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return shlex.split(done.stdout)

    return launch


def settings(words: list[str]):
    return parse_args([*words[words.index(COMMAND) + 1 :], "--use_cpu", "--output_dir", "run"])


def test_one_process_is_started_by_plain_python(launch):
    words = launch(DATASET="sop")
    assert words[:2] == ["python", COMMAND]
    config = settings(words)
    assert (config.model_name_or_path, config.dataset_use) == ("Qwen/Qwen3.5-4B", "sop")
    assert config.eval_strategy == "no"


def test_several_processes_go_through_torchrun(launch):
    torchrun = ["python", "-m", "qwenvl.train.run.launch", "--standalone", "--nproc_per_node", "4", COMMAND]
    assert launch(NPROC="4")[:7] == torchrun
    alone = launch(DEEPSPEED="zero2")  # which asks for a launcher for one process too
    assert alone[:7] == [*torchrun[:5], "1", COMMAND]
    assert launch(CUDA_VISIBLE_DEVICES="0,1,2,5", PYTHON="python")[:7] == torchrun


def test_several_machines_meet_at_the_first_one(launch):
    machines = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    words = launch(NPROC="4", **machines)
    start = ["--nnodes", "2", "--node_rank", "1", "--master_addr", "10.0.0.1", "--master_port"]
    assert words[3:13] == [*start, "29500", "--nproc_per_node", "4"]
    assert launch(MASTER_PORT="1234", **machines)[3:13] == [*start, "1234", "--nproc_per_node", "1"]
    for lacking in ("NODE_RANK", "MASTER_ADDR"):
        with pytest.raises(subprocess.CalledProcessError) as error:
            launch(**{name: value for name, value in machines.items() if name != lacking})
        assert f"{lacking}: is not set" in error.value.stderr


def test_every_setting_can_be_set_and_then_appended(launch):
    plain, given = launch(EVAL_DATASET="held_out"), launch(**{variable: f"my {variable}" for _, variable, _ in OPTIONS})
    for flag, variable, default in OPTIONS:
        assert (flag in plain) == (default != '""' or variable == "EVAL_DATASET")
        assert given[given.index(flag) + 1] == f"my {variable}"
    assert launch("--grpo_beta", "appended", BETA="1")[-2:] == ["--grpo_beta", "appended"], "what comes last counts"
    assert settings(launch("--run_name", "two words", DATASET="my data.json")).dataset_use == "my data.json"


def test_evaluations_are_set_with_and_without_a_data_set_in_the_environment(launch):
    assert launch("--eval_dataset_use", "held", EVAL_STEPS="50")[-4:-2] == ["--eval_steps", "50"]
    words = launch(EVAL_DATASET="held", EVAL_STRATEGY="epoch")
    assert words[words.index("--eval_strategy") + 1] == "epoch" and "--eval_steps" not in words


def test_gpus_are_counted_and_not_their_parts(launch, tmp_path):
    program = tmp_path / "nvidia-smi"
    lines = ("GPU 0: NVIDIA H200 (UUID: GPU-1)", "  MIG 1g.18gb Device 0: (UUID: MIG-1)", "GPU 1: NVIDIA H200")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for text, processes in (("\n".join(lines), 2), ("Failed to initialize NVML: Unknown Error", 1)):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
        words = launch(without=["CUDA_VISIBLE_DEVICES"], **environment)
        assert ("--nproc_per_node" in words) == (processes > 1)
        assert processes == 1 or words[words.index("--nproc_per_node") + 1] == str(processes)


def test_a_settings_file_takes_the_place_of_the_defaults(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "model_name_or_path: tiny\ndataset_use: sop\ngrpo_sample_size: 6\nmax_steps: 9\n"
    )
    for arguments in (["run.yaml"], ["--config", "run.yaml"], ["--config=run.yaml"]):
        config = settings(launch(*arguments, "--grpo_beta", "0.04", MAX_STEPS="3"))
        assert (config.model_name_or_path, config.grpo_sample_size) == ("tiny", 6)
        assert (config.max_steps, config.grpo_beta) == (3, 0.04), "the environment and appended flags override the file"


def test_deepspeed_and_fsdp_take_a_name_or_a_file(launch, tmp_path):
    for stage in (2, 3):
        words = launch(DEEPSPEED=f"zero{stage}")
        file = Path(words[words.index("--deepspeed") + 1])
        assert json.loads(file.read_text())["zero_optimization"]["stage"] == stage
    assert launch(DEEPSPEED="mine.json")[-2:] == ["--deepspeed", "mine.json"]
    assert settings(launch(FSDP="True", DATASET="sop")).fsdp is True
    file = tmp_path / "fsdp.json"
    file.write_text('{"reshard_after_forward": false}')
    config = settings(launch(FSDP=str(file), DATASET="sop"))
    assert config.fsdp is True and config.fsdp_plugin_args["reshard_after_forward"] is False
    plain = launch(DATASET="sop")
    assert "--deepspeed" not in plain and not settings(plain).fsdp


@pytest.mark.parametrize("file", sorted((ROOT / "scripts" / "accelerate").glob("*.yaml")), ids=lambda path: path.name)
def test_accelerate_reads_the_files_in_scripts(file):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    config = load_config_from_file(str(file))
    assert isinstance(config, ClusterConfig) and config.num_processes > 1
    assert yaml.safe_load(file.read_text())["mixed_precision"] == "bf16"
