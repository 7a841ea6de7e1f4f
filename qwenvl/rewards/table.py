"""The explicit table of reward functions that a run can name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qwenvl.rewards.actions import accuracy, check_actions
from qwenvl.rewards.format import FormatReward, StrictFormatReward
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.settings import RewardSettings


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        made_of: the function, or a class whose instances are called and whose constructor names the settings it takes.
        low, high: range of the values, None for "does not apply" aside.
        check: see ``RewardFunction``.
    """

    made_of: Callable[..., Any]
    low: float
    high: float
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return inspect.getdoc(self.made_of).split("\n\n")[0].replace("\n", " ")


TABLE: dict[str, Entry] = {
    "format": Entry(FormatReward, 0, 1),
    "strict_format": Entry(StrictFormatReward, 0, 1),
    "accuracy": Entry(accuracy, 0, 1, check_actions),
}


def make(name: str, settings: RewardSettings) -> RewardFunction:
    """The function ``name`` of the table with these settings."""
    entry = TABLE[name]
    call = entry.made_of
    if inspect.isclass(call):
        call = call(**{setting: getattr(settings, setting) for setting in inspect.signature(call).parameters})
    return RewardFunction(name, call, entry.check)
