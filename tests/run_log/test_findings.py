"""Each warning is given for what it is about, and not otherwise."""

import math
from pathlib import Path

import pytest

from qwenvl.run_log.health import findings, history_of
from qwenvl.run_log.report.pages import group_row, grouped
from qwenvl.run_log.report.write import warnings
from qwenvl.run_log.run import Run
from tests.run_log.runs import group

STEPS = range(1, 61)


def run_of(steps: range = STEPS, **columns: list[float]) -> Run:
    """A run with a row for each step, of 24 groups. ``reward`` and the like are short for their metric."""
    names = {"reward": "reward/total", "equal": "group/zero_std_frac", "cut": "completion/truncated_frac"}
    named = {names.get(key, key): each for key, each in columns.items()}
    rows = [{"step": n, "loss": 0.0} | {name: each[n - 1] for name, each in named.items()} for n in steps]
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "processes": 2}
    return Run("r", Path("r"), settings, {}, steps[-1], rows)


RISING = [n / 60 for n in STEPS]
FLAT = [0.5] * 60


@pytest.mark.parametrize(
    ("code", "columns"),
    [
        ("equal_rewards", {"equal": [0.0] * 48 + [1.0] * 12, "reward": FLAT}),
        ("reward_falls", {"reward": RISING[::-1]}),
        ("kl_grows", {"kl": [0.05] * 36 + [1.0] * 24, "reward": FLAT}),
        ("truncated", {"cut": [0.0] * 48 + [0.3] * 12}),
        ("entropy_collapsed", {"entropy": [1.0] * 12 + [0.1] * 48, "reward": FLAT}),
        ("skipped_steps", {"nonfinite/skipped_steps": [0.0] * 59 + [2.0]}),
        ("left_out", {"data/bad_samples": [0.0] * 59 + [1.0]}),
        ("not_finite", {"grad_norm": [1.0] * 59 + [float("inf")]}),
        ("evaluation_worse", {"eval_total_reward": RISING[::-1], "eval_total_reward_ci95": [0.1] * 60}),
    ],
)
def test_each_warning_is_found_in_its_curves(code, columns):
    [found] = warnings(run_of(**columns), [])
    assert found.code == code and found.message and found.advice


@pytest.mark.parametrize(
    "columns",
    [
        {"reward": RISING, "kl": [0.6] * 60, "equal": [1.0] * 48 + [0.5] * 12, "cut": [0.05] * 60},
        {"reward": FLAT, "eval_total_reward": RISING[::-1], "eval_total_reward_ci95": [0.5] * 60},
        {"reward": FLAT, "eval_total_reward": RISING[::-1], "eval_total_reward_ci95": [math.nan] * 60},  # one clip
        {"data/bad_samples": [0.0] * 60},
    ],
    ids=["a rising reward", "a wide interval", "an interval of one clip", "no bad sample"],
)
def test_healthy_curves_give_no_warning(columns):
    assert warnings(run_of(**columns), []) == []


def test_each_evaluation_that_was_better_before_is_named():
    names = ("eval_one", "eval_two")
    columns = {f"{name}_total_reward": RISING[::-1] for name in names}
    columns |= {f"{name}_total_reward_ci95": [0.1] * 60 for name in names}
    found = [each.message.partition(" is ")[0] for each in warnings(run_of(**columns), []) if "worse" in each.code]
    assert found == list(names)


def test_the_report_warns_in_the_words_of_the_run():
    columns = {"equal": [1.0] * 60, "reward": [0.25] * 60}
    [found] = warnings(run_of(**columns), [])
    rows = run_of(**columns).rows
    assert [found] == list(findings(history_of(rows, prompts=24))) and "the last 1440 groups" in found.message
    assert "--filter_groups" in found.advice


def test_a_reward_that_falls_is_not_called_flat_as_well():
    steps = range(1, 121)
    codes = lambda reward: [each.code for each in warnings(run_of(steps, reward=reward), [])]
    assert codes([1 - n / 120 for n in steps]) == ["reward_falls"]
    assert codes([0.5] * 120) == ["reward_flat"]


def test_suspected_groups_in_the_last_fifth_give_a_warning():
    good, hollow = [1.0, 0.5, 1.0], [0.0, 0.0, 0.5]
    rows = lambda last: [
        group_row(each)
        for step in STEPS
        for each in grouped(group(last if step > 48 else good, step=step, record_id=str(step)))
    ]
    [found] = warnings(run_of(), rows(hollow))
    assert found.code == "suspected_hacking" and "100% of the last 12 groups" in found.message
    assert warnings(run_of(), rows(good)) == []
