import os
import time

import pytest

from qwenvl.rewards.workers import WorkerError, Workers, WorkerTimeout


@pytest.fixture
def workers():
    made = Workers(2)
    yield made
    made.close()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Functions in a file that worker processes load."""
    (tmp_path / "tasks.py").write_text(
        "import os, sys, time\n"
        "def double(x):\n    print('noise')\n    return 2 * x\n"
        "def pid():\n    return os.getpid()\n"
        "def forever():\n    return 9 ** 9 ** 9 ** 9\n"
        "def sleep(seconds):\n    time.sleep(seconds)\n    return seconds\n"
        "def die():\n    os._exit(3)\n"
        "def fail():\n    raise KeyError('x')\n"
        "def fill():\n    return len(bytearray(2 ** 31))\n"
        "def unsendable():\n    return lambda: 0\n"
    )
    return f"{tmp_path / 'tasks.py'}:"


def test_values_come_back_whatever_is_printed(workers, module):
    futures = [workers.submit(module + "double", number) for number in range(20)]
    assert [future.result() for future in futures] == [2 * number for number in range(20)]
    big = "x" * 3_000_000
    assert workers.submit(module + "double", big).result() == big * 2


def test_tasks_run_in_other_processes_that_are_kept(workers, module):
    pids = {workers.submit(module + "pid").result() for _ in range(6)}
    assert os.getpid() not in pids and len(pids) <= 2


def test_the_deadline_kills_and_the_next_task_finds_a_worker(workers, module):
    begin = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"no result after 0.5 s"):
        workers.submit(module + "forever", seconds=0.5).result()
    assert time.monotonic() - begin < 3
    assert workers.submit(module + "double", 4, seconds=20).result() == 8


def test_tasks_run_side_by_side(workers, module):
    workers.submit(module + "pid").result(), workers.submit(module + "sleep", 0).result()
    futures = [workers.submit(module + "sleep", 0.5, seconds=10) for _ in range(2)]
    begin = time.monotonic()
    assert [future.result() for future in futures] == [0.5, 0.5]
    assert time.monotonic() - begin < 5


def test_failures_are_told(workers, module):
    with pytest.raises(WorkerError, match="KeyError: 'x'"):
        workers.submit(module + "fail").result()
    with pytest.raises(WorkerError, match="cannot be sent back"):
        workers.submit(module + "unsendable").result()
    with pytest.raises(WorkerError, match="exit status 3"):
        workers.submit(module + "die").result()
    with pytest.raises(WorkerError, match="no such Python file"):
        workers.submit("missing.py:f").result()
    assert workers.submit(module + "double", 1).result() == 2


def test_memory_is_limited(module):
    workers = Workers(1, memory_bytes=2**30)
    with pytest.raises(WorkerError, match="MemoryError"):
        workers.submit(module + "fill").result()
    workers.close()


def test_closing_ends_the_processes(module):
    workers = Workers(1)
    pid = workers.submit(module + "pid").result()
    workers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
