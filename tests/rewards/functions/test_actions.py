import pytest

from qwenvl.rewards.functions.actions import (
    accuracy,
    action_order,
    check_action_numbers,
    check_actions,
    list_of,
)


@pytest.mark.parametrize(
    ("completion", "solution", "score"),
    [
        ("<answer>(1) a (2) b</answer>", "<answer>(1) a (2) b</answer>", 1.0),
        ("<answer>(1) x</answer>", "<answer>(1) a (2) b</answer>", 0.5),
        ("<answer>(1)(2)(3)</answer>", "(1) (2)", 2 / 3),
        ("<answer>(2)(3)</answer>", "(1) (2)", 1 / 3),
        ("(1)", "(1)", 0.0),  # no answer block
        ("<answer></answer>", "(1)", 0.0),
        ("<answer>1</answer>", "(1)", 0.0),  # a bare digit is no action
        ("<think>(1)</think><answer>(2)</answer>", "(1)", 0.0),  # thinking does not count
        ("<answer>(1)</answer><answer>(2)</answer>", "(2)", 0.0),  # the first answer counts
        ("<answer>( 1 ) (02)</answer>", "(1)(2)", 1.0),
        ("<answer>Insert fan; fasten  screw.</answer>", "insert fan, fasten screw", 1.0),
        ("<answer>insert fan\nturn</answer>", "<answer>insert fan, fasten screw</answer>", 1 / 3),
        ("<answer>（1）（２）</answer>", "(1) (2)", 1.0),  # full-width forms, as Chinese keyboards give them
        ("<answer>装风扇；拧螺丝</answer>", "装风扇，拧螺丝", 1.0),
    ],
)
def test_accuracy_by_hand(completion, solution, score):
    assert accuracy([completion], solution=[solution]) == [pytest.approx(score)]


def test_a_solution_without_actions_is_refused():
    for empty in ("", "<answer> </answer>", "<answer>,;.</answer>"):
        assert "names no action" in check_actions(empty, {})
    assert check_actions("<answer>(1)</answer>", {}) is None
    assert check_actions("insert the fan", {}) is None


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("(1)(3)(2)", "(1)(2)(3)", 1 / 3),  # two substitutions of three
        ("(1)(3)", "(1)(2)(3)", 2 / 3),  # one insertion
        ("(1)(2)(3)(3)", "(1)(2)(3)", 3 / 4),  # one deletion, the longer has four
        ("", "(1)", 0.0),
    ],
)
def test_action_order_by_hand(answer, solution, score):
    assert action_order([f"<answer>{answer}</answer>"], solution=[solution]) == [pytest.approx(score)]


def test_action_order_needs_an_answer_block_and_a_solution_with_numbers():
    assert action_order(["(1)"], solution=["(1)"]) == [0.0]
    assert "names no action" in check_action_numbers("insert the fan", {})
    assert check_action_numbers("<answer>(1)</answer>", {}) is None


LISTED = """<video>
Which steps?
(1) Insert the fan.
(2) insert the fan cable
(3) Hold the lid, and turn it
(4) non of these"""


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("insert the fan", "(1)", 1.0),
        ("insert the fan, then insert the fan cable", "(1)(2)", 1.0),
        ("insert the fan cable", "(1)", 0.0),  # the longest name
        ("insert the fans", "(1)", 0.0),  # another word
        ("Hold the lid, and turn it and insert the fan", "(1)(3)", 1.0),  # a name with a comma in it
        ("insert the fan", "(1)(2)", 1 / 2),
        ("insert the fan, take the box", "(1)(2)", 1 / 3),  # one of two, and one that is wrong
        ("the operator does not insert the fan", "(1)", 1 / 2),
        ("actions", "(1)", 0.0),
        ("(1) insert the fan, insert the fan cable", "(1)(2)", 1 / 2),  # numbers alone count where there are some
        ("", "(1)", 0.0),
    ],
)
def test_an_answer_without_numbers_is_read_by_the_names_of_the_list(answer, solution, score):
    prompts = [[{"role": "system", "content": "(1) be brief"}, {"role": "user", "content": LISTED}]]
    completions = [f"<answer>{answer}</answer>"]
    assert accuracy(completions, [solution], prompts) == [pytest.approx(score)]
    if "(" not in answer and "(" in solution:
        assert accuracy(completions, [solution]) == [0.0], "no prompt, no list"


@pytest.mark.parametrize(
    "prompt",
    [
        "(1) a\n(1) b",
        "(1) a\n(2) A.",
        "(1) a\n(2)",
        "(1) a (2) b\n(3) c",
        "(1) a",
        "which?",
    ],
)
def test_an_ambiguous_list_is_none(prompt):
    assert list_of([{"role": "user", "content": prompt}]) == {}
