import threading
import time

import pytest

from qwenvl.rewards.functions.maths import MathReward, compare_as_text, split_unit


@pytest.fixture(scope="module")
def reward():
    made = MathReward()
    yield made
    made.close()


def answer(text):
    return f"<think>so 3</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "solution", "score"),
    [
        ("5", "5", 1.0),
        ("5", "3", 0.0),  # 3 stands in the thinking
        ("0.5", "1/2", 1.0),
        ("2/4", "1/2", 1.0),
        ("0.50", "<answer>0.5</answer>", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"$\frac12$", r"$\frac{1}{2}$", 1.0),
        (r"2\sqrt{2}", r"\sqrt{8}", 1.0),
        ("(x-1)(x+1)", "x^2 - 1", 1.0),
        ("x^2 + 1", "x^2 - 1", 0.0),
        (r"\boxed{7}", "7", 1.0),
        ("x = 3", "3", 1.0),
        (r"30^\circ", "30", 1.0),
        ("{2, 1}", r"\{1, 2\}", 1.0),
        ("[1.0, 5.0]", "[2.0, 5.0]", 0.0),
        ("[1, 5]", "[1.0, 5.0]", 1.0),
        ("1,000", "1000", 1.0),
        ("2 cars", "2 trucks", 0.0),
        ("2.0 Cars", "2 cars", 1.0),
        ("3 cars", "2 cars", 0.0),
        ("2", "2 cars", 0.0),
        (r"5 \text{ cm}", "5 cm", 1.0),
        ("5 cm", "5 km", 0.0),
        ("A", "A", 1.0),
        ("(a)", "(A)", 1.0),
        ("A", "B", 0.0),
        ("Yes.", "yes", 1.0),
        ("no", "yes", 0.0),
        ("12:30", "12:30", 1.0),
        ("12:45", "12:30", 0.0),
        ("1/0", "2/0", 0.0),
        ("", "5", 0.0),
        (r"\frac{1}{", "5", 0.0),
    ],
)
def test_math_accuracy_by_hand(reward, text, solution, score):
    assert reward([answer(text)], solution=[solution]) == [score]


def test_only_the_answer_block_is_read(reward):
    assert reward(["<think> 3 </think><answer>5</answer>", "5", "<answer>5"], solution=["3", "5", "5"]) == [0.0] * 3


def test_bombs_end_at_their_deadline_and_harm_nobody(reward):
    bombs = [r"\boxed{9^{9^{9^{9}}}}", "10^{10^{10}}!"]
    begin = time.monotonic()
    assert reward([answer(text) for text in [*bombs, r"\frac{1}{2}"]], solution=["0.5"] * 3) == [0.0, 0.0, 1.0]
    assert time.monotonic() - begin < 12
    assert reward([answer("x" * 400 + "^2"), answer("1" * 10**6)], solution=["x^2", "1"]) == [0.0, 0.0]


def test_works_in_a_thread(reward):
    got = []
    thread = threading.Thread(target=lambda: got.extend(reward([answer(r"\frac{3}{6}")], solution=["0.5"])))
    thread.start()
    thread.join()
    assert got == [1.0]


def test_solutions_are_checked_when_data_is_read(reward):
    for good in ("5", "A", "yes", "12:30", "2 cars", r"\frac{1}{2}", r"<answer>$x^2$</answer>"):
        assert reward.check(good, {}) is None
    assert "empty" in reward.check("<answer> </answer>", {})
    assert "cannot be parsed" in reward.check(r"\frac{1}{", {})
    assert "at most 500" in reward.check("1+" * 300 + "1", {})


def test_text_tells_where_it_can():
    assert compare_as_text("two", "2") is False
    assert compare_as_text("1/2", "0.5") is True
    assert compare_as_text(r"\frac{1}{2}", "0.5") == (r"\frac{1}{2}", "0.5")
    assert split_unit(r"12 \text{sq. ft}")[1] == ""  # a dot inside is no plain unit
    assert split_unit(r"2\pi") == (r"2\pi", "")
