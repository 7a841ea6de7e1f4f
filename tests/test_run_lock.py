"""One run in a folder at a time; death frees it."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from qwenvl.run_lock import NAME, RunFolderError, locked

HOLDS = """
import os, sys, time
from qwenvl.run_lock import locked
with locked(sys.argv[1]):
    if os.fork() == 0:  # as workers of a loader are made: they outlive a killed parent for a while
        time.sleep(600)
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path):
    folder = tmp_path / "run"
    words = [sys.executable, "-c", HOLDS, str(folder)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert other.stdout.readline() == "held\n"
        said = rf"^{folder}: in use by another run, process {other.pid} on {socket.gethostname()}; wait until"
        with pytest.raises(RunFolderError, match=said), locked(folder):
            pass
        with locked(folder, rank=1):  # the processes of a run share what its first one holds
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with locked(folder), locked(folder):  # although its child is alive; and a process may hold it twice
            again = subprocess.run(words, capture_output=True, timeout=60)
            assert b"in use by another run, process %d on" % os.getpid() in again.stderr
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.stdout.close()
    assert not (folder / NAME).exists()


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("max_steps: 3")
    for folder in (file, file / "run"):
        said = rf"^{folder}: can't be created or written \(Not a directory\); give another"
        with pytest.raises(RunFolderError, match=said), locked(folder):
            pass
    assert file.read_text() == "max_steps: 3"
