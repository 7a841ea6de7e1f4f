"""The commands as a user types them: each a process of its own, on the tiny model and the example records.

One has an interpreter of its own. Those of the others are forked, launchers and what they start alike.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from qwenvl.run_log.log import read_config, read_metrics, read_rollouts

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(ROOT / "qwenvl" / "train" / "train_grpo.py")
STEPS, PROMPTS_OF_A_STEP, GROUP = 2, 2, 2
SETTINGS = {
    "dataset_use": "example",
    "max_steps": STEPS,
    "grpo_sample_size": GROUP,
    "generation_max_length": 6,
    "save_strategy": "no",
    "use_cpu": True,
}
LOGGED = ("loss", "learning_rate", "reward/accuracy", "kl", "prompt/frames", "memory/peak_gb", "time/data_wait_s")


def flags(processes: int = 1, **settings) -> list[str]:
    settings = SETTINGS | {"gradient_accumulation_steps": PROMPTS_OF_A_STEP // processes} | settings
    return [f"--{name}={value}" for name, value in settings.items()]


@pytest.fixture
def run(tmp_path):
    """``run(*command, **environment)`` from a folder that is not the project's."""

    def run(*command: str, **environment: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
            capture_output=True,
            text=True,
            timeout=150,  # of a command that hangs, below that of the test
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def check_run(folder: Path) -> None:
    """The run folder tells of every step, and of every completion of every process."""
    steps = [row for row in read_metrics(folder) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    for row in steps:
        assert [name for name in LOGGED if name not in row] == []
    rollouts = list(read_rollouts(folder, split="train"))
    assert len(rollouts) == STEPS * PROMPTS_OF_A_STEP * GROUP
    prompts = {rollout.record_id for rollout in rollouts}
    assert len(prompts) == STEPS * PROMPTS_OF_A_STEP, "no record twice in an epoch, whatever the process"
    written = read_config(folder)
    assert written["config"]["grpo_sample_size"] == GROUP
    assert written["versions"]["torch"] == version("torch")


def test_plain_python_trains_evaluates_and_saves_a_model_that_transformers_loads(run, tiny_checkpoint, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = str(tiny_checkpoint())
    run(
        sys.executable,
        COMMAND,
        *flags(model_name_or_path=model, output_dir="out", eval_dataset_use="example%40", learning_rate=1e-3),
    )
    check_run(tmp_path / "out")
    evaluation = next(row for row in read_metrics(tmp_path / "out") if "eval_total_reward" in row)
    assert evaluation["eval_total_reward_n"] == 2 and "eval_total_reward_ci95" in evaluation
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    before = AutoModelForImageTextToText.from_pretrained(model).state_dict()
    assert saved.state_dict().keys() == before.keys()
    assert AutoProcessor.from_pretrained(tmp_path / "out").video_processor is not None


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torch.distributed.run --standalone --nproc_per_node=2", marks=pytest.mark.slow),
        "accelerate.commands.launch --multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no "
        "--dynamo_backend=no --main_process_port=0",
    ],
    ids=["torchrun", "accelerate launch"],
)
def test_launchers_train_with_two_processes(launcher, run, fork_python, tiny_checkpoint, tmp_path):
    arguments = flags(2, model_name_or_path=tiny_checkpoint(), output_dir="out")
    environment = {"ACCELERATE_USE_CPU": "true", "PYTHON_EXEC": fork_python}
    run(fork_python, "-m", *launcher.split(), COMMAND, *arguments, **environment)
    check_run(tmp_path / "out")


def test_launcher_script_trains_with_lora(run, fork_python, tiny_checkpoint, tmp_path):
    run(
        "bash",
        str(ROOT / "scripts" / "train_grpo.sh"),
        *flags(lora_r=4, lora_alpha=8),
        PYTHON=fork_python,
        MODEL=str(tiny_checkpoint()),
        OUTPUT="out",
        LORA="True",
        WORKERS="1",
    )
    check_run(tmp_path / "out")
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert read_config(tmp_path / "out")["config"]["learning_rate"] == 1e-5
