import math

import pytest

from qwenvl.rewards.aggregate import normalized, weighted_sums


def test_weighted_sums_leave_out_what_does_not_apply():
    assert weighted_sums([[1.0, None, 2.0, None], [3.0, 4.0, None, None]], [0.5, 2.0]) == [6.5, 8.0, 1.0, None]


def test_normalized_by_hand():
    # Group (0, 3, None): mean 1.5, std sqrt(4.5). Group (7, None, None): one value has no spread.
    got = normalized([0.0, 3.0, None, 7.0, None, None], group_size=3)
    assert got == [pytest.approx(-1.5 / (math.sqrt(4.5) + 1e-4)), pytest.approx(-got[0]), None, 0.0, None, None]
