"""The benchmarks run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.mark.slow
def test_the_step_benchmark_runs():
    command = [sys.executable, str(BENCH / "step.py"), "--cases", "200,2,4", "--repeats", "1", "--threads", "1"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "200,2,4: 222 prompt tokens" in out and out.count(" MiB, ") == 2


def test_the_records_benchmark_runs(fork_python, tmp_path):
    options = ["--records", "30", "--kinds", "csv", "--folder", str(tmp_path)]
    command = [fork_python, str(BENCH / "records.py"), *options]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "30 records" in out and "| csv, 0 MB | " in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["exact", pytest.param("phases", marks=pytest.mark.slow), "decoding"])
def test_what_a_gpu_is_asked_runs_on_a_cpu(part, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script adds to
    importlib.import_module("gpu").main([part, "--rehearse", "--plain", "--results", str(tmp_path / "rows.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["model"] for row in rows} == {"tiny_qwen2_5_vl", "tiny_qwen3_5"}
    assert all(row["logprobs_ratio"] < 3 and row["parity_mean"] < 0.01 for row in rows if part == "exact")
