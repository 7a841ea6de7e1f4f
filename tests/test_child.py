"""Children are real processes: they are killed, starved, crashed and left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from qwenvl.child import Child, ChildDied, ChildError, ChildFailed, ChildTimeout


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start children that run what a message says: the name of a function of this module, and its arguments."""
    (tmp_path / "made_tasks.py").write_text(
        "import mmap, os, sys, threading, time\n"
        "def load(*arguments):\n"
        "    def answer(message):\n"
        "        name, *values = message\n"
        "        return globals()[name](*values)\n"
        "    return answer\n"
        "def load_slowly():\n    sum(range(10**7))\n    return load()\n"
        "def broken():\n    raise RuntimeError('not today')\n"
        "def double(x):\n    print('noise')\n    return 2 * x\n"
        "def pid():\n    return os.getpid()\n"
        "def variable(name):\n    return os.environ.get(name)\n"
        "def compute():\n    return 9 ** 9 ** 9 ** 9\n"  # one call into C, which holds the interpreter's lock
        "def compute_for(seconds):\n"
        "    end = time.process_time() + seconds\n"
        "    while time.process_time() < end:\n        pass\n"
        "    return seconds\n"
        "def sleep(seconds):\n    time.sleep(seconds)\n    return seconds\n"
        "def die():\n    os._exit(3)\n"
        "def leave():\n    sys.exit(0)\n"
        "def fail():\n    raise KeyError('x')\n"
        "def fill(size):\n    return len(bytearray(size))\n"
        "def unsendable():\n    return lambda: 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    children = []

    def begin(load="load", **settings):
        children.append(Child(f"made_tasks:{load}", **settings))
        return children[-1]

    yield begin
    for child in children:
        child.kill()


def test_answers_come_back_whatever_is_printed(start, capfd):
    child = start()
    assert [child.ask(("double", number)) for number in range(5)] == [0, 2, 4, 6, 8]
    assert child.ask(("double", "x" * 3_000_000)) == "x" * 6_000_000
    printed = capfd.readouterr()
    assert printed.out == "" and "noise" in printed.err
    assert child.ask(("pid",)) == child.pid != os.getpid()


@pytest.mark.parametrize(
    ("task", "bounds", "message"),
    [
        (("sleep", 600), {"seconds": 0.2}, r"no result after 0.2 s"),
        (("compute",), {"cpu_seconds": 0.3}, r"no result after 0.3 s of computing"),
    ],
)
def test_a_task_ends_at_its_bound_by_the_clock_or_on_computing(start, task, bounds, message):
    child = start()
    with pytest.raises(ChildTimeout, match=message):
        child.ask(task, **bounds)
    assert not child.alive


def test_the_bound_on_computing_counts_neither_waiting_nor_loading_nor_earlier_messages(start):
    child = start("load_slowly")
    assert child.ask(("sleep", 0.6), cpu_seconds=0.3) == 0.6
    for _ in range(3):
        assert child.ask(("compute_for", 0.15), cpu_seconds=0.3) == 0.15
    assert child.ask(("compute_for", 0.4)) == 0.4, "a message without a bound has none of the one before"


def test_a_task_that_fails_is_reported_and_the_child_lives_on(start):
    child = start()
    with pytest.raises(ChildFailed, match="KeyError: 'x'") as caught:
        child.ask(("fail",))
    assert "made_tasks.py" in caught.value.details
    with pytest.raises(ChildFailed, match="SystemExit: 0"):
        child.ask(("leave",))
    with pytest.raises(ChildFailed, match="pickle"):
        child.ask(("unsendable",))
    assert child.ask(("double", 1)) == 2


def test_the_death_of_a_child_is_reported_with_its_exit_code(start):
    with pytest.raises(ChildDied, match="exit code 3"):
        start().ask(("die",))
    child = start()
    os.kill(child.pid, signal.SIGSEGV)
    child._process.wait()
    assert not child.alive
    with pytest.raises(ChildDied, match="exit code -11"):
        child.ask(("pid",))


def test_a_child_that_cannot_load_is_an_error(start):
    with pytest.raises(ChildError, match=r"made_tasks:broken: while .*, the process died \(exit code 1\)") as caught:
        start("broken")
    assert not isinstance(caught.value, ChildDied), "that would be the fault of a message"


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system has no such bound")
def test_signals_that_come_while_a_child_starts_are_left_to_its_parent(start, tmp_path):
    """As when a queue tells all processes of a run to end."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nfor each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):\n"
        "    os.kill(os.getpid(), each)\n"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = Child("made_tasks:load", environment={"PYTHONPATH": str(tmp_path)})
    assert child.ask(("double", 4)) == 8 and child.kill() == -signal.SIGKILL
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_the_memory_bound_begins_above_the_memory_of_loading(start):
    child = start(memory_bytes=2**28)
    assert child.ask(("fill", 2**27)) == 2**27
    with pytest.raises(ChildFailed, match="MemoryError"):
        child.ask(("fill", 2**29))


@pytest.mark.parametrize("task", [("sleep", 600), ("compute",)], ids=["sleeps", "computes"])
def test_a_child_goes_when_its_parent_is_killed(start, tmp_path, task):
    code = (
        "import os, signal, sys, threading, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from qwenvl.child import Child\n"
        "child = Child('made_tasks:load')\n"
        "print(child.pid, flush=True)\n"
        f"threading.Thread(target=lambda: child.ask({task!r}, seconds=1), daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(done.stdout)
    for _ in range(600):
        if ended(child):
            return
        time.sleep(0.1)
    pytest.fail("the child outlived its parent")


def ended(pid):
    """Whether a process is gone, or waits for an init that reaps it."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as status:
            return status.read().split(") ")[1].startswith("Z")
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_work_that_nobody_waits_for_ends_with_its_child(start):
    child = start()
    asked = []
    is_over = lambda: asked.append(None) or len(asked) > 1
    with pytest.raises(ChildTimeout):
        child.ask(("sleep", 60.0), seconds=60.0, is_over=is_over)
    assert len(asked) == 2 and not child.alive
    child = start()
    assert child.ask(("double", 4), seconds=60.0, is_over=lambda: False) == 8
    with pytest.raises(ChildTimeout):
        child.ask(("sleep", 60.0), seconds=0.2, is_over=lambda: False)
