from functools import partial
from types import SimpleNamespace

import pytest

from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.functions.shaping import (
    cosine,
    format_reward,
    length_window,
    repetition,
    soft_overlong,
    strict_format,
)

FORMS = {
    (format_reward, "think_answer"): {
        "<think>a</think><answer>b</answer>": 1.0,
        "x <think>a\nb</think> y <answer>\nb\n</answer> z": 1.0,
        "<think>a<answer>b</answer></think>": 0.6,
        "<answer>b</answer>": 0.3,
        "<think>a<answer>b</answer>": 0.3,
        "</think><think></answer><answer>": 0.0,
        "": 0.0,
        # The first blocks decide: a second answer before the thinking's end does not help or harm.
        "<think>a</think><answer>b</answer><think>c</think>": 1.0,
        # The thinking opens twice: its first block still ends before the answer.
        "<think><think>a</think><answer>b</answer>": 1.0,
    },
    (format_reward, "answer_only"): {
        "<answer>b</answer>": 1.0,
        "well: <answer>\nb</answer> so": 1.0,
        "<answer>a</answer><answer>b</answer>": 0.0,
        "<answer>a": 0.0,
        "<think>a</think><answer>b</answer>": 0.0,
        "</think><answer>b</answer>": 0.0,
    },
    (strict_format, "think_answer"): {
        "<think>a</think><answer>b</answer>": 1.0,
        "\n<think>\na </think>\n \n<answer> b\n</answer> ": 1.0,
        "<think>a</think> so <answer>b</answer>": 0.0,
        "<think>a</think><answer>b</answer>x": 0.0,
        "<think> </think><answer>b</answer>": 0.0,
        "<think>a</think><answer>\n</answer>": 0.0,
        "<think>a</think><answer>b</answer><answer>c</answer>": 0.0,
        "<think>a<think></think><answer>b</answer>": 0.0,
        "<answer>b</answer><think>a</think>": 0.0,
        "<answer>b</answer>": 0.0,
        "": 0.0,
    },
    (strict_format, "answer_only"): {
        " <answer>b</answer>\n": 1.0,
        "<answer> </answer>": 0.0,
        "it is <answer>b</answer>": 0.0,
        "<think>a</think><answer>b</answer>": 0.0,
        "</think><answer>b</answer>": 0.0,
    },
}


@pytest.mark.parametrize(("reward", "form"), FORMS)
def test_each_form_gives_the_values_of_its_table(reward, form):
    texts = FORMS[reward, form]
    assert dict(zip(texts, reward([*texts], response_format=form), strict=True)) == texts


@pytest.mark.parametrize(
    ("text", "score", "strict"),
    [
        ("\na</think>\n<answer>b</answer>", 1.0, 1.0),  # all that a thinking checkpoint is asked for
        ("a</think> so <answer>b</answer>", 1.0, 0.0),
        ("<think>a</think><answer>b</answer>", 1.0, 0.0),  # opened twice
        (" </think><answer>b</answer>", 1.0, 0.0),  # nothing thought
        ("a<answer>b</answer></think>", 0.6, 0.0),
        ("a<answer>b</answer>", 0.3, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_a_prompt_may_end_inside_a_think_block(text, score, strict):
    assert format_reward([text], opened_think=[True]) == [score]
    assert strict_format([text], opened_think=[True]) == [strict]


def test_no_thinking_cannot_be_asked_of_a_prompt_that_opens_a_think_block():
    columns = {"id": ["plain", "thinking"], "opened_think": [False, True]}
    for name in ("format", "strict_format"):
        rubric = build_rubric([f"{name}(response_format=answer_only)"])
        with pytest.raises(
            RewardError, match=f"\"{name}\" failed on record 'thinking'.*--response_format think_answer"
        ):
            rubric.score(["<answer>b</answer>"] * 2, columns)


def tokens(*lengths):
    return [[0] * length for length in lengths]


def right(completions, verdict):
    return verdict


RIGHT = RewardFunction("right", right)


def test_cosine_falls_with_length_for_right_answers_and_rises_for_wrong_ones():
    reward = partial(cosine, correctness_func=RIGHT, max_len=1024)
    ids = tokens(0, 256, 512, 768, 1024, 5000)
    correct = reward(["x"] * 6, ids, verdict=[1.0] * 6)
    assert correct == pytest.approx([1, 0.926777, 0.75, 0.573223, 0.5, 0.5], abs=1e-6)
    wrong = reward(["x"] * 6, ids, verdict=[0.0, 0.99, 0.5, 0.0, 0.0, 0.0])
    assert wrong == pytest.approx([-0.5, -0.426777, -0.25, -0.073223, 0, 0], abs=1e-6)
    assert reward(["x"], tokens(9), verdict=[None]) == [None]


def test_cosine_by_name_uses_the_correctness_that_is_chosen():
    rubric = build_rubric(["cosine(correctness_func='count')"], settings=SimpleNamespace(generation_max_length=4))
    columns = {"solution": ["3", "3"], "completion_ids": tokens(4, 0)}
    assert rubric.score(["<answer>3</answer>", "<answer>4</answer>"], columns).total.tolist() == [0.5, -0.5]
    assert "exactly one number" in rubric.check_solution("three")


def test_repetition_is_the_negative_share_of_repeated_n_grams():
    reward = repetition
    assert reward(["a b c a b c a b c"]) == [pytest.approx(-0.571429, abs=1e-6)]
    # Six 3-grams of "a a a a a a a a", one different; none repeated; case does not matter; too short.
    texts = ["a a a a a a a a", "a b c d", "A b C a B c", "a b", ""]
    assert reward(texts) == pytest.approx([-5 / 6, 0.0, -1 / 4, 0.0, 0.0])


def test_repetition_counts_characters_where_there_are_no_spaces():
    # 看看看看看: three 3-grams, all the same. In an English text a few characters change nothing.
    assert repetition(["看看看看看", "カメラ", "the word 看看看看看 here"]) == [pytest.approx(-2 / 3), 0.0, 0.0]


def test_soft_overlong_falls_linearly_within_the_cache():
    got = soft_overlong(["x"] * 6, tokens(0, 80, 85, 95, 100, 200), max_len=100, cache=20)
    assert got == [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]
    with pytest.raises(ValueError, match=r"cache must be at most max_len \(100\), got 101"):
        soft_overlong(["x"], tokens(1), max_len=100, cache=101)


def test_length_window_gives_a_bonus_to_right_answers_within_the_window():
    reward = partial(length_window, correctness_func=RIGHT, min=3, max=5, bonus=0.2)
    got = reward(["x"] * 6, tokens(2, 3, 5, 6, 4, 4), verdict=[1, 1, 1, 1, 0, None])
    assert got == [0.0, 0.2, 0.2, 0.0, 0.0, None]
    with pytest.raises(ValueError, match="min must be at most max"):
        length_window(["x"], tokens(1), min=6, max=5)
