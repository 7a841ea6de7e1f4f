"""Training over real servers: parity in each step, rewards that rise as with the local engine, and servers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from statistics import mean

import pytest
from transformers import TrainerCallback

from qwenvl import GRPOConfig, GRPOTrainer
from qwenvl.run_log.log import read_metrics
from qwenvl.tools import toolbox
from tests.vllm_server.policy import WIDE

pytestmark = pytest.mark.vllm


def letters(completions, **columns):
    """The share of letters in a completion."""
    return [sum(each.isalpha() for each in text) / max(1, len(text)) for text in completions]


class InStep(TrainerCallback):
    """Calls ``then`` when a step begins."""

    def __init__(self, step: int, then):
        self.step, self.then = step, then

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.then()


def trained(model, folder, *callbacks, **settings) -> list[dict]:
    """The rows of the log of a run."""
    settings = {
        "output_dir": str(folder),
        "dataset_use": "example",
        "max_steps": 16,
        "per_device_train_batch_size": 4,
        "grpo_sample_size": 8,
        "generation_max_length": 12,
        "generation_temperature": 1.0,
        "generation_top_p": 1.0,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "grpo_beta": 0.0,
        "check_parity": "every",
        "video_max_frames": 4,
        "video_max_frame_pixels": 3136,
        "video_min_frame_pixels": 3136,
        "use_cpu": True,
        "save_strategy": "no",
        "display": "none",
        "seed": 3,
        **settings,
    }
    trainer = GRPOTrainer(str(model), GRPOConfig(**settings), reward_funcs=[letters], callbacks=list(callbacks))
    trainer.train()
    return [row for row in read_metrics(folder) if "loss" in row]


def test_rewards_rise_as_with_the_local_engine_while_servers_die(tiny_checkpoint, start_server, tmp_path):
    """One of two servers dies in step 4 and stays away. The other dies in step 8 and is started again."""
    model = tiny_checkpoint(**WIDE)
    one, two = start_server(model), start_server(model)
    port = two.client.address.split(":")[1]
    again = []

    def replace_the_other():
        two.kill()
        threading.Thread(target=lambda: again.append(start_server(model, "--port", port))).start()

    addresses = [each.client.address for each in (one, two)]
    rows = trained(
        model,
        tmp_path / "served",
        InStep(4, one.kill),
        InStep(8, replace_the_other),
        rollout_engine="vllm_server",
        vllm_server=addresses,
    )
    assert len(rows) == 16 and max(row["parity/max"] for row in rows) < 1e-4
    assert again[0].health().version > 0 and all("time/sync_s" in row for row in rows)
    local = trained(model, tmp_path / "local")
    for each in (rows, local):
        rewards = [row["reward/total"] for row in each]
        assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.1, rewards


def test_a_colocated_server_that_is_killed_is_started_again(tiny_checkpoint, vllm_python, tmp_path, monkeypatch):
    """An adapter learns, with looks. The server is killed before step 2, and the run starts another one."""
    monkeypatch.setattr(toolbox, "TURN_END", "a")  # which random weights sample now and then
    monkeypatch.setattr(toolbox, "calls_in", lambda text: [("look", {"start": 0.0, "end": 1.0})])
    killed = []

    def kill_the_child():  # by the name of its folder: the servers of other tests are children too
        found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "qwenvl-vllm-"], capture_output=True, text=True)
        for child in found.stdout.split():
            os.kill(int(child), signal.SIGKILL)
            killed.append(int(child))

    rows = trained(
        tiny_checkpoint(**WIDE),
        tmp_path / "run",
        InStep(2, kill_the_child),
        rollout_engine="vllm_colocate",
        max_prompt_length=1000,
        lora_enable=True,
        lora_dropout=0.0,
        max_steps=3,
        tools=["look"],
        look_frames=2,
        generation_max_length=40,
        look_tokens=400,
        stop_strings=["a"],
    )
    assert len(killed) == 1 and len(rows) == 3 and max(row["look/looked_frac"] for row in rows) > 0
    assert max(row["parity/max"] for row in rows) < 1e-4
