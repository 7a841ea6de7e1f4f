"""Each warning is given for what it is about, and not otherwise."""

from pathlib import Path

import pytest

from qwenvl.report.findings import warnings
from qwenvl.report.groups import grouped, row_of
from qwenvl.report.run import Run
from tests.report.runs import group

STEPS = range(1, 21)


def run_of(**columns: list[float]) -> Run:
    """A run with a row for each step. ``reward`` and the like are short for their metric."""
    names = {"reward": "reward/total", "equal": "group/zero_std_frac", "cut": "completion/truncated_frac"}
    rows = [{"step": n} | {names.get(key, key): each[n - 1] for key, each in columns.items()} for n in STEPS]
    return Run("r", Path("r"), {}, {}, 20, rows)


RISING = [n / 20 for n in STEPS]
FLAT = [0.5, 0.6] * 10


@pytest.mark.parametrize(
    ("code", "columns"),
    [
        ("equal_rewards", {"equal": [0.0] * 16 + [1.0] * 4, "reward": FLAT}),
        ("reward_falls", {"reward": RISING[::-1]}),
        ("kl_drifts", {"kl": [0.6] * 20, "reward": FLAT}),
        ("truncated", {"cut": [0.0] * 16 + [0.3] * 4}),
        ("entropy_collapsed", {"entropy": [1.0] * 4 + [0.1] * 16, "reward": FLAT}),
        ("skipped_steps", {"nonfinite/skipped_steps": [0.0] * 19 + [2.0]}),
        ("left_out", {"data/bad_samples": [0.0] * 19 + [1.0]}),
        ("not_finite", {"grad_norm": [1.0] * 19 + [float("inf")]}),
        ("evaluation_worse", {"eval_total_reward": RISING[::-1], "eval_total_reward_ci95": [0.1] * 20}),
    ],
)
def test_each_warning(code, columns):
    [found] = warnings(run_of(**columns), [])
    assert found.code == code and found.message and found.advice


@pytest.mark.parametrize(
    "columns",
    [
        {"reward": RISING, "kl": [0.6] * 20, "equal": [1.0] * 16 + [0.5] * 4, "cut": [0.05] * 20},
        {"reward": FLAT, "eval_total_reward": RISING[::-1], "eval_total_reward_ci95": [0.5] * 20},
        {"data/bad_samples": [0.0] * 20},
    ],
)
def test_nothing_is_wrong(columns):
    assert warnings(run_of(**columns), []) == []


def test_groups_of_the_last_fifth_that_are_suspected():
    good, hollow = [1.0, 0.5, 1.0], [0.0, 0.0, 0.5]
    rows = lambda last: [
        row_of(each, 0, 0)
        for step in STEPS
        for each in grouped(group(last if step > 16 else good, step=step, record_id=str(step)))
    ]
    [found] = warnings(run_of(), rows(hollow))
    assert found.code == "suspected_hacking" and "100% of the last 4 groups" in found.message
    assert warnings(run_of(), rows(good)) == []
