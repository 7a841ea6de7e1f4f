import pytest

from qwenvl.rewards import build_rubric
from qwenvl.rewards.answer_form import form_hints, unasked_form, unlisted_solution
from qwenvl.rewards.functions.actions import accuracy
from qwenvl.types import Message, Record

LIST = "Which?\n(1) insert the fan\n(2) take the lid\n"


def record(prompt, solution="<answer>(1) insert the fan</answer>", **fields):
    return Record("0", (Message("user", prompt),), solution, (), (), (), fields, "d[0]")


@pytest.mark.parametrize(
    "prompt",
    [
        f"{LIST}Answer as <answer>(1) ... (2) ...</answer>",
        f"{LIST}Answer as <answer>(k) name</answer>",
        f"{LIST}Answer as <answer>numbers of the actions</answer>",
        f"{LIST}Answer in <answer> </answer> tags",  # shows no form
        f"{LIST}Answer in <answer>...</answer> tags",
        LIST,
    ],
)
def test_a_prompt_that_asks_rightly_or_shows_no_form(prompt):
    assert unasked_form(record(prompt), ["accuracy"]) is None


def test_a_form_without_the_numbers_that_are_read():
    asked = f"{LIST}Answer in <answer> </answer> tags: <think>...</think><answer>actions</answer>"
    said = unasked_form(record(asked), ["format", "accuracy"])
    assert said == (
        "the prompt shows the answer as <answer>actions</answer>, and accuracy reads (k) numbers, or else the names of "
        "the prompt's list, to the letter: better ask for <answer>(1) ...</answer>"
    )
    assert form_hints(record(asked), build_rubric(["accuracy"]).functions) == [("form not asked for", said)]
    plain = "reads (k) numbers: ask for <answer>(1) ... (2) ...</answer>"
    assert unasked_form(record(asked), ["accuracy"], by_name=False).endswith(plain)
    [hint] = form_hints(record(asked), build_rubric(["accuracy(by_name=False)"]).functions)
    assert hint.message.endswith(plain)
    assert unasked_form(record(asked.replace("(2)", "(1)")), ["accuracy"]).endswith(plain), "an ambiguous list"
    assert unasked_form(record(asked), ["action_order"]).endswith(plain), "which knows no names"


def test_rewards_that_read_no_numbers_are_left_alone():
    asked = f"{LIST}<answer>actions</answer>"
    assert unasked_form(record(asked), ["math_accuracy"]) is None
    assert unasked_form(record(asked, reward="format"), ["format", "accuracy"]) is None
    assert unasked_form(record(asked, solution="insert the fan"), ["accuracy"]) is None, "compared by phrases"


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        ("<answer>(1) insert the fan</answer>", None),
        ("<answer>(2) (1)</answer>", None),
        ("(1) insrt the fan", None),  # the number counts
        ("(3) plug the cable", "has (3), no number of the list in the prompt: no answer from the list scores 1"),
        ("(1) take the lid", "gives (1) the name of (2) in the prompt's list: the number counts"),
        ("insert the fan, take the lid", "names actions of the list in the prompt and has no (k) number, so an answer"),
        ("<answer>insrt the fan</answer>", "names no action of the list in the prompt and has no (k) number, so an"),
        ("2", "names no action of the list in the prompt and has no (k) number, so an answer with numbers gets 0"),
    ],
)
def test_a_solution_beside_the_list_of_the_prompt(solution, said):
    found = unlisted_solution(record(LIST, solution), ["format", "accuracy"])
    assert found is None if said is None else said in found
    assert unlisted_solution(record(LIST, solution), ["math_accuracy"]) is None
    assert unlisted_solution(record("Which?", solution), ["accuracy"]) is None, "there is no list"
    assert [hint.kind for hint in form_hints(record(LIST, solution), build_rubric(["accuracy"]).functions)] == (
        ["solution not in the list"] if said else []
    )


@pytest.mark.parametrize("solution", ["insert the fan", "insrt the fan", "2"])
def test_an_answer_with_numbers_gets_0_beside_a_solution_without(solution):
    prompts = [[{"role": "user", "content": LIST}]] * 2
    answers = ["<answer>(1) insert the fan</answer>", "<answer>(2)</answer>"]
    assert accuracy(answers, [solution] * 2, prompts) == [0, 0]
