"""The benchmark of long video runs, and its tables are what can be redone by hand."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.fixture
def long_video(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the scripts add to
    import long_video

    return long_video


@pytest.mark.skipif(sys.platform != "linux", reason="peaks come from /proc")
def test_a_step_is_watched(long_video, monkeypatch, tmp_path, capsys):
    """In this process, on a few small frames: all phases, in the order of the step, and a line of JSON."""
    import long_step

    def here(sizes):
        folder = tmp_path / str(sizes.tokens)
        folder.mkdir()
        return long_step.measured(replace(sizes, hidden=64, group=2, length=3, vision_layers=1), folder)

    monkeypatch.setattr(long_video, "run", here)
    flags = ["--family", "qwen3_vl", "--layers", "1", "--heads", "1", "--head_dim", "16", "--pixels", "9000"]
    long_video.main(["--cases", "0.1k", *flags, "--out", str(tmp_path / "rows.jsonl")])
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert tuple(row["peaks"]) == long_video.PHASES == tuple(row["seconds"])
    assert row["peaks"].keys() == row["computed"].keys()
    assert row["base"] > 0 and row["peak"] >= max(row["peaks"].values())
    assert 80 < row["tokens"] < 120 and row["patches"] == row["frames"] // 2 * 4 * 6  # 96 x 64 pixels
    assert f"{row['tokens']} tokens, {row['frames']} frames" in capsys.readouterr().out


def test_slopes_by_hand(long_video):
    def row(tokens, peak, computed, seconds):
        of = {name: {"vision": value} for name, value in (("p", peak), ("c", computed), ("s", seconds))}
        return long_video.Measured(tokens, 0, 0, 0, 0, of["p"], of["c"], of["s"])

    (title, line) = long_video.slope_lines(row(1000, 10**9, 10**6, 1.0), row(3000, 10**9 + 30 * 10**6, 21 * 10**6, 5.0))
    assert "from 1,000 to 3,000" in title
    assert line.split() == ["vision", "15.0", "10.0", "1.50", "2000"]
