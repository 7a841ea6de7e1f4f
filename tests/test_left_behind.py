"""What tests start ends with them: killed where pytest is killed, and told where it ends by itself."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = """
import os, signal, subprocess
def test():
    for own in (True, False):  # one of them hears nothing of the end of this process's group
        started = subprocess.Popen(["sleep", "600"], start_new_session=own)
        print("started", started.pid, flush=True)
    {ends}
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


def run_tests(folder: Path, ends: str) -> tuple[int, str, list[int]]:
    (folder / "test_it.py").write_text(LEAVES.format(ends=ends))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.left_behind", "-s", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with (folder / "said").open("w") as said:
        status = subprocess.run(command, env=environment, stdout=said, stderr=said).returncode
    text = (folder / "said").read_text()
    return status, text, [int(line.split()[-1]) for line in text.splitlines() if "started" in line]


def wait_for_the_end(pids: list[int]) -> None:
    while any(_lives(pid) for pid in pids):
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty of one that was not waited for
    return False


def test_killed_tests_leave_nothing_behind(tmp_path):
    status, _, pids = run_tests(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert status == -signal.SIGKILL and len(pids) == 2
    wait_for_the_end(pids)


def test_a_process_that_goes_on_fails_the_tests(tmp_path):
    ends = (
        "import tests.left_behind; tests.left_behind.PATIENCE = 0.2; subprocess.run(['setsid', '-f', 'sleep', '600'])"
    )
    status, said, pids = run_tests(tmp_path, ends)
    assert status == 1 and "1 passed" in said, said
    assert said.count("left behind by the tests: process ") == 1 and ": sleep 600" in said
    wait_for_the_end(pids)
