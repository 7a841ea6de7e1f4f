"""Rewards: text and record -> float. The table of functions, and the rubric that runs and weighs them."""

from qwenvl.rewards.build import build_rubric
from qwenvl.rewards.columns import reward_columns
from qwenvl.rewards.function import RewardError, RewardFunction
from qwenvl.rewards.rubric import Rubric

__all__ = ["RewardError", "RewardFunction", "Rubric", "build_rubric", "reward_columns"]
