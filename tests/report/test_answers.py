"""How an answer is laid beside its solution."""

from qwenvl.report.groups import compared, parts_of


def test_numbered_parts_are_compared_by_their_numbers():
    assert compared("(2) a fan, (04) lid", "(2) insert the fan (3) screw") == (
        [("(2) a fan", True), ("(04) lid", False)],
        ["(3) screw"],
    )
    assert compared("(3)(2)", "(2) fan (3) screw").missing == []


def test_phrases_are_compared_without_case_white_space_and_full_stop():
    assert compared("Left,\n go  up.", "go up; left") == ([("Left", True), ("go up.", True)], [])
    assert compared("B", "D") == ([("B", False)], ["D"])


def test_a_completion_without_an_answer_misses_everything():
    assert compared(None, "(1) a (2) b") == ([], ["(1) a", "(2) b"])
    assert compared("", "12") == ([], ["12"])


def test_text_before_the_first_number_is_no_part():
    assert [part.text for part in parts_of("steps: (1) a (2)")] == ["(1) a", "(2)"]
