"""What reward functions return: a value for each completion, which is a number or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qwenvl.failure import text_of
from qwenvl.own_code import raised_at
from qwenvl.rewards.function import RewardError, RewardFunction, Undecided, Unfinished, arguments

LARGEST = 1e30  # a weighted sum of several such values is finite in float32


def one_per_row(name: str, rows: int, values: Any) -> list[Any]:
    """The values that a reward function has returned, as a list.

    Args:
        name: of the function.

    Raises:
        RewardError: they are no list, or not ``rows`` many.
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (list, tuple)) and len(values) == rows:
        return list(values)
    got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
    raise RewardError(
        f'reward "{name}": expected a list of {rows} values, one per completion '
        f"(a number, or None where it does not apply), got {got}"
    )


def as_number(value: Any) -> tuple[float | None, str | None]:
    """A reward as a float or None, and what is wrong with it."""
    if value is None:
        return None, None
    if isinstance(value, (Unfinished, Undecided)):
        return None, text_of(value)
    if isinstance(value, BaseException):
        return None, f"{type(value).__name__}: {text_of(value)}{raised_at(value)}"
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except Exception:  # other objects, arrays of several numbers, integers beyond all floats
        number = math.nan
    if not abs(number) <= LARGEST:  # NaN neither
        got = f"{number:g}" if isinstance(value, float) else f"a value of type {type(value).__name__}"
        return None, f"expected a number between -{LARGEST:g} and {LARGEST:g}, or None, got {got}"
    return number, None


def inner_values(
    function: RewardFunction, completions: list[str], columns: Mapping[str, Any]
) -> list[float | Unfinished | None]:
    """The values of a function that is not async, for a reward that builds on it.

    Raises:
        RewardError: it does not return one value per completion, or needs a column that is not there.
        ValueError: a value is no number.
    """
    positional, keywords = arguments(function, completions, columns)
    returned = function.call(*positional, **keywords, **function.arguments)
    values: list[float | Unfinished | None] = []
    for value in one_per_row(function.name, len(completions), returned):
        if isinstance(value, Unfinished):
            values.append(value)
            continue
        number, problem = as_number(value)
        if problem:
            raise ValueError(f'the reward "{function.name}" that it builds on: {problem}')
        values.append(number)
    return values
