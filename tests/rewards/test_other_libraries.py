"""Reward functions of another library, called by theirs and by ours: the same scores. Needs the extra ``bench``."""

import pytest

from qwenvl.rewards import build_rubric, reward_columns
from qwenvl.types import Message, Record

trl_rewards = pytest.importorskip("trl.rewards")

TEXTS = [
    "<think>it turns</think> <answer>(2)</answer>",
    "<think>\nit turns\n</think>\n(2)",
    "no tags at all",
    "<think>one</think> <think>two</think> three",
    "",
]


def test_a_format_reward_scores_alike():
    theirs = trl_rewards.think_format_reward([[{"role": "assistant", "content": text}] for text in TEXTS])
    ours = build_rubric([trl_rewards.think_format_reward]).score(TEXTS, {})
    assert ours.total.tolist() == pytest.approx(theirs)
    assert len(set(theirs)) == 2


def test_a_reward_of_token_ids_scores_alike():
    make = trl_rewards.get_soft_overlong_punishment
    ids = [[1] * n for n in (3, 17, 20, 25, 40)]
    theirs = make(30, 15)(completion_ids=ids)
    record = Record("r", (Message("user", "?"),), "(2)", (), (), (), {}, "data.json[0]")
    columns = reward_columns([record], len(TEXTS), completion_ids=ids)
    ours = build_rubric([make(30, 15)]).score(TEXTS, columns)
    assert ours.total.tolist() == pytest.approx(theirs)
    assert len(set(theirs)) > 2
