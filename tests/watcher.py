"""No process outlives the tests that started it, however they end.

A plugin of pytest, and the program ``watcher.py MARK PID`` that it starts. All processes that tests start have a mark
of this run in their environment, those in sessions of their own too. The program kills them when pytest is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NAME = "QWENVL_TEST_RUN"


def pytest_configure(config):
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    mark = f"{os.getpid()}-{time.time_ns()}"
    # The watcher has no mark, and receives no signal that is sent to the group of pytest.
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    command = [sys.executable, "-S", __file__, mark, str(os.getpid())]
    config.watcher = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
    os.environ[NAME] = mark


def marked(mark: str) -> list[int]:
    """The processes that were started with ``NAME=mark`` in their environment and have not ended."""
    wanted, found = f"{NAME}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def main(mark: str, parent: int) -> None:
    """Wait for the end of ``parent``, then kill the processes with the mark."""
    while os.getppid() == parent:
        time.sleep(0.5)
    while left := marked(mark):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
