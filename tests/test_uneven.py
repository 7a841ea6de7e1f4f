"""The computed time of a step on many GPUs, redone by hand."""

import sys
from pathlib import Path

import pytest

from qwenvl.runlog import Rollout, RunLog

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


@pytest.fixture
def uneven(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script adds to
    import uneven

    return uneven


def test_places_take_the_next_completion_when_they_are_free(uneven):
    assert uneven.makespan([3, 3, 3], 2) == 6
    assert uneven.makespan([2, 4, 6, 2], 2) == 8  # 2 + 6 in one place, 4 + 2 in the other
    assert uneven.makespan([1, 5], 4) == 5


def test_a_step_of_two_gpus_by_hand(uneven):
    """The first GPU has completions of 2 and 4 tokens, the second one of 6 and 2."""
    drawn, rates = [[2, 4], [6, 2]], uneven.Rates(sampled=1.0, trained=0.5)
    local = uneven.step("local", drawn, 2, 0, rates)
    assert local == uneven.Spent(seconds=6 + 4, sampling=(4 + 6) / 2 / 10, training=(3 + 4) / 2 / 10)
    apart = uneven.step("apart", drawn, 2, 1, rates)  # two places sample for 8 s, then the other GPU trains for 7
    assert apart == uneven.Spent(seconds=15, sampling=0.5 * 7 / 15, training=0.5 * 7 / 15)
    assert uneven.step("asynchronous", drawn, 2, 1, rates) == uneven.Spent(seconds=7, sampling=0.5, training=0.5)


def test_the_table_of_a_run(uneven, tmp_path, capsys):
    """Equal completions: whoever samples and trains on its own waits for nobody."""
    log = RunLog(tmp_path)
    log.begin(0)
    for step in (1, 2):
        rows = [Rollout(step, f"r{step}", n, (), "", "x", 10, "stop", {}, 1.0) for n in range(4)]
        log.log_rollouts(rows)
        log.log_metrics(step, {"loss": 0.0, "time/sample_s": 2.0, "time/logp_s": 1.0, "time/backward_s": 3.0})
    assert uneven.rates_of(tmp_path) == uneven.Rates(sampled=0.2, trained=0.1)
    uneven.main([str(tmp_path), "--gpus", "8", "16"])
    said = capsys.readouterr().out
    assert said.startswith("computed, not measured: 2 groups") and "200.00 ms for a sampled token" in said
    assert "| 8 | local | 6.00 | 33% | 67% | 0% |" in said and said.count("\n| ") == 1 + 2 * 3


def test_no_share_is_below_nothing(uneven, tmp_path, capsys, monkeypatch):
    """Equal completions, of which rounding makes a little more than the whole."""
    spent = uneven.Spent(seconds=1.0, sampling=0.3, training=0.7 + 1e-15)
    monkeypatch.setattr(uneven, "step", lambda *ignored: spent)
    monkeypatch.setattr(uneven, "groups_of", lambda run: [[3, 3]])
    monkeypatch.setattr(uneven, "rates_of", lambda run: uneven.Rates(sampled=1.0, trained=1.0))
    uneven.main([str(tmp_path), "--gpus", "8"])
    assert "| 8 | local | 1.00 | 30% | 70% | 0% |" in capsys.readouterr().out
