import pytest

from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.functions.format import FormatReward, StrictFormatReward


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("x <think>a\nb</think> y <answer>\nb\n</answer> z", 1.0),
        ("<answer>b</answer><think>a</think>", 0.6),
        ("<think>a<answer>b</answer></think>", 0.6),
        ("<think>a</think>b", 0.3),
        ("<answer>b</answer>", 0.3),
        ("<think>a<answer>b</answer>", 0.3),
        ("<think>a</think><answer>b", 0.3),
        ("</think><think></answer><answer>", 0.0),
        ("", 0.0),
        # The first blocks decide: a second answer before the thinking's end does not help or harm.
        ("<think>a</think><answer>b</answer><think>c</think>", 1.0),
        # The thinking opens twice: its first block still ends before the answer.
        ("<think><think>a</think><answer>b</answer>", 1.0),
    ],
)
def test_format_by_hand(text, score):
    assert FormatReward()([text]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>b</answer>", 1.0),
        ("well: <answer>\nb</answer> so", 1.0),
        ("<answer>a</answer><answer>b</answer>", 0.0),
        ("<answer>a", 0.0),
        ("</answer><answer>", 0.0),
        ("<think>a</think><answer>b</answer>", 0.0),
        ("</think><answer>b</answer>", 0.0),
        ("b", 0.0),
    ],
)
def test_answer_only_format_by_hand(text, score):
    assert FormatReward("answer_only")([text]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("\n<think>\na </think>\n \n<answer> b\n</answer> ", 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("x<think>a</think><answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer>x", 0.0),
        ("<think> </think><answer>b</answer>", 0.0),
        ("<think>a</think><answer>\n</answer>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a<think></think><answer>b</answer>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a<answer>b</answer></think>", 0.0),
        ("<answer>b</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_strict_format_by_hand(text, score):
    assert StrictFormatReward()([text]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (" <answer>b</answer>\n", 1.0),
        ("<answer> </answer>", 0.0),
        ("it is <answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer>", 0.0),
        ("</think><answer>b</answer>", 0.0),
    ],
)
def test_strict_answer_only_by_hand(text, score):
    assert StrictFormatReward("answer_only")([text]) == [score]


@pytest.mark.parametrize(
    ("text", "score", "strict"),
    [
        ("\na</think>\n<answer>b</answer>", 1.0, 1.0),  # all that a thinking checkpoint is asked for
        ("a</think> so <answer>b</answer>", 1.0, 0.0),
        ("<think>a</think><answer>b</answer>", 1.0, 0.0),  # opened twice
        (" </think><answer>b</answer>", 1.0, 0.0),  # nothing thought
        ("a<answer>b</answer></think>", 0.6, 0.0),
        ("a<answer>b</answer>", 0.3, 0.0),
        ("a</think>b", 0.3, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_a_prompt_may_end_inside_a_think_block(text, score, strict):
    assert FormatReward()([text], opened_think=[True]) == [score]
    assert StrictFormatReward()([text], opened_think=[True]) == [strict]


def test_each_prompt_for_itself():
    texts, opened = ["a</think><answer>b</answer>"] * 2, [True, False]
    assert FormatReward()(texts, opened_think=opened) == [1.0, 0.3]
    assert StrictFormatReward()(texts, opened_think=opened) == [1.0, 0.0]


def test_no_thinking_cannot_be_asked_of_a_prompt_that_opens_a_think_block():
    columns = {"id": ["plain", "thinking"], "opened_think": [False, True]}
    for name in ("format", "strict_format"):
        rubric = build_rubric([name], response_format="answer_only")
        with pytest.raises(
            RewardError, match=f"\"{name}\" failed on record 'thinking'.*--response_format think_answer"
        ):
            rubric.score(["<answer>b</answer>"] * 2, columns)
