import pytest

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
