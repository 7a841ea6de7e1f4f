import time
from decimal import Decimal

import pytest

from qwenvl.rewards.functions.answers import (
    check_countdown,
    check_number,
    count,
    countdown,
    numbers_in,
    numeric,
    regression,
    solves,
)


def answers(*texts):
    return [f"<think>7</think><answer>{text}</answer>" for text in texts]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", ["3"]),
        ("there are 3 cubes.", ["3"]),
        ("-2.50 and +4", ["-2.50", "4"]),
        ("\N{MINUS SIGN}2.50", ["-2.50"]),
        ("1,234,567.5", ["1234567.5"]),
        ("1,2", ["1", "2"]),
        ("2e-3", ["0.002"]),
        ("50%", ["50"]),
        ("three", []),
        ("9" * 31, []),  # too long to be a number
        ("0." + "1" * 31, []),
    ],
)
def test_numbers_in_a_text(text, numbers):
    assert numbers_in(text) == [Decimal(number) for number in numbers]


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("3", "3", 1.0),
        ("There are 3 cubes.", "<answer> 3 </answer>", 1.0),
        ("3.0", "3", 1.0),
        ("4", "3", 0.0),
        ("\N{MINUS SIGN}3", "3", 0.0),
        ("\N{MINUS SIGN}3", "-3", 1.0),
        ("2 or 3", "3", 0.0),
        ("three", "3", 0.0),
        ("", "3", 0.0),
    ],
)
def test_count_by_hand(answer, solution, score):
    assert count(answers(answer), solution=[solution]) == [score]


def test_numeric_by_hand():
    # Tolerance 0.01: absolute 0.01 up to 1, then 1 percent.
    texts, solutions = answers("0.51", "0.512", "202", "203", "x"), ["0.5", "0.5", *["200"] * 3]
    assert numeric(texts, solution=solutions, tolerance=0.01) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert numeric(answers("0.3000001", "0.30001"), solution=["0.3", "0.3"]) == [1.0, 0.0]


def test_regression_by_hand():
    texts = answers("10", "9", "-10", "25", "0", "1", "ten")
    got = regression(texts, solution=["10", "10", "10", "10", "0", "0", "10"])
    assert got == [1.0, pytest.approx(0.9), 0.0, 0.0, 1.0, 0.0, 0.0]


def test_solutions_without_one_number_are_refused():
    assert check_number("<answer>3</answer>", {}) is None
    for bad in ("", "three", "2 3"):
        assert "exactly one number" in check_number(bad, {})


@pytest.mark.parametrize(
    ("answer", "nums", "target", "right"),
    [
        ("(44 + 19) - 8 = 55", [44, 19, 8], 55, True),
        ("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24, True),  # exact fractions
        ("1 / 3", [1, 3], 0.333333, True),  # within 1e-5
        ("1 / 3", [1, 3], 0.3333, False),
        ("-3 + 8", [3, 8], 5, True),
        ("44 + 19 - 8", [44, 19, 8], 56, False),
        ("5 + 5", [5], 10, False),  # one twice
        ("7//2", [7, 2], 3, False),
        ("2**3", [2, 3], 8, False),
        ("98.44", [98, 44], 98.44, False),
        ("45=junk", [45], 45, False),
        ("+45", [45], 45, False),
        ("", [1], 1, False),
        ("1 2", [1, 2], 12, False),
        ("__import__('os')", [1], 1, False),
        ("9**9**9**9", [9, 9, 9, 9], 1, False),
        ("(" * 10_000 + "1" + ")" * 10_000, [1], 1, False),
        ("(" * 95 + "1" + ")" * 95, [1], 1, True),
        ("-" * 190 + "1", [1], 1, False),  # more steps than are read
        ("1000001 - 1", [1000001, 1], 1000000, False),
        ("1\x00", [1], 1, False),
    ],
)
def test_countdown_by_hand(answer, nums, target, right):
    begin = time.thread_time()
    assert solves(answer, nums, target) is right
    assert countdown([f"<answer>{answer}</answer>"], nums=[nums], target=[target]) == [float(right)]
    assert time.thread_time() - begin < 0.1


def test_the_answer_block_is_read_in_full_width_forms_and_the_thinking_is_not():
    assert countdown(["<think>1 + 2</think>", "1 + 2"], nums=[[1, 2]] * 2, target=[3, 3]) == [0.0, 0.0]
    assert countdown(["<answer>（７－３）＊６＝２４</answer>"], nums=[[3, 6, 7]], target=[24]) == [1.0]


def test_records_that_are_no_game_are_refused():
    assert check_countdown("", {"nums": [1, 2], "target": 3}) is None
    for fields in ({}, {"nums": []}, {"nums": ["1"]}, {"nums": [1.5]}, {"nums": [True]}, {"nums": [-1]}):
        assert "'nums'" in check_countdown("", {"target": 3, **fields})
    for target in (None, "3", float("nan"), 10**9):
        assert "'target'" in check_countdown("", {"nums": [1], "target": target})
