"""Runs that are killed again and again, at moments that a seed draws, end as a run that nobody killed."""

import json
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "scripts" / "bench" / "kills.py"
PHASES = {"beginning", "step", "refill", "evaluation", "save", "ending"}


@pytest.mark.parametrize("run", ["weights", "adapters"])
def test_a_run_that_is_killed_in_each_phase_ends_as_one_that_is_not(run, fork_python, tmp_path):
    """By the number of calls within a phase, or of bytes in a file: at the same moments on every machine."""
    flags = ["--kills", str(len(PHASES)), "--runs", run, "--output_dir", str(tmp_path)]
    done = subprocess.run([fork_python, str(BENCH), *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(kills) == sum(row["kills"] for row in runs) == len(PHASES)
    assert all(row["differs"] == [] for row in runs)
    assert {row["moment"]["phase"] for row in kills} == PHASES
    assert all(row["moment"]["phase"] in row["at"] and not row["left_behind"] for row in kills)
    signals = {"call": "SIGKILL", "write": "SIGXFSZ"}
    assert all(row["signal"] == signals[row["moment"]["kind"]] for row in kills)
    assert f"{len(runs)} runs, {len(runs)} of them equal" in done.stdout
