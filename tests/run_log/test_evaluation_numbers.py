"""Numbers of an evaluation as text."""

from qwenvl.run_log.evaluation_numbers import interval_text


def test_a_mean_that_rounds_to_nothing_has_no_sign():
    assert interval_text({"mean": -0.0001, "low": -0.0004, "high": 0.01}) == "0.000 [0.000, 0.010]"
    assert interval_text({"mean": -0.25, "low": None, "high": None}) == "-0.250"
