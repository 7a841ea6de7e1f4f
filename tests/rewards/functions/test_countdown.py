import time

import pytest

from qwenvl.rewards.functions.countdown import check_countdown, countdown, solves


@pytest.mark.parametrize(
    ("answer", "nums", "target", "right"),
    [
        ("(44 + 19) - 8", [44, 19, 8], 55, True),
        ("(44 + 19) - 8 = 55", [44, 19, 8], 55, True),
        ("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24, True),  # exact fractions
        ("1 / 3", [1, 3], 0.333333, True),  # within 1e-5
        ("1 / 3", [1, 3], 0.3333, False),
        ("-3 + 8", [3, 8], 5, True),
        ("44 + 19 - 8", [44, 19, 8], 56, False),
        ("44 + 11", [44, 19, 8], 55, False),  # other numbers
        ("44 + 19", [44, 19, 8], 63, False),  # one left out
        ("5 + 5", [5], 10, False),  # one twice
        ("7//2", [7, 2], 3, False),
        ("2**3", [2, 3], 8, False),
        ("98.44", [98, 44], 98.44, False),
        ("45=junk", [45], 45, False),
        ("+45", [45], 45, False),
        ("007", [7], 7, False),
        ("1 / 0", [1, 0], 1, False),
        ("", [1], 1, False),
        ("= 1", [1], 1, False),
        ("(1", [1], 1, False),
        ("1 2", [1, 2], 12, False),
        ("(1, 2)", [1, 2], 3, False),
        ("__import__('os')", [1], 1, False),
        ("9**9**9**9", [9, 9, 9, 9], 1, False),
        ("(" * 10_000 + "1" + ")" * 10_000, [1], 1, False),
        ("(" * 95 + "1" + ")" * 95, [1], 1, True),
        ("-" * 190 + "1", [1], 1, False),  # more steps than are read
        ("1000001 - 1", [1000001, 1], 1000000, False),
        ("1\x00", [1], 1, False),
        ("1 × 2", [1, 2], 2, False),
    ],
)
def test_countdown_by_hand(answer, nums, target, right):
    begin = time.thread_time()
    assert solves(answer, nums, target) is right
    assert countdown([f"<answer>{answer}</answer>"], nums=[nums], target=[target]) == [float(right)]
    assert time.thread_time() - begin < 0.1


def test_the_thinking_is_not_read():
    assert countdown(["<think>1 + 2</think>", "1 + 2"], nums=[[1, 2]] * 2, target=[3, 3]) == [0.0, 0.0]


def test_full_width_forms_are_read():
    assert countdown(["<answer>（７－３）＊６＝２４</answer>"], nums=[[3, 6, 7]], target=[24]) == [1.0]


def test_records_that_are_no_game_are_refused():
    assert check_countdown("", {"nums": [1, 2], "target": 3}) is None
    for fields in ({}, {"nums": []}, {"nums": ["1"]}, {"nums": [1.5]}, {"nums": [True]}, {"nums": [-1]}):
        assert "'nums'" in check_countdown("", {"target": 3, **fields})
    for target in (None, "3", float("nan"), 10**9):
        assert "'target'" in check_countdown("", {"nums": [1], "target": target})
