"""Signals: the run finishes its step, saves a checkpoint, and a run resumed from it ends with the same weights."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from qwenvl.run_log.log import read_config, read_metrics
from tests.train.conftest import turns
from tests.train.test_distributed import launch

COMMAND = Path(__file__).resolve().parents[3] / "qwenvl" / "train" / "train_grpo.py"
SETTINGS = "--dataset_use=example --generation_max_length=2 --grpo_sample_size=2 --use_cpu=True --save_strategy=no"


class SignalOnSave(TrainerCallback):
    """Sends this process SIGTERM while a checkpoint is saved."""

    def on_save(self, args, state, control, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)


class Signals(TrainerCallback):
    """Sends this process a signal when a step begins."""

    def __init__(self, step: int, number: int):
        self.step, self.number = step, number

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


def test_a_signal_saves_and_the_resumed_run_is_the_same(make_trainer, tmp_path, capfd):
    """Between two steps on the same completions nothing can be saved: the run ends after the second."""
    settings = {"max_steps": 4, "num_iterations": 2, "gradient_accumulation_steps": 2}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    cut = {"output_dir": str(tmp_path / "cut"), "resume": "auto", **settings}
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as ended:
        make_trainer(callbacks=[Signals(1, signal.SIGUSR1)], **cut).train()
    assert ended.value.code == 0 and signal.getsignal(signal.SIGUSR1) == before
    said = capfd.readouterr().err
    assert "SIGUSR1: finishing the step and saving a checkpoint, in at most 600 s" in said
    assert f"stopped by SIGUSR1 after step 2, saved as {tmp_path}/cut/checkpoint-2: --resume auto" in said
    resumed = make_trainer(**cut)
    resumed.train()
    assert [row["step"] for row in read_metrics(tmp_path / "cut") if "loss" in row] == [1, 2, 3, 4]
    weights = dict(resumed.model.named_parameters())
    for each, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, weights[each]), each


@pytest.mark.parametrize("last_step", [1, 2])
def test_a_signal_while_a_checkpoint_is_saved_ends_the_run_with_it(make_trainer, tmp_path, capfd, last_step):
    """Also after the last step, where no other step hears of the signal."""
    settings = {"max_steps": last_step, "save_strategy": "steps", "save_steps": 1, "output_dir": str(tmp_path)}
    with pytest.raises(SystemExit) as ended:
        make_trainer(callbacks=[SignalOnSave()], **settings).train()
    assert ended.value.code == 0
    assert f"stopped by SIGTERM after step 1, saved as {tmp_path}/checkpoint-1: --resume auto" in capfd.readouterr().err
    assert "finished" not in read_config(tmp_path)
    assert [row["step"] for row in read_metrics(tmp_path) if "loss" in row] == [1]
    resumed = make_trainer(resume="auto", **settings)
    resumed.train()
    assert resumed.state.global_step == last_step


def test_a_signal_to_one_process_ends_them_all(tiny_checkpoint, tmp_path):
    rows = [{"conversations": turns("What comes next?", "(1)")}] * 4
    data, out = tmp_path / "texts.json", tmp_path / "run"
    data.write_text(json.dumps(rows))
    launch(2, tiny_checkpoint(), data, out, how={"signal_on_1": True}, max_steps=3)
    assert (out / "checkpoint-1" / "rng_state_1.pth").is_file()
    assert [row["step"] for row in read_metrics(out) if "loss" in row] == [1]


@pytest.fixture
def start(fork_python, tiny_checkpoint):
    """``start("--flag", out=folder)``: the command, in a group of processes of its own, which hears its signals."""

    def start(*flags: str, out: Path) -> subprocess.Popen:
        where = [f"--model_name_or_path={tiny_checkpoint()}", f"--output_dir={out}"]
        return subprocess.Popen(
            [fork_python, str(COMMAND), *where, *SETTINGS.split(), *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    return start


def test_a_signal_to_the_whole_group_ends_the_command_with_status_0(start, tmp_path):
    out = tmp_path / "out"
    with start("--max_steps=100000", "--dataloader_num_workers=1", "--resume=auto", out=out) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step 1 of"):
                break
        process.send_signal(signal.SIGTERM)  # the workers that decode have it too
        said += process.stderr.readlines()
    assert process.returncode == 0, "".join(said)
    assert "Traceback" not in "".join(said)
    step = int(re.search(r"stopped by SIGTERM after step (\d+), saved as", said[-1])[1])
    assert (out / f"checkpoint-{step}" / "optimizer.pt").is_file()
    assert "finished" not in read_config(out) and not (out / ".lock").exists()


def test_a_signal_before_the_first_step_ends_the_command_with_status_0(start, tmp_path):
    with start(out=tmp_path / "out") as process:
        assert process.stderr.readline().startswith("reading the records to train on")
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 0 and not (tmp_path / "out" / ".lock").exists()
    assert said.endswith("qwenvl train: stopped by SIGTERM outside of its steps: start the same command again\n")


HANGS = """
import sys, time
from types import SimpleNamespace
from qwenvl.step.meter import Meter
from qwenvl.train.run import interruptions

def hangs():
    {hang}

interruptions.BACKUP_SECONDS = 0.5
meter = Meter()
args = SimpleNamespace(stall_timeout=0.01, process_index=3, world_size=1)
with interruptions.StallWatch(args, meter).watches():
    with meter.time("time/logp_s"):
        hangs()
"""


@pytest.mark.parametrize("hang", ["time.sleep(600)", "import re; re.match('(a|aa)+$', 'a' * 60 + 'b')"])
def test_a_run_without_progress_ends_with_the_line_where_it_hangs(hang, fork_python):
    """The second one holds Python's lock, so that no Python code can end it."""
    done = subprocess.run([fork_python, "-c", HANGS.format(hang=hang)], capture_output=True, text=True)
    assert done.returncode == 1
    if "sleep" in hang:
        assert "no progress for 0.01 minutes (--stall_timeout) since step 0 (log-probs): process 3 ends." in done.stderr
    assert re.search(r'File "<string>", line \d+ in hangs', done.stderr)


FORKS = """
import multiprocessing, os, signal, time
from types import SimpleNamespace
from qwenvl.train.run import interruptions, signals
signals._FORK_WAITS = 1.0  # seconds in which this machine starts a thread of another process

args = SimpleNamespace(save_on_signal=600.0, device="cpu", world_size=1, num_iterations=1, output_dir="run")
fork = multiprocessing.get_context("fork").Process
with interruptions.StopOnSignal(args).listens(), signals.ends_at_signals("toy"):
    # Short sleeps: a signal that comes just before a long one begins would be handled at its end.
    alone = fork(target=lambda: [time.sleep(0.01) for _ in range(60_000)])
    alone.start()
    alone.terminate()
    alone.join()
    print("terminated by", signal.Signals(-alone.exitcode).name, flush=True)

    def outlives():
        os.kill(os.getppid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)

    with_the_run = fork(target=outlives)
    with_the_run.start()
    with_the_run.join()
    print("ended with", with_the_run.exitcode, flush=True)
"""


def test_a_fork_of_a_reward_can_be_terminated_and_outlives_a_signal_to_the_whole_run(fork_python):
    """A pool of processes terminates its own at its end, and waits for them."""
    done = subprocess.run([fork_python, "-c", FORKS], capture_output=True, text=True)
    assert done.stdout == "terminated by SIGTERM\nended with 7\n" and done.returncode == 0, done.stderr


def test_a_step_that_outlasts_the_time_limit_is_ended_without_a_checkpoint(start, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, signal, threading\n"
        "def hangs(completions, **columns):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Event().wait()\n"
    )
    flags = ["--reward_funcs", f"{tmp_path}/slow.py:hangs", "--save_on_signal=0.5"]
    with start(*flags, out=tmp_path / "out") as process:
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert said.endswith("SIGTERM: the step was not done in 0.5 s (--save_on_signal): ending without it\n")


@pytest.mark.parametrize(("reward", "status"), [("raises", 2), ("spoils_the_save", 1)])
def test_an_error_ends_the_command_while_its_workers_live(reward, status, start, tmp_path):
    """Ctrl-C, the third kind of end, is in ``test_failures.py``."""
    (tmp_path / "own.py").write_text(
        "import pathlib\n"
        "def raises(completions, **columns):\n    raise ValueError('no')\n"
        "def spoils_the_save(completions, **columns):\n"
        f"    pathlib.Path('{tmp_path}/out/checkpoint-1').touch()\n"
        "    return [0.0] * len(completions)\n"
    )
    flags = [f"--reward_funcs={tmp_path}/own.py:{reward}", "--dataloader_num_workers=1", "--save_strategy=steps"]
    with start(*flags, "--save_steps=1", out=tmp_path / "out") as process:
        try:
            _, said = process.communicate(timeout=150)
        finally:
            process.kill()
    assert process.returncode == status, said
