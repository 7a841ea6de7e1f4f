import pytest

from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.functions.length import CosineReward, LengthWindowReward, RepetitionReward, SoftOverlongReward
from qwenvl.rewards.named import build_rubric
from qwenvl.rewards.options import RewardSettings


def tokens(*lengths):
    return [[0] * length for length in lengths]


def right(completions, verdict):
    return verdict


RIGHT = RewardFunction("right", right)


def test_cosine_by_hand():
    reward = CosineReward(RIGHT, cosine_max_len=1024)
    ids = tokens(0, 256, 512, 768, 1024, 5000)
    correct = reward(["x"] * 6, ids, verdict=[1.0] * 6)
    assert correct == pytest.approx([1, 0.926777, 0.75, 0.573223, 0.5, 0.5], abs=1e-6)
    wrong = reward(["x"] * 6, ids, verdict=[0.0, 0.99, 0.5, 0.0, 0.0, 0.0])
    assert wrong == pytest.approx([-0.5, -0.426777, -0.25, -0.073223, 0, 0], abs=1e-6)
    assert reward(["x"], tokens(9), verdict=[None]) == [None]


def test_cosine_with_other_values():
    reward = CosineReward(RIGHT, 10, 2.0, 1.0, -10.0, -5.0)
    assert reward(["x"] * 4, tokens(0, 10, 0, 10), verdict=[1, 1, 0, 0]) == pytest.approx([2.0, 1.0, -10.0, -5.0])


def test_cosine_by_name_uses_the_correctness_that_is_chosen():
    settings = RewardSettings(generation_max_length=4, correctness_func="count")
    rubric = build_rubric(["cosine"], settings=settings)
    columns = {"solution": ["3", "3"], "completion_ids": tokens(4, 0)}
    assert rubric.score(["<answer>3</answer>", "<answer>4</answer>"], columns).total.tolist() == [0.5, -0.5]
    assert "exactly one number" in rubric.check_solution("three")


def test_repetition_by_hand():
    reward = RepetitionReward()
    assert reward(["a b c a b c a b c"]) == [pytest.approx(-0.571429, abs=1e-6)]
    # Six 3-grams of "a a a a a a a a", one different; none repeated; case does not matter; too short.
    assert reward(["a a a a a a a a", "a b c d", "A b C a B c", "a b", ""]) == [
        pytest.approx(-5 / 6),
        0.0,
        pytest.approx(-1 / 4),
        0.0,
        0.0,
    ]


def test_repetition_counts_characters_where_there_are_no_spaces():
    # 看看看看看: three 3-grams, all the same. In an English text a few characters change nothing.
    assert RepetitionReward()(["看看看看看", "カメラ", "the word 看看看看看 here"]) == [pytest.approx(-2 / 3), 0.0, 0.0]


def test_repetition_settings():
    assert RepetitionReward(1, -0.5)(["a a b"]) == [pytest.approx(-0.5 / 3)]


def test_soft_overlong_by_hand():
    got = SoftOverlongReward(100, 20)(["x"] * 6, tokens(0, 80, 85, 95, 100, 200))
    assert got == [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]
    with pytest.raises(ValueError, match="soft_overlong_cache"):
        SoftOverlongReward(100, 101)


def test_soft_overlong_by_name_ends_at_the_longest_completion():
    rubric = build_rubric(["soft_overlong"], settings=RewardSettings(generation_max_length=10))
    assert rubric.score(["x"] * 3, {"completion_ids": tokens(8, 9, 10)}).total.tolist() == [0.0, -0.5, -1.0]


def test_length_window_by_hand():
    reward = LengthWindowReward(RIGHT, 3, 5, 0.2)
    got = reward(["x"] * 6, tokens(2, 3, 5, 6, 4, 4), verdict=[1, 1, 1, 1, 0, None])
    assert got == [0.0, 0.2, 0.2, 0.0, 0.0, None]
    with pytest.raises(ValueError, match="above"):
        LengthWindowReward(RIGHT, 6, 5)
