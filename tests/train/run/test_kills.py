"""Runs that are killed again and again, at moments that a seed draws, end as a run that nobody killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "scripts" / "bench" / "kills.py"
PHASES = {"beginning", "step", "refill", "evaluation", "save", "ending"}


@pytest.mark.parametrize("run", ["weights", "adapters"])
def test_a_run_that_is_killed_ten_times_ends_as_one_that_is_not(run, tmp_path):
    """By the number of calls within a phase, or of bytes in a file: at the same moments on every machine."""
    flags = ["--kills", "10", "--runs", run, "--kinds", "call", "write", "--output_dir", str(tmp_path)]
    done = subprocess.run([sys.executable, str(BENCH), *flags], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(kills) == sum(row["kills"] for row in runs) == 10
    assert all(row["differs"] == [] for row in runs)
    assert {row["moment"]["phase"] for row in kills} == PHASES
    assert all(row["moment"]["phase"] in row["at"] and not row["left_behind"] for row in kills)
    signals = {"call": "SIGKILL", "write": "SIGXFSZ"}
    assert all(row["signal"] == signals[row["moment"]["kind"]] for row in kills)
    assert f"{len(runs)} runs, {len(runs)} of them equal" in done.stdout
