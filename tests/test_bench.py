"""The benchmarks run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch):
    """``bench(name)`` -> a benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))  # which scripts add to
    return importlib.import_module


@pytest.mark.slow
def test_the_step_benchmark_runs():
    command = [sys.executable, str(BENCH / "step.py"), "--cases", "200,2,4", "--repeats", "1", "--threads", "1"]
    command += ["--vocabulary", "5000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "200,2,4: 222 prompt tokens" in out and out.count(" MiB, ") == 2


def test_the_benchmark_of_the_next_token_draws_by_both_ways(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["next_token.py", "--vocabulary", "5000", "--rows", "2", "--repeats", "1"])
    bench("next_token").main()
    out = capsys.readouterr().out
    assert "2 rows of 5,000" in out and out.count("\n| ") == 10


@pytest.mark.skipif(sys.platform != "linux", reason="peaks come from /proc")
def test_the_records_benchmark_opens_the_files_it_writes(bench, tmp_path):
    records = bench("records")
    for n in range(30):
        (tmp_path / "clips" / f"{n}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / "clips" / f"{n}.mp4").touch()
    for kind in ("jsonl", "csv"):
        records.write(tmp_path / f"bench.{kind}", 30)
        found = records.measure(tmp_path / f"bench.{kind}")
        # Memory may fall while so small a file is opened.
        assert found["records"] == 30 and found["open"] > 0 and abs(found["memory"]) < 1024


@pytest.mark.parametrize("part", ["exact", pytest.param("phases", marks=pytest.mark.slow), "decoding"])
def test_the_gpu_benchmark_rehearses_on_a_cpu(part, bench, tmp_path):
    results = str(tmp_path / "rows.jsonl")
    bench("gpu").main([part, "--rehearse", "--vocabulary", "5000", "--plain", "--results", results])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["model"] for row in rows} == {"tiny_qwen2_5_vl", "tiny_qwen3_5"}
    assert all(row["logprobs_ratio"] < 3 and row["parity_mean"] < 0.01 for row in rows if part == "exact")


@pytest.mark.skipif(sys.platform != "linux", reason="peaks come from /proc")
def test_a_step_on_a_long_video_is_watched(bench, monkeypatch, tmp_path, capsys):
    """In this process, on a few small frames: all phases, in the order of the step."""
    long_video = bench("long_video")
    rows, measured = [], long_video.measured
    monkeypatch.setattr(long_video, "run", lambda case, sizes: rows.append(measured(case, sizes, tmp_path)) or rows[-1])
    flags = "--family qwen3_vl --layers 1 --pixels 9000 --hidden 64 --group 2 --length 3 --vocabulary 5000"
    long_video.main(["--cases", "0.1k", *flags.split()])
    [row] = rows
    assert [*row["peaks"]] == [*row["seconds"]] == [*long_video.CLOCKS.values()]
    assert row["base"] > 0 and row["peak"] >= max(row["peaks"].values()) and 80 < row["tokens"] < 120
    assert f"{row['tokens']} tokens, {row['frames']} frames" in capsys.readouterr().out
    small, large = ({"tokens": n, "peaks": {"vision": peak}} for n, peak in ((1000, 10**9), (3000, 103 * 10**7)))
    assert long_video.growth(small, large, "vision") == 15.0
