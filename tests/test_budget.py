"""Tests that take too long are named, the slowest first."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = "from tests import budget\nfrom tests.budget import *\nbudget.SECONDS = {seconds}\n"


def said(folder: Path, seconds: float) -> str:
    (folder / "plugin.py").write_text(PLUGIN.format(seconds=seconds))
    (folder / "test_it.py").write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(0.05)\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "plugin", "-q", str(folder)]
    paths = os.pathsep.join([str(ROOT), str(folder)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_slowest_come_first(tmp_path):
    told = said(tmp_path, 0)
    assert "more than the 0 s that the tests may take" in told and "load of the machine" in told
    assert told.index("test_it.py::test_b") < told.index("test_it.py::test_a")


def test_in_time_nothing_is_said(tmp_path):
    assert "may take" not in said(tmp_path, 600)
