"""Rewards: text and record -> float. The table of functions, and the rubric that runs and weighs them."""

from qwenvl.rewards.adapters import adapt_verl
from qwenvl.rewards.columns import reward_columns
from qwenvl.rewards.function import RewardError, RewardFunction
from qwenvl.rewards.named import build_rubric
from qwenvl.rewards.options import RewardSettings
from qwenvl.rewards.plugins import reward
from qwenvl.rewards.rubric import Rubric

__all__ = [
    "RewardError",
    "RewardFunction",
    "RewardSettings",
    "Rubric",
    "adapt_verl",
    "build_rubric",
    "reward",
    "reward_columns",
]
