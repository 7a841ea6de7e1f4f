"""The bonus by hand: 2 of 4 right and a half is a mean of .625."""

import pytest

from qwenvl.rewards.functions.contrast import temporal_contrast

ORDERED = [1.0, 0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("shuffled", "margin", "expected"),
    [
        (0.25, 0.0, [0.2, 0.0, 0.2, 0.0]),
        (0.625, 0.0, [0.0] * 4),
        (0.25, 0.375, [0.0] * 4),  # better by exactly the margin is not more
        (None, 0.0, [None] * 4),
    ],
)
def test_one_group(shuffled, margin, expected):
    assert temporal_contrast(ORDERED, [shuffled], margin, bonus=0.2) == expected


def test_groups_stand_alone():
    assert temporal_contrast([1.0, 1.0, 1.0, 0.0], [1.0, 0.25], margin=0.0, bonus=0.2) == [0.0, 0.0, 0.2, 0.0]


def test_a_completion_that_correctness_says_nothing_of_counts_nowhere():
    # Without it the first group is right in 1 of 2, which beats .4; the second group has no value at all.
    got = temporal_contrast([1.0, None, 0.0, None, None, None], [0.4, 0.0], margin=0.0, bonus=0.2)
    assert got == [0.2, None, 0.0, None, None, None]
