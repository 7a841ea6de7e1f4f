"""The reward for mathematics, and what it gives to right and to wrong answers."""

import pytest

from qwenvl.rewards.functions.maths import MathReward


@pytest.fixture(scope="module")
def reward():
    """The reward for mathematics with its own process."""
    made = MathReward()
    yield made
    made.close()


@pytest.fixture
def assert_scores(reward):
    """``assert_scores(solution, right, wrong)``: the solution is accepted, and answers score 1 and 0."""

    def scores(solution, right, wrong):
        assert reward.check(solution, {}) is None
        texts = right + wrong
        answers = [f"<answer>{text}</answer>" for text in texts]
        found = reward(answers, solution=[solution] * len(texts))
        assert dict(zip(texts, found, strict=True)) == {text: float(text in right) for text in texts}

    return scores
