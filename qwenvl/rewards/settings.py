"""Settings of the reward functions of the table; the flags of the same names are made from them."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.rewards.format import ResponseFormat


@dataclass(frozen=True)
class RewardSettings:
    """What the functions of the table can be told.

    Attributes:
        response_format: what ``format`` and ``strict_format`` ask for.
    """

    response_format: ResponseFormat = "think_answer"
