"""The demo's own progress: lines in a file, at most one in some seconds, and the last."""

import sys
import time
from types import SimpleNamespace

from qwenvl.demo.counting import Counting


def test_lines_come_every_few_seconds_and_at_the_end(capsys):
    clock = SimpleNamespace(now=0.0)
    with Counting("[2/4] warm-up", "step", seconds=5, clock=lambda: clock.now) as steps:
        for done in range(1, 9):
            clock.now += 2
            steps.advance(done, 10, f"loss {1 / done:.2f}")
        steps.end()
    assert capsys.readouterr().err.splitlines() == [
        "[2/4] warm-up: step 3 of 10, loss 0.33",
        "[2/4] warm-up: step 6 of 10, loss 0.17",
        "[2/4] warm-up: step 8 of 10, loss 0.12",
    ]


def test_nothing_is_said_where_nothing_was_done(capsys):
    with Counting("[1/4] clips", "clip"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_ends_full(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Counting("[2/4] warm-up", "step") as steps:
        steps.advance(1, 10, "loss 1.00")
        time.sleep(0.2)  # more than the least time between two pictures of a bar
        steps.advance(2, 10, "loss 0.50")
        steps.end()
    shown = capsys.readouterr().err
    assert "\r[2/4] warm-up" in shown and "2/2" in shown and "loss" in shown
