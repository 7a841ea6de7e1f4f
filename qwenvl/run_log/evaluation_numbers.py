"""What is read off the numbers of an evaluation: models without an answer, and means with their intervals as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwenvl.run_log.log import AS_IT_IS


def says_nothing(row: Mapping[str, Any], by: str) -> bool:
    """Whether a row of an evaluation's ``numbers`` allows no conclusion: no completion has an answer, nor a reward.

    Args:
        by: the reward that tells whether a completion passes.
    """
    score = row["scores"].get(by)
    return row["no_answer"]["mean"] == 1.0 and (score is None or score["mean"] == 0)


def compared_records(difference: Mapping[str, Any]) -> int:
    """The number of records on which two models are compared: those with the score that decides for both.

    Args:
        difference: a row of ``differences`` of ``evaluation.json``.
    """
    count: int = difference["better"] + difference["equal"] + difference["worse"]
    return count


def silent_models(evaluation: Mapping[str, Any]) -> list[str]:
    """The models whose completions have no answer at all: no control and no comparison says anything about them."""
    by = evaluation["protocol"]["passes"]["by"]
    return [row["model"] for row in evaluation["numbers"] if row["control"] == AS_IT_IS and says_nothing(row, by)]


def signed_number(value: float) -> str:
    """A difference with its sign and three decimals. One that rounds to nothing has no sign.

    Example:
        >>> signed_number(-0.25), signed_number(-0.0004)
        ('-0.250', '0.000')
    """
    text = f"{value:+.3f}"
    return text[1:] if float(text) == 0 else text


def _number(value: float) -> str:
    """A value with three decimals. One that rounds to nothing has no sign."""
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text


def interval_text(interval: Mapping[str, Any], signed: bool = False) -> str:
    """A mean with its interval, three decimals each: ``0.963 [0.940, 0.983]``. "-" for the mean of nothing."""
    if interval["mean"] is None:
        return "-"
    written = signed_number if signed else _number
    mean = written(interval["mean"])
    low = interval["low"]
    high = interval["high"]
    if low is None or high is None:  # one cluster has no interval
        return mean
    return f"{mean} [{written(low)}, {written(high)}]"
