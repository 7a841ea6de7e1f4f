import os
import time

import pytest

from qwenvl.child import ChildDied, ChildError, ChildFailed, ChildTimeout
from qwenvl.rewards.workers import Workers


@pytest.fixture
def workers():
    made = Workers(2)
    yield made
    made.close()


@pytest.fixture
def module(tmp_path):
    """Functions in a file that child processes load."""
    (tmp_path / "tasks.py").write_text(
        "import os, time\n"
        "def double(x):\n    return 2 * x\n"
        "def pid():\n    return os.getpid()\n"
        "def forever():\n    return 9 ** 9 ** 9 ** 9\n"
        "def meet(mine, other):\n"  # returns where both run at the same time
        "    open(mine, 'w').close()\n"
        "    while not os.path.exists(other):\n        time.sleep(0.01)\n"
        "    return True\n"
        "def die():\n    os._exit(3)\n"
        "def fail():\n    raise KeyError('x')\n"
    )
    return f"{tmp_path / 'tasks.py'}:"


def test_values_come_back(workers, module):
    futures = [workers.submit(module + "double", number) for number in range(20)]
    assert [future.result() for future in futures] == [2 * number for number in range(20)]
    assert workers.submit("qwenvl.rewards.functions.numbers:solves", "1 + 2", [1, 2], target=3).result() is True
    assert workers.submit(max, 3, 4).result() == 4


def test_tasks_run_in_other_processes_that_are_kept(workers, module):
    pids = {workers.submit(module + "pid").result() for _ in range(6)}
    assert os.getpid() not in pids and len(pids) <= 2


def test_a_task_that_is_killed_leaves_a_worker_to_the_next(workers, module):
    for bound in ({"seconds": 0.3}, {"cpu_seconds": 0.3}):
        futures = [workers.submit(module + "forever", **bound) for _ in range(2)]
        for future in futures:
            with pytest.raises(ChildTimeout, match=r"no result after 0.3 s"):
                future.result()
    assert workers.submit(module + "double", 4).result() == 8


def test_tasks_run_side_by_side(workers, module, tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    futures = [workers.submit(module + "meet", *pair, seconds=300) for pair in (paths, paths[::-1])]
    assert [future.result() for future in futures] == [True, True]


def test_failures_are_told(workers, module):
    with pytest.raises(ChildFailed, match="KeyError: 'x'"):
        workers.submit(module + "fail").result()
    with pytest.raises(ChildDied, match="exit code 3"):
        workers.submit(module + "die").result()
    with pytest.raises(ChildError, match="no such Python file"):
        workers.submit("missing.py:f").result()
    with pytest.raises(Exception, match="pickle"):
        workers.submit(module + "double", lambda: 0).result()
    assert workers.submit(module + "double", 1).result() == 2


def test_preloading_comes_before_the_bounds(module, tmp_path):
    (tmp_path / "tasks.py").write_text(
        "import time\n"
        "loaded = []\n"
        "def load():\n"
        "    while time.process_time() < 1.5:\n        pass\n"
        "    loaded.append(bytearray(2**27))\n"
        "def count():\n    return len(loaded)\n"
    )
    workers = Workers(1, memory_bytes=2**26, preload=module + "load")
    assert workers.submit(module + "count", cpu_seconds=1).result() == 1
    with pytest.raises(ChildFailed, match="MemoryError"):
        workers.submit(bytearray, 2**28).result()
    workers.close()


def test_closing_ends_the_processes_at_once(module):
    workers = Workers(2)
    pids = [workers.submit(module + "pid").result()]
    running = workers.submit(module + "forever")
    waiting = [workers.submit(module + "forever") for _ in range(3)]
    while not running.running() or not workers._children:
        time.sleep(0.01)
    pids += [child.pid for child in workers._children]
    workers.close()
    with pytest.raises(ChildDied, match="exit code -9"):
        running.result(timeout=60)
    assert waiting[-1].cancelled()
    for each in workers._threads:
        each.join()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
