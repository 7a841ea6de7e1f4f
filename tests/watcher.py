"""A program that lives beside the tests, and kills what they started when they are gone: ``watcher.py MARK PID``."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

NAME = "QWENVL_TEST_RUN"


def marked(mark: str) -> list[int]:
    """The processes that were started with ``NAME=mark`` in their environment and have not ended."""
    wanted, found = f"{NAME}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def main(mark: str, parent: int) -> None:
    """Wait for the end of ``parent``, then kill what has the mark."""
    while os.getppid() == parent:
        time.sleep(0.5)
    while left := marked(mark):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
