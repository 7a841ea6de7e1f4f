import pytest
from rouge_score.rouge_scorer import RougeScorer

from qwenvl.rewards.functions.answers import (
    affirms,
    check_letters,
    check_text,
    check_yes_no,
    exact_match,
    letters,
    multiple_choice,
    ocr,
    rouge,
    yes_no,
)


def answer(text):
    return [f"<think>A yes</think><answer>{text}</answer>"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B. the red fan", "B"),
        ("A, C", "AC"),
        ("AC", "AC"),
        ("A. fan\nC. screw", "AC"),
        ("The answer is B", "B"),
        ("answer: (D)", "D"),
        (r"\boxed{B}", "B"),
        (r"$\boxed{\text{(B)}}$", "B"),
        (r"The answer is \boxed{B}.", "B"),
        (r"\boxed{A} and \boxed{C}", "AC"),
        (r"\boxed{a cat}", ""),
        (r"\boxed{B", ""),
        ("a cat", ""),
        ("A cat", ""),
        ("BED", ""),
        ("", ""),
    ],
)
def test_letters(text, chosen):
    assert letters(text) == set(chosen)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Yes", True),
        ("no.", False),
        ("Yes, there is no doubt", True),
        ("I say no", False),
        ("maybe yes, maybe no", None),
        ("nothing", None),
        ("eyes", None),
        ("", None),
    ],
)
def test_affirms(text, says):
    assert affirms(text) is says


BY_HAND = {
    multiple_choice: [
        *(("B", "(B)", 1.0), ("B. x", "B", 1.0), ("A, C", "C,A", 1.0), ("A", "A, C", 0.0), ("cat", "A", 0.0)),
        *(("Ｂ", "B", 1.0), ("（Ａ），Ｃ", "A, C", 1.0), (r"\boxed{B}", "B", 1.0), ("Ａ", "Ｂ", 0.0)),
    ],
    yes_no: [
        *(("Yes.", "yes", 1.0), ("no", "yes", 0.0), ("perhaps", "no", 0.0), ("NO", "<answer>no</answer>", 1.0)),
    ],
    exact_match: [
        *((" The  Fan.", "the fan", 1.0), ("the fans", "the fan", 0.0), ("Ａ１", "a1", 1.0), ("", "x", 0.0)),
        *(("5 m²", "5 m2", 0.0), ("5 ㎡", "5 m²", 1.0)),
    ],
    ocr: [
        ("turn left at once", "turn left at once", 1.0),
        ("turn right at once", "turn left at once", 0.75),  # one of four words is wrong
        ("left", "turn left at once", 0.25),
        ("a b c d e f", "x y", 0.0),  # three times too long is clipped
        ("Exit", "exit", 0.0),
        ("", "exit", 0.0),
    ],
}


@pytest.mark.parametrize("reward", BY_HAND)
def test_rewards_by_hand(reward):
    for text, solution, score in BY_HAND[reward]:
        assert reward(answer(text), solution=[solution]) == [pytest.approx(score)], text
    assert reward(["B yes"], solution=["B yes"]) == [0.0], "no answer block"


def test_rouge_by_hand():
    # "the cat sat" / "the cat ran": unigrams 2 of 3, bigrams 1 of 2, longest common subsequence 2 of 3.
    assert rouge(answer("the cat sat"), solution=["The cat ran!"]) == [pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)]
    assert rouge(answer("三只猫"), solution=["三只狗"]) == [pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)]
    assert rouge(answer("..."), solution=["the cat"]) == [0.0]


def test_rouge_agrees_with_the_library():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    texts = ["a man opens the door and leaves", "the man, who leaves, opens a door", "door door door", "nothing alike"]
    for truth in texts:
        for text in texts:
            expected = sum(score.fmeasure for score in scorer.score(truth, text).values()) / 3
            assert rouge(answer(text), solution=[truth]) == [pytest.approx(expected)]


def test_solutions_that_cannot_be_compared_are_refused():
    assert check_text("a", {}) is None and "no word" in check_text("<answer>...</answer>", {})
    assert check_letters("(B)", {}) is None and "letters" in check_letters("a red fan", {})
    assert check_yes_no("No", {}) is None and "yes or no" in check_yes_no("perhaps", {})
