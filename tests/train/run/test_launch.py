"""Several processes: signals come to all of them, and one that dies takes the others with it and is told of once."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.forked import forks
from tests.train.conftest import turns
from tests.train.test_distributed import environments

TOY = r"""
import os, signal, sys, time
rank, (how,) = os.environ["RANK"], sys.argv[1:]
if how == "signal":
    def saves(number, frame):
        os.write(1, f"saved by {signal.Signals(number).name}\n".encode())  # whole, beside the other process's
        sys.exit(0)
    signal.signal(signal.SIGUSR1, saves)
    os.write(1, b"ready\n")
    time.sleep(600)
if how == "idle":
    from qwenvl.train.run.signals import ends_at_signals
    with ends_at_signals("toy"):
        os.write(1, b"ready\n")
        time.sleep(600)
if how == "early":
    os.write(1, b"ready\n")
    time.sleep(600)
if how == "finish":
    sys.exit(0)
if rank == "1":
    sys.exit(3) if how == "fail" else os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.fixture
def launched(tmp_path):
    """``launched(how, number)`` -> the status and the output of two processes that do so, and get a signal."""
    context = forks()
    import ranks

    def run(how: str, number: int | None = None) -> tuple[int, str]:
        (tmp_path / "toy.py").write_text(TOY)
        log = tmp_path / "log"
        words = ["--standalone", "--nproc_per_node=2", str(tmp_path / "toy.py"), how]
        process = context.Process(target=ranks.torchrun, args=(str(log), words))
        process.start()
        while number is not None and (not log.exists() or log.read_text().count("ready") < 2):
            assert process.is_alive(), log.read_text()
            time.sleep(0.02)
        if number is not None:
            os.kill(process.pid, number)
        process.join(150)
        return process.exitcode, log.read_text()

    return run


def test_a_signal_is_handed_on_and_all_processes_may_save(launched):
    status, said = launched("signal", signal.SIGTERM)
    assert status == 0 and said.count("saved by SIGUSR1") == 2 and "Traceback" not in said


def test_a_signal_before_the_first_step_is_no_failure(launched):
    status, said = launched("idle", signal.SIGTERM)
    assert status == 0 and "Traceback" not in said and "ended" not in said
    assert said.count("toy: stopped by SIGUSR1 outside of its steps: start the same command again") == 1


def test_a_signal_before_a_process_can_take_it_is_no_failure(launched):
    status, said = launched("early", signal.SIGTERM)
    assert status == 0 and said.count("qwenvl train: stopped by SIGTERM outside of its steps: start the same") == 1


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("finish", 0, ""),
        ("fail", 3, "qwenvl train: process 1 ended with status 3, and the run with it\n"),
        ("die", 137, "qwenvl train: process 1 was ended by SIGKILL (by the system, most often, because"),
    ],
)
def test_a_process_that_fails_is_reported_in_one_line(how, status, told, launched):
    code, said = launched(how)
    assert code == status and said.startswith(told) and said.count("\n") == bool(told)


def test_a_run_that_lost_a_process_goes_on_and_ends_as_an_uninterrupted_run(tiny_checkpoint, tmp_path):
    context = forks()
    import ranks

    data = tmp_path / "rows.json"
    data.write_text(json.dumps([{"conversations": turns(f"What comes after {n}?", "(1)")} for n in range(4)]))
    rewards = Path(ranks.__file__).with_name("ends_in_a_step.py")
    flags = "--use_cpu --max_steps 3 --generation_max_length 4 --grpo_sample_size 3 --save_steps 1 --display none"
    flags += f" --resume auto --model_name_or_path {tiny_checkpoint()} --dataset_use {data}"

    def run(out: Path, **variables: str) -> list[int]:
        processes = [
            context.Process(
                target=ranks.command,
                args=(
                    environment | variables,
                    str(tmp_path / f"log-{rank}"),
                    [*flags.split(), f"--output_dir={out}", f"--reward_funcs={rewards}:killed_once"],
                ),
            )
            for rank, environment in enumerate(environments(2))
        ]
        for each in processes:
            each.start()
        for each in processes:
            each.join(150)
        return [each.exitcode for each in processes]

    lost, whole = tmp_path / "lost", tmp_path / "whole"
    assert run(whole) == [0, 0]
    assert run(lost, DIED=str(tmp_path / "died")) == [1, -signal.SIGKILL]
    assert not (lost / "model.safetensors").exists() and (lost / "checkpoint-1" / "manifest.json").exists()
    assert run(lost, DIED=str(tmp_path / "died")) == [0, 0]
    assert (lost / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("how", ["lives", "killed", "ctrl_c"])
def test_a_process_that_ends_ends_the_others_and_is_reported_once(how, tiny_checkpoint, tmp_path):
    """The command on two processes, without anything that would end the second one for it."""
    context = forks()
    import ranks

    rows = [{"conversations": turns("What comes next?", "(1)")} for _ in range(4)]
    if how == "lives":  # and process 1, which draws the second record, has an image that it can't read
        rows[1] = {"image": "part.png", "conversations": turns("<image>\nWhat is it?", "(1)")}
        (tmp_path / "part.png").write_bytes(b"no image")
    data = tmp_path / "rows.json"
    data.write_text(json.dumps(rows))
    rewards = Path(ranks.__file__).with_name("ends_in_a_step.py")
    flags = "--use_cpu --max_steps 2 --generation_max_length 4 --grpo_sample_size 2 --save_strategy no --display none"
    flags += " --train_sampling_strategy sequential"
    named = [f"--model_name_or_path={tiny_checkpoint()}", f"--dataset_use={data}", f"--output_dir={tmp_path / 'out'}"]
    processes = []
    for rank, environment in enumerate(environments(2)):
        (tmp_path / "attempt" / str(rank)).mkdir(parents=True)
        environment |= {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "attempt" / str(rank) / "error.json")}
        words = [*named, *flags.split(), f"--reward_funcs={rewards}:{how}"]
        processes.append(context.Process(target=ranks.command, args=(environment, str(tmp_path / str(rank)), words)))
        processes[-1].start()
    for process in processes:
        process.join(150)
    said = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    (line,) = [each for text in said for each in text.splitlines() if re.match("qwenvl train: (?!loading)", each)]
    codes = [process.exitcode for process in processes]
    if how == "lives":
        assert codes == [1, 1] and f"{tmp_path}/part.png: " in line
    elif how == "killed":
        assert codes == [1, -signal.SIGKILL] and "another process of the run is gone (" in line
    else:
        assert codes == [130, 130] and line.startswith("qwenvl train: stopped by Ctrl-C; there is no checkpoint yet")
    assert all("Traceback" not in text for text in said)
