"""No process outlives the tests that started it, however they end: a plugin of pytest.

All processes that tests start have a mark of this run in their environment, those in sessions of their own too. A
watcher kills them when pytest is gone, killed or not. Where pytest ends by itself and they go on, the tests fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import watcher

PATIENCE = 20.0  # seconds that processes which follow their parent may take to see that it is gone


def pytest_configure(config):
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    mark = f"{os.getpid()}-{time.time_ns()}"
    # The watcher has no mark, and hears no signal that is sent to the group of pytest.
    environment = {name: value for name, value in os.environ.items() if name != watcher.NAME}
    command = [sys.executable, "-S", watcher.__file__, mark, str(os.getpid())]
    config.watcher = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
    os.environ[watcher.NAME] = mark


@pytest.hookimpl(trylast=True)  # after that of pytest-xdist, which ends its workers
def pytest_sessionfinish(session):
    if not hasattr(session.config, "watcher"):
        return
    until = time.monotonic() + PATIENCE
    while (left := _left_behind()) and time.monotonic() < until:
        time.sleep(0.1)
    if left:
        session.exitstatus = 1
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        for pid in left:
            reporter.write_line(f"\nleft behind by the tests: process {pid}: {_command(pid)}", red=True)


def _left_behind() -> list[int]:
    """The processes of the tests that do not descend from this one."""
    return [pid for pid in watcher.marked(os.environ[watcher.NAME]) if os.getpid() not in _ancestors(pid)]


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "it has ended meanwhile"
