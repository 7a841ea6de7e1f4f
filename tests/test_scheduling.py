"""What encodes clips leaves the tests scheduled as they were, and a test that does not fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.clips.sources import encode_numbered

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="scheduling policies are those of Linux")


def test_av1_is_encoded_without_a_trace(tmp_path):
    before = os.sched_getscheduler(0)
    encode_numbered(tmp_path / "a.mp4", "av1", 3)
    assert os.sched_getscheduler(0) == before


def test_a_test_that_changes_it_fails(tmp_path):
    change = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    code = f"def test_a():\n    {change}\ndef test_b(): pass\n"
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.scheduling", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "2 passed, 1 error" in done.stdout, done.stdout
    assert f"left this process with scheduling policy {os.SCHED_BATCH}, not " in done.stdout
