"""Records of several kinds, each scored as its own function scores it, in the order in which they came."""

from functools import partial

import pytest

from qwenvl.data.records.presets import ASKED_FOR
from qwenvl.rewards.table import by_problem_type, check_problem_type

ROWS = [
    ("multiple choice", "B. a lid", "<answer>B</answer>", 1.0),
    ("numerical", "3.5", "<answer>3</answer>", 0.0),
    ("regression", "4", "<answer>3</answer>", 0.75),
    ("OCR", "no entry today please", "<answer>no entry</answer>", 0.5),
    ("open-ended", "a red lid", "<answer>a red lid</answer>", 1.0),
    ("yes_or_no", "no", "<answer>No, it does not.</answer>", 1.0),
    ("temporal grounding", "0 to 4", "<answer>2 to 4</answer>", 0.5),
    ("Labels", "insert the fan, close the lid", "<answer>close the lid</answer>", 0.5),
    ("multiple choice", "A", "no answer", 0.0),
]


def test_each_kind_by_hand():
    kinds, solutions, texts, scores = (list(column) for column in zip(*ROWS, strict=True))
    found = by_problem_type(texts, solutions, problem_type=kinds, duration=[None] * len(ROWS))
    assert found == pytest.approx(scores)


def test_settings_reach_the_functions():
    near = partial(by_problem_type, numeric_tolerance=0.2)
    assert near(["<answer>3</answer>"], ["3.5"], problem_type=["numerical"]) == [1.0]
    bounded = partial(by_problem_type, temporal_iou_boundary=True)
    # half of the true span, and the start is 2 of 8 seconds off: 0.5 * (1 - 2 / 8)
    span = bounded(["<answer>2 to 4</answer>"], ["0 to 4"], problem_type=["temporal grounding"], duration=[8.0])
    assert span == [pytest.approx(0.375)]


def test_actions_are_read_by_the_names_of_the_prompt():
    prompts = [[{"role": "user", "content": "(1) insert the fan\n(2) take the lid"}], []]
    answers = ["<answer>take the lid</answer>"] * 2
    assert by_problem_type(answers, ["(2)"] * 2, problem_type=["actions"] * 2, prompts=prompts) == [1.0, 0.0]


def test_records_are_checked_by_their_kind():
    check, choice = check_problem_type, {"problem_type": "multiple choice"}
    assert check("<answer>B</answer>", choice) is None
    assert "problem_type 'multiple choice': the solution must choose letters" in check("?", choice)
    assert "needs the field 'problem_type', one of multiple choice, numerical" in check("B", {})
    with pytest.raises(ValueError, match="got 'riddle'"):
        by_problem_type(["B"], ["B"], problem_type=["riddle"])


def test_every_kind_that_a_format_writes_is_known():
    known = check_problem_type("B", {"problem_type": "?"})
    assert [kind for kind in ASKED_FOR if kind.casefold().replace("-", " ") not in known] == []
