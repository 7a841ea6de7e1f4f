from decimal import Decimal

import pytest

from qwenvl.rewards.functions.numbers import NumericReward, check_number, count, numbers_in, regression


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


def test_count_needs_an_answer_block():
    assert count(["3", "<think>3</think>"], solution=["3", "3"]) == [0.0, 0.0]


def test_numeric_by_hand():
    # Tolerance 0.01: absolute 0.01 up to 1, then 1 percent.
    assert NumericReward(0.01)(answers("0.51", "0.512", "202", "203", "x"), solution=["0.5", "0.5", *["200"] * 3]) == [
        1.0,
        0.0,
        1.0,
        0.0,
        0.0,
    ]
    assert NumericReward()(answers("0.3000001", "0.30001"), solution=["0.3", "0.3"]) == [1.0, 0.0]


def test_regression_by_hand():
    got = regression(
        answers("10", "9", "-10", "25", "0", "1", "ten"), solution=["10", "10", "10", "10", "0", "0", "10"]
    )
    assert got == [1.0, pytest.approx(0.9), 0.0, 0.0, 1.0, 0.0, 0.0]


def test_solutions_without_one_number_are_refused():
    assert check_number("<answer>3</answer>", {}) is None
    for bad in ("", "three", "2 3"):
        assert "exactly one number" in check_number(bad, {})
