"""The board of a live run: what it says, at any width."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from qwenvl.train.display.board import Board
from qwenvl.train.log.meter import Memory

LOGS = {
    **{"loss": 0.0, "reward/total": 0.5, "reward/format": 1.0, "reward/std": 0.1, "reward/format/skipped": 1.0},
    **{"kl": 0.0123, "entropy": 1.5, "group/zero_std_frac": 0.25, "completion/length_mean": 184.32},
    **{"time/sample_s": 6.0, "time/data_wait_s": 3.5, "time/step_s": 99.0, "frame_cache/hit_s": 5.0},
}


def drawn(board: Board, width: int, encoding: str = "utf-8") -> list[str]:
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=written, width=width, force_terminal=True, color_system=None).print(board)
    written.seek(0)
    return written.read().splitlines()


@pytest.fixture
def board():
    board = Board("runs/sop", step=30, steps=300, left=3661.0, memory=Memory(18_200_000_000, 80_000_000_000))
    for n in range(30):
        board.add(LOGS | {"reward/total": n / 30, "completion/length_max": 9.0})
    board.evaluations["eval"] = "0.512 +- 0.040 at step 20"
    return board


@pytest.mark.parametrize("width", [30, 80, 120])
def test_everything_is_there_and_fits(board, width):
    lines = drawn(board, width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in ("runs/sop", "step 30 of 300", "1:01:01 left", "0.967", "format 1.000", "KL 0.012", "25%", "184.3"):
        assert words in text, words
    for words in ("eval 0.512 +- 0.040 at step 20", "9.5 s: sampling 6.0, waiting for data 3.5", "18.2 of 80 GB"):
        assert words in text, words
    assert "▁" in text and "█" in text and "99" not in text and "skipped" not in text and "hit" not in text
    assert (len(lines) < 12) == (width >= 80)


def test_an_evaluation_alone_and_a_run_before_its_first_step():
    alone = Board("runs/sop")
    alone.evaluating = (3, 10)
    assert "evaluating" in drawn(alone, 80)[1] and "3 of 10" in drawn(alone, 80)[1]
    assert len(drawn(Board("runs/sop", steps=9), 80)) == 2
    assert "step 0 of 9" in drawn(Board("runs/sop", steps=9), 80)[1]


def test_a_terminal_without_these_characters_gets_others(board):
    assert not any(ord(c) > 127 for c in "".join(drawn(board, 80, "ascii")))
