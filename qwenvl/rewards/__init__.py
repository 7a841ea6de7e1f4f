"""Rewards: text and record -> float. The table of functions, and the rubric that runs and weighs them."""

from qwenvl.rewards.columns import adapt_verl, reward_columns
from qwenvl.rewards.function import Argument, RewardError, RewardFunction
from qwenvl.rewards.options import RewardSettings
from qwenvl.rewards.resolve import build_rubric, reward
from qwenvl.rewards.rubric import Rubric

__all__ = [
    "Argument",
    "RewardError",
    "RewardFunction",
    "RewardSettings",
    "Rubric",
    "adapt_verl",
    "build_rubric",
    "reward",
    "reward_columns",
]
