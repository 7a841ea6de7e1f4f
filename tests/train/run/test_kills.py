"""Runs that are killed again and again, at moments that a seed draws, end as a run that nobody killed."""

import json
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "scripts" / "bench" / "kills.py"
PHASES = {"beginning", "step", "refill", "evaluation", "save", "ending"}


@pytest.mark.parametrize("run", ["adapters", pytest.param("weights", marks=pytest.mark.slow)])
def test_a_run_that_is_killed_in_each_phase_ends_as_an_uninterrupted_run(run, fork_python, tmp_path):
    """By the number of calls within a phase, or of bytes in a file: at the same moments on every machine."""
    flags = ["--kills", str(len(PHASES)), "--runs", run, "--output_dir", str(tmp_path / "kills")]
    done = subprocess.run([fork_python, str(BENCH), *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "kills" / "kills.json").read_text())
    kills = found["kills"]
    assert len(kills) == len(PHASES) == len({kill["phase"] for kill in kills})
    assert not any(found["differs"]) and "chain 0: equal" in done.stdout
    assert not any(kill["left_behind"] for kill in kills)
    signals = {"call": "SIGKILL", "write": "SIGXFSZ"}
    assert all(kill["signal"] == signals[kill["kind"]] for kill in kills)
