"""Thinning, trends and the charts of a page, with numbers redone by hand."""

import math
from pathlib import Path

import pytest

from qwenvl.run_log.run import SECTIONS, Run, charts, clocks, finite, phases, shown, thinned, trend


def test_neighbours_are_averaged_at_the_last_of_their_steps():
    assert thinned([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3) == ([2, 4, 5], [2.0, 6.0, 9.0], 2)
    assert thinned([4, 8], [1.0, 2.0], most=2) == ([4, 8], [1.0, 2.0], 1)
    assert thinned([], [], most=2) == ([], [], 1)
    steps, [mean], _ = thinned([1, 2], [math.inf, -math.inf], most=1)
    assert steps == [2] and math.isnan(mean)


def test_a_trend_compares_the_fifths_with_their_interval():
    # Fifths of two values: means 0.5 and 2.5, each with variance 0.5. 1.96 * sqrt(0.5 / 2 + 0.5 / 2) = 1.386
    found = trend([0.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 2.0, 3.0])
    assert (found.first, found.last, found.change, found.verdict) == (0.5, 2.5, 2.0, "rises")
    assert found.ci95 == pytest.approx(1.96 * math.sqrt(0.5))
    assert trend([2.0, 3.0] + [9.0] * 6 + [0.0, 1.0]).verdict == "falls"
    assert trend([0.0, 1.0] + [9.0] * 6 + [0.5, 1.5]).verdict == "flat"  # 0.5 is within 1.386


def test_a_short_curve_has_no_verdict_and_an_empty_one_no_trend():
    short = trend([1.0, math.nan, 2.0])
    assert (short.first, short.last, short.verdict) == (1.0, 2.0, "short") and math.isnan(short.ci95)
    assert trend([]) is None and trend([math.nan]) is None


def run_of(*rows: dict[str, float]) -> Run:
    return Run("r", Path("r"), {}, {}, None, [{"step": n + 1} | row for n, row in enumerate(rows)])


@pytest.mark.parametrize(
    ("metric", "section", "title", "unit"),
    [
        ("reward/total", "learning", "total reward", "reward"),
        ("dataset/sop/reward", "learning", "dataset: sop/reward", "value"),
        ("kl", "stable", "KL to the reference", "nats per token"),
        ("my_own_number", "stable", "my own number", "value"),
        ("eval_total_reward", "learning", "eval total reward", "value"),
        ("eval_runtime", "fast", "eval runtime", "seconds"),
    ],
)
def test_each_metric_has_a_section_a_title_and_a_unit(metric, section, title, unit):
    assert (shown(metric).section, shown(metric).title, shown(metric).unit) == (section, title, unit)
    assert section in SECTIONS


def test_curves_begin_with_rewards_and_leave_out_seconds_and_epochs():
    row = {"loss": 0.0, "epoch": 0.1, "reward/b": 0.0, "reward/total": 0.0, "time/sample_s": 1.0, "reward/std": 0.1}
    later = {name: value + 1 for name, value in row.items()}
    found = charts([run_of(row, later, {"train_loss": 0.0, "total_flos": 1.0})])
    assert [each["metric"] for each in found["learning"]] == ["reward/total", "reward/b", "reward/std"]
    assert [each["metric"] for each in found["stable"]] == ["loss"]
    assert found["fast"] == found["data"] == [], "seconds are stacked, and neither epoch nor the last line is a curve"


def test_constant_metrics_stand_behind_except_the_total_reward():
    found = charts([run_of(*[{"reward/total": 1.0, "reward/std": 0.0, "learning_rate": 1e-6}] * 3)])
    main = {each["metric"]: each["main"] for section in found.values() for each in section}
    assert main == {"reward/total": True, "reward/std": False, "learning_rate": False}


def test_hours_are_the_seconds_of_all_steps_so_far():
    rows = ({"time/step_s": 3600.0}, {"loss": 0.0}, {"time/step_s": 1800.0})  # the third row is of two steps
    assert clocks([run_of(*rows), run_of({"loss": 0.0})]) == [{"steps": [0, 1, 3], "hours": [0, 1, 2]}, None]
    # As runs log them: the seconds of a step are those of its phases.
    rows = ({"time/sample_s": 3000.0, "time/logp_s": 600.0}, {"loss": 0.0}, {"time/sample_s": 1800.0})
    assert clocks([run_of(*rows)]) == [{"steps": [0, 1, 3], "hours": [0, 1, 2]}]


def test_an_evaluation_has_points_with_intervals_and_a_later_row_counts():
    rows = (
        {"eval_total_reward": value, "eval_total_reward_ci95": width} for value, width in ((0.5, 0.1), (0.6, math.nan))
    )
    again = {"step": 1, "eval_total_reward": 0.4, "eval_accuracy_reward": 0.2}
    [chart] = charts([run_of(*rows, again)])["learning"]
    assert chart["title"] == "held-out reward" and chart["main"]
    assert chart["curves"] == [{"run": 0, "steps": [1, 2], "values": [0.4, 0.6], "ci95": [None, None], "each": 1}]


def test_phases_are_stacked_in_their_order():
    [found] = phases(
        [
            run_of(
                {"time/sample_s": 2.0, "time/reward_s": 1.0, "time/step_s": 9.0}, {"loss": 0.0}, {"time/sample_s": 4.0}
            )
        ]
    )
    assert (found["names"], found["steps"]) == (["sample", "reward"], [1, 3])
    assert (found["values"], found["means"]) == ([[2, 4], [1, 0]], [3, 0.5])
    assert phases([run_of({"loss": 0.0})]) == []


def test_numbers_have_six_digits_and_only_finite_ones_are_numbers():
    assert finite([1 / 3, None, math.nan, -math.inf, 123456789.0]) == [0.333333, None, None, None, 123457000.0]
