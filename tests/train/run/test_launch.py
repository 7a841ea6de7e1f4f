"""Several processes: signals come to all of them, and one that dies takes the others with it and is told of once."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.train.conftest import turns
from tests.train.test_distributed import environments, forks

TOY = """
import os, signal, sys, time
rank, (how,) = os.environ["RANK"], sys.argv[1:]
if how == "signal":
    def saves(number, frame):
        print("saved by", signal.Signals(number).name, flush=True)
        sys.exit(0)
    signal.signal(signal.SIGUSR1, saves)
    print("ready", flush=True)
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
        process.join(60)
        return process.exitcode, log.read_text()

    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_handed_on_and_all_processes_may_save(number, launched):
    status, said = launched("signal", number)
    assert status == 0 and said.count("saved by SIGUSR1") == 2 and "Traceback" not in said


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("finish", 0, ""),
        ("fail", 3, "qwenvl train: process 1 ended with status 3, and the run with it\n"),
        ("die", 137, "qwenvl train: process 1 was ended by SIGKILL (by the system, most often, because"),
    ],
)
def test_a_process_that_fails_is_told_of_in_a_line(how, status, told, launched):
    code, said = launched(how)
    assert code == status and said.startswith(told) and said.count("\n") == bool(told)


@pytest.mark.parametrize("how", ["lives", "killed", "ctrl_c"])
def test_one_process_that_ends_ends_the_others_and_is_told_once(how, tiny_checkpoint, tmp_path):
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
        process.join(60)
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
