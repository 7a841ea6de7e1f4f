"""Answers as people write them, against the one form."""

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.doctor.from_folder.steps import StepList

STEPS = StepList(("take the lid", "insert the fan, both sides", "fasten 10 mm screw", "pick-up"))


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        ("2", [2]),
        ("3 1", [3, 1]),
        ("1,3", [1, 3]),
        ("1; 1;4", [1, 1, 4]),
        ("(2)(1)", [2, 1]),
        ("(3) fasten 10 mm screw (1) Take the  lid.", [3, 1]),
        ("<answer>(1) take the lid</answer>", [1]),
        ("Insert the fan, both sides", [2]),
        ("insert the fan, both sides; take the lid", [2, 1]),
        ("take the lid, pick_up", [1, 4]),
        ("1. take the lid; 3: fasten 10 mm screw", [1, 3]),
        ("step 4", [4]),
        ("pick-up (1)", [4, 1]),
        ("03 fasten 10 mm screw", [3]),
    ],
)
def test_answers_come_out_in_one_form(written, numbers):
    assert STEPS.answer(written) == " ".join(f"({n}) {STEPS.names[n - 1]}" for n in numbers)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("5", "no step 5: the steps are 1 to 4"),
        ("1 0", "no step 0"),
        ("(2) take the lid", r"'\(2\) take the lid': step 2 is 'insert the fan, both sides'"),
        ("tak the lid", "did you mean 'take the lid'"),
        ("nothing", "if a clip may show none of them, list that as a step"),
    ],
)
def test_what_is_no_step_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        STEPS.answer(written)


def test_files_of_steps(tmp_path):
    path = tmp_path / "steps.txt"
    for text in (
        "take the lid\n\n  insert  the fan \n",
        "(1) take the lid\n2. insert the fan",
        "\ufeff1: take the lid\n(2)insert the fan",
    ):
        path.write_text(text, encoding="utf-8")
        assert str(StepList.read(path)) == "(1) take the lid\n(2) insert the fan"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(1) a\n(3) b", r"steps.txt:2: expected step 2, got '\(3\) b'"),
        ("1. a\nb", "1 of 2 steps have a number"),
        ("a\nA.", "steps 1 and 2 have the same name"),
        ("a\nscrew (4) in", r"step 2, 'screw \(4\) in': \(4\) has a meaning in answers"),
        ("\n", "at least one step"),
    ],
)
def test_bad_files_of_steps(text, message, tmp_path):
    (tmp_path / "steps.txt").write_text(text)
    with pytest.raises(RecordError, match=message):
        StepList.read(tmp_path / "steps.txt")
