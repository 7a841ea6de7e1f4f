"""The benchmark of frames that follow the change: it counts what it says, and prints a row for each encoding."""

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import frame_budget

    return frame_budget


def test_sizes_by_hand(bench):
    """Of the predicted frames, 50, 50, 80 and 60, the median is 55. A key frame comes each three, and once early."""
    sizes = [(0, 500, True), (1, 50, False), (2, 50, False), (3, 520, True), (5, 80, False), (4, 60, False)]
    packets = [bench.Packet(*each) for each in [*sizes, (6, 480, True), (7, 300, True)]]
    assert bench.changes_by_size(packets) == [0, 0, 0, 20, 5, 25, 40, 300]


def test_steps_are_seen_where_a_frame_lies_in_them(bench):
    assert bench.covered([0, 5, 9], [range(5, 8), range(8, 9), range(9, 12), range(20, 30)]) == 0.5


def test_a_clip_is_still_but_for_its_steps(bench):
    frames, spans = bench.drawn(3, 8, [1, 4], 0.0)
    assert len(frames) == 8 * bench.FPS
    assert [len(span) in range(7, 11) for span in spans] == [True, True]
    moving = {n for n in range(1, len(frames)) if not np.array_equal(frames[n], frames[n - 1])}
    assert moving <= {n for span in spans for n in range(span.start, span.stop + 1)}


def test_a_row_for_each_encoding(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "ENCODINGS", {name: bench.ENCODINGS[name] for name in ("H.264", "MJPEG, noise")})
    monkeypatch.setattr(bench, "BUDGETS", (8,))
    monkeypatch.setattr(bench, "STEPS_OF_A_CLIP", 2)
    bench.main(["--clips", "1", "--seconds", "16"])
    heads, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert heads == ["encoding", "uniform: 8", "change: 8", "sizes: 8", "looking, s"]
    assert [row[0] for row in rows] == ["H.264", "MJPEG, noise"]
    assert all(row[2] == "100%" for row in rows)
