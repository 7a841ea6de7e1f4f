"""The benchmark of long video runs, and its growth is what can be redone by hand."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.fixture
def long_video(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import long_video

    return long_video


@pytest.mark.skipif(sys.platform != "linux", reason="peaks come from /proc")
def test_a_step_is_watched(long_video, monkeypatch, tmp_path, capsys):
    """In this process, on a few small frames: all phases, in the order of the step."""
    rows, measured = [], long_video.measured
    monkeypatch.setattr(long_video, "run", lambda case, sizes: rows.append(measured(case, sizes, tmp_path)) or rows[-1])
    flags = ["--family", "qwen3_vl", "--layers", "1", "--pixels", "9000"]
    flags += ["--hidden", "64", "--group", "2", "--length", "3"]
    long_video.main(["--cases", "0.1k", *flags])
    [row] = rows
    assert [*row["peaks"]] == [*row["seconds"]] == [*long_video.CLOCKS.values()]
    assert row["base"] > 0 and row["peak"] >= max(row["peaks"].values())
    assert 80 < row["tokens"] < 120
    assert f"{row['tokens']} tokens, {row['frames']} frames" in capsys.readouterr().out


def test_growth_by_hand(long_video):
    small, large = ({"tokens": n, "peaks": {"vision": peak}} for n, peak in ((1000, 10**9), (3000, 103 * 10**7)))
    assert long_video.growth(small, large, "vision") == 15.0
