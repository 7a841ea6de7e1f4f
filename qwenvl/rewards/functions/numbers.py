"""Rewards for answers that are numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from qwenvl.rewards.functions.text import pairs, solution_of
from qwenvl.rewards.options import FunctionSettings

# Thousands may be set apart by commas; lengths are bounded so that a number is always one that can be computed with.
_NUMBER = re.compile(
    r"(?<![0-9.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}(?![0-9])|[0-9]{1,30})(?:\.[0-9]{1,30})?"
    r"(?:[eE][-+]?[0-9]{1,2})?(?!\.?[0-9])"
)


def numbers_in(text: str) -> list[Decimal]:
    """The numbers of a text: ``-3``, also with the minus sign of typography, ``0.5``, ``1,000``, ``2e-3``.

    Example:
        >>> numbers_in("1,250 of 3.0 or -2")
        [Decimal('1250'), Decimal('3.0'), Decimal('-2')]
    """
    return [Decimal(number.replace(",", "")) for number in _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))]


def only_number(text: str | None) -> Decimal | None:
    """The number of a text that holds exactly one, or None for none or several."""
    numbers = numbers_in(text or "")
    return numbers[0] if len(numbers) == 1 else None


def count(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if the answer holds a single number and it equals the solution's, else 0.

    Other words may stand around it: "there are 3 cubes" is 3. "3.0" equals "3". "three" is no number.
    """
    return [float(number is not None and number == truth) for number, truth in _pairs(completions, solution)]


class NumericReward:
    """1 if the answer's single number is within a tolerance of the solution's, else 0.

    Within means |answer - solution| <= ``numeric_tolerance`` * max(1, |solution|): absolute for small numbers, relative
    for large ones.
    """

    def __init__(self, numeric_tolerance: float = FunctionSettings.numeric_tolerance) -> None:
        self._tolerance = Decimal(repr(float(numeric_tolerance)))

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float]:
        return [
            float(number is not None and abs(number - truth) <= self._tolerance * max(1, abs(truth)))
            for number, truth in _pairs(completions, solution)
        ]


def regression(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - relative error of the answer's single number, the error clipped to 0..1.

    The relative error is |answer - solution| / |solution|. Where the solution is 0, only 0 scores.
    """
    return [_closeness(number, truth) for number, truth in _pairs(completions, solution)]


def check_number(solution: str, fields: Mapping[str, Any]) -> str | None:
    """Why a record cannot be scored by its number: its solution does not hold exactly one."""
    if only_number(solution_of(solution)) is not None:
        return None
    return f"the solution must hold exactly one number, got {solution[:80]!r}"


def _pairs(completions: list[str], solution: list[str]) -> list[tuple[Decimal | None, Decimal]]:
    found = []
    for answer, truth in pairs(completions, solution):
        expected = only_number(truth)
        if expected is None:
            raise ValueError(check_number(truth, {}))
        found.append((only_number(answer), expected))
    return found


def _closeness(number: Decimal | None, truth: Decimal) -> float:
    if number is None:
        return 0.0
    if truth == 0:
        return float(number == 0)
    return 1.0 - float(min(abs(number - truth) / abs(truth), Decimal(1)))
