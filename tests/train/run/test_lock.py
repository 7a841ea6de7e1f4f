"""One run in a folder at a time; death frees it."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from qwenvl.train.run.lock import NAME, RunFolderError, hold, locked, release

HOLDS = """
import os, sys, time
from qwenvl.train.run.lock import hold
hold(sys.argv[1])
if os.fork() == 0:  # as workers of a loader are made: they outlive a killed parent for a while
    time.sleep(600)
print("held", flush=True)
time.sleep(600)
"""


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path):
    folder = tmp_path / "run"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        said = rf"^{folder}: in use by another run, process {other.pid} on {socket.gethostname()}; wait until"
        with pytest.raises(RunFolderError, match=said):
            hold(folder)
        hold(folder, rank=1)  # the processes of a run share what its first one holds
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with locked(folder):  # although its child is alive
            assert (folder / NAME).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.stdout.close()
    assert not (folder / NAME).exists()


def test_a_process_may_hold_it_twice(tmp_path):
    hold(tmp_path)
    with locked(tmp_path):
        pass
    probe = f"from qwenvl.train.run.lock import hold; hold({str(tmp_path)!r})"
    assert b"in use by another run" in subprocess.run([sys.executable, "-c", probe], capture_output=True).stderr
    release(tmp_path)
    release(tmp_path)  # once too often does nothing
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("max_steps: 3")
    for folder, reason in ((file, "Not a directory"), (file / "run", "Not a directory")):
        with pytest.raises(RunFolderError, match=rf"^{folder}: can't be created or written \({reason}\); give another"):
            hold(folder)
    assert file.read_text() == "max_steps: 3"
