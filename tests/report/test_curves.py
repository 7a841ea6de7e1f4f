"""Smoothing, thinning and trends, with numbers redone by hand."""

import math

import pytest

from qwenvl.report.curves import half_life_of, smoothed, thinned, trend


def test_a_value_one_half_life_back_weighs_half():
    # (1), (1/2 + 0) / (1/2 + 1), (1/4 + 0 + 1) / (1/4 + 1/2 + 1)
    assert smoothed([1.0, 0.0, 1.0], half_life=1) == pytest.approx([1, 1 / 3, 5 / 7])
    twice = smoothed([1.0, 0.0, 0.0], half_life=2)  # two places back: half
    assert twice[2] == pytest.approx(0.5 / (1 + 0.5**0.5 + 0.5))


def test_equal_values_stay_and_what_is_not_finite_is_passed_over():
    assert smoothed([3.0] * 5, half_life=2) == pytest.approx([3.0] * 5)
    values = smoothed([math.nan, 1.0, math.inf, 0.0], half_life=1)
    assert math.isnan(values[0]) and values[1:] == pytest.approx([1, 1, 1 / 3])


def test_the_half_life_is_a_thirtieth_of_the_curve():
    assert (half_life_of(300), half_life_of(12), half_life_of(0)) == (10, 1, 1)


def test_neighbours_are_averaged_at_the_last_of_their_steps():
    assert thinned([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3) == ([2, 4, 5], [2.0, 6.0, 9.0], 2)
    assert thinned([4, 8], [1.0, 2.0], most=2) == ([4, 8], [1.0, 2.0], 1)
    assert thinned([], [], most=2) == ([], [], 1)


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
