"""``scripts/train_grpo_ray.py``: two workers of Ray on this machine, one of which dies. Without Ray it is skipped."""

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.run_log.log import read_config, read_metrics
from tests.train.conftest import turns

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "train_grpo_ray.py"
REWARDS = Path(__file__).parent / "train" / "ends_in_a_step.py"


def start(*flags: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    return subprocess.run([sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_line_says_what_to_install():
    done = start("--workers", "2", "run.yaml")
    assert done.returncode == 1 and "pip install 'qwenvl[ray]'" in done.stderr and "Traceback" not in done.stderr


def test_workers_are_given_gpus_unless_the_settings_ask_for_cpus(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script adds to
    on_cpu = runpy.run_path(str(SCRIPT))["runs_on_cpu"]
    for flags in ("--use_cpu --max_steps 3", "--max_steps 3 --use_cpu", "--use_cpu=True", "--use_cpu True"):
        assert on_cpu(flags.split())
    file = tmp_path / "run.yaml"
    for text, is_on_cpu in (("use_cpu: true", True), ("max_steps: 3", False)):
        file.write_text(text)
        assert on_cpu([str(file), "--learning_rate", "1e-5"]) == is_on_cpu
        assert not on_cpu([str(file), "--use_cpu", "False"])
    with pytest.raises(ValueError, match="use_cpuX"):
        on_cpu(["--use_cpuX"])


def test_workers_resume_with_a_settings_file_and_without(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    resuming = runpy.run_path(str(SCRIPT))["resuming"]
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: tiny\nuse_cpu: true\ndataset_use: sop\n")
    in_flags = ["--model_name_or_path", "tiny", "--use_cpu", "--dataset_use", "sop"]
    for given in ([str(file)], ["--config", str(file)], in_flags):
        config = parse_args(resuming([*given, "--max_steps", "3", "--output_dir", str(tmp_path / "run")]))
        assert (config.model_name_or_path, config.max_steps, config.resume) == ("tiny", 3, "auto")
    assert parse_args(resuming([*in_flags, "--output_dir", "run", "--resume", "never"])).resume == "never"


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'qwenvl[ray]'")
def test_ray_starts_the_workers_again_when_one_dies(tiny_checkpoint, tmp_path):
    data, out, settings = tmp_path / "rows.json", tmp_path / "run", tmp_path / "run.yaml"
    died = tmp_path / "died"
    data.write_text(json.dumps([{"conversations": turns(f"What comes after {n}?", "(1)")} for n in range(4)]))
    settings.write_text("use_cpu: true\n")
    flags = "--max_steps 3 --generation_max_length 4 --grpo_sample_size 3 --save_steps 1 --display none"
    named = f"--model_name_or_path {tiny_checkpoint()} --dataset_use {data} --output_dir {out}"
    ray = f"--workers 2 --max_failures 1 --storage {tmp_path / 'ray'}"
    done = start(*f"{ray} {settings} {flags} {named} --reward_funcs {REWARDS}:killed_once".split(), DIED=str(died))
    assert done.returncode == 0, done.stdout + done.stderr
    assert died.exists() and read_config(out)["finished"] == 3
    assert [row["step"] for row in read_metrics(out) if "loss" in row] == [1, 2, 3]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'qwenvl[ray]'")
def test_a_machine_without_gpus_is_told_at_once(tmp_path):
    """Ray itself would wait for them without end."""
    done = start("--workers", "2", "--storage", str(tmp_path), "--model_name_or_path", "tiny", "--dataset_use", "sop")
    assert done.returncode == 1 and "2 workers with a GPU each, and this machine has 0" in done.stderr
    assert "--use_cpu" in done.stderr and "Traceback" not in done.stderr
