"""Rewards: text and record -> float. The table of functions, and the rubric that runs and weighs them."""

from qwenvl.rewards.function import Argument as Argument
from qwenvl.rewards.function import RewardError as RewardError
from qwenvl.rewards.function import RewardFunction as RewardFunction
from qwenvl.rewards.function import adapt_verl as adapt_verl
from qwenvl.rewards.function import reward_columns as reward_columns
from qwenvl.rewards.resolve import build_rubric as build_rubric
from qwenvl.rewards.resolve import reward as reward
from qwenvl.rewards.rubric import Rubric as Rubric
