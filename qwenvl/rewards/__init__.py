"""Rewards: text and record -> float. The table of functions, and the rubric that runs and weighs them.

Names are imported when they are used: the options of rewards are read by every ``--help``, which waits for nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwenvl.rewards.function import Argument as Argument
    from qwenvl.rewards.function import RewardError as RewardError
    from qwenvl.rewards.function import RewardFunction as RewardFunction
    from qwenvl.rewards.function import adapt_verl as adapt_verl
    from qwenvl.rewards.function import reward_columns as reward_columns
    from qwenvl.rewards.options import RewardSettings as RewardSettings
    from qwenvl.rewards.resolve import build_rubric as build_rubric
    from qwenvl.rewards.resolve import reward as reward
    from qwenvl.rewards.rubric import Rubric as Rubric

_HOMES = {
    "Argument": "function",
    "RewardError": "function",
    "RewardFunction": "function",
    "RewardSettings": "options",
    "Rubric": "rubric",
    "adapt_verl": "function",
    "build_rubric": "resolve",
    "reward": "resolve",
    "reward_columns": "function",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
