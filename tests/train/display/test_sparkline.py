"""Curves in a line, redone by hand."""

import math

from qwenvl.train.display.board import ASCII, Series, sparkline


def test_a_curve_goes_from_the_least_to_the_largest():
    assert sparkline([0.0, 1.0, 2.0, 3.0], width=9, marks="abcd") == "abcd"
    assert sparkline([0.0, 1.0, 2.0, 3.0], width=2, marks="ab") == "ab"  # means 0.5 and 2.5
    assert sparkline([2.0, 2.0], width=4) == "▁▁" and sparkline([], 4) == sparkline([1.0], 0) == ""
    assert sparkline([-1.0, 0.5, 2.0], 3, low=0.0, high=1.0, marks=ASCII) == "_+@"


def test_a_series_keeps_means_of_neighbours_and_the_last_value():
    series = Series(most=4)
    for value in (1.0, 3.0, 5.0, 7.0, 9.0):
        series.add(value)
    assert (series.points, series.last) == ([2.0, 6.0, 9.0], 9.0)  # the last point is of one value so far
    for value in (11.0, 20.0, math.nan):
        series.add(value)
    assert series.points == [2.0, 6.0, 10.0, 20.0] and math.isnan(series.last)
    for value in range(1000):
        series.add(value)
    assert len(series.points) <= 5
