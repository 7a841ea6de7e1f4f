import pytest

from qwenvl.rewards import build_rubric
from qwenvl.rewards.answer_form import form_hints
from qwenvl.rewards.functions.actions import accuracy
from qwenvl.types import Message, Record

LIST = "Which?\n(1) insert the fan\n(2) take the lid\n"
ASKED = f"{LIST}Answer in <answer> </answer> tags: <think>...</think><answer>actions</answer>"
PLAIN = "reads (k) numbers: ask for <answer>(1) ... (2) ...</answer>"


def hints(prompt, *rewards, solution="<answer>(1) insert the fan</answer>", **fields):
    record = Record("0", (Message("user", prompt),), solution, (), (), (), fields, "d[0]")
    return [(hint.kind, hint.message) for hint in form_hints(record, build_rubric(list(rewards)).functions)]


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
    assert hints(prompt, "accuracy") == []


def test_a_form_without_the_numbers_that_are_read():
    found = (
        "the prompt shows the answer as <answer>actions</answer>, and accuracy reads (k) numbers, or else the names of "
        "the prompt's list, to the letter: better ask for <answer>(1) ...</answer>"
    )
    assert hints(ASKED, "format", "accuracy") == [("form not asked for", found)]
    for rewards in (["accuracy(by_name=False)"], ["action_order"], ["accuracy", "action_order"]):
        [(_, message)] = hints(ASKED, *rewards)
        assert message.endswith(PLAIN if len(rewards) == 1 else "accuracy and action_order " + PLAIN)
    ambiguous = ASKED.replace("(2)", "(1)")
    assert hints(ambiguous, "accuracy")[0][1].endswith(PLAIN)


def test_rewards_that_read_no_numbers_are_left_alone():
    assert hints(ASKED, "exact_match") == []
    assert hints(ASKED, "format", "accuracy", reward="format") == []
    assert hints("<answer>actions</answer>", "accuracy", solution="insert the fan") == [], "compared by phrases"


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
    found = hints(LIST, "format", "accuracy", solution=solution)
    assert [kind for kind, _ in found] == (["solution not in the list"] if said else [])
    assert said is None or said in found[0][1]
    assert hints(LIST, "exact_match", solution=solution) == []
    assert hints("Which?", "accuracy", solution=solution) == [], "there is no list"


@pytest.mark.parametrize("solution", ["insert the fan", "insrt the fan", "2"])
def test_an_answer_with_numbers_gets_0_beside_a_solution_without(solution):
    prompts = [[{"role": "user", "content": LIST}]] * 2
    answers = ["<answer>(1) insert the fan</answer>", "<answer>(2)</answer>"]
    assert accuracy(answers, [solution] * 2, prompts) == [0, 0]
