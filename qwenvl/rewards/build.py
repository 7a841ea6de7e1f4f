"""From what a user names to a rubric: names of the table, import paths, plugin files, functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from qwenvl.rewards.format import ResponseFormat
from qwenvl.rewards.function import RewardError, RewardFunction, name_of
from qwenvl.rewards.rubric import Aggregation, OnError, Rubric
from qwenvl.rewards.settings import RewardSettings
from qwenvl.rewards.table import TABLE, make

DEFAULT_WEIGHTS = {"format": 0.3, "accuracy": 0.7}


def build_rubric(
    reward_funcs: Sequence[str | Callable[..., Any] | RewardFunction] | None = None,
    reward_weights: Sequence[float] | None = None,
    format_reward_weight: float | None = None,
    accuracy_reward_weight: float | None = None,
    response_format: ResponseFormat = "think_answer",
    *,
    aggregation: Aggregation = "sum",
    on_error: OnError = "error",
    timeout: float | None = None,
) -> Rubric:
    """The rubric of a run.

    Args:
        reward_funcs: names of the table or functions; None: ``format`` and ``accuracy``.
        reward_weights: one per function; None: 1 each, or the two named weights where ``reward_funcs`` is None.
        format_reward_weight, accuracy_reward_weight: weights of the default pair, 0.3 and 0.7 where None; refused with
            ``reward_funcs`` or ``reward_weights``, where they would have no effect.
        response_format: what ``format`` and ``strict_format`` ask for.
        aggregation, on_error, timeout: see ``Rubric``.

    Raises:
        RewardError: an unknown name, a clash of names, or weights that do not fit.

    Example:
        >>> build_rubric().names, build_rubric().weights
        (('format', 'accuracy'), (0.3, 0.7))
    """
    named = {"format": format_reward_weight, "accuracy": accuracy_reward_weight}
    if reward_funcs is not None or reward_weights is not None:
        if given := [name for name, weight in named.items() if weight is not None]:
            other = "--reward_funcs" if reward_weights is None else "--reward_weights"
            raise RewardError(
                f"--{given[0]}_reward_weight has no effect with {other}: give the weights in --reward_weights"
            )
    elif reward_weights is None:
        reward_weights = [DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in named.items()]
    if reward_funcs is None:
        reward_funcs = list(DEFAULT_WEIGHTS)
    settings = RewardSettings(response_format=response_format)
    functions = [_resolve(each, settings) for each in reward_funcs]
    weights = [1.0] * len(functions) if reward_weights is None else reward_weights
    return Rubric(functions, weights, aggregation=aggregation, on_error=on_error, timeout=timeout)


def _resolve(each: str | Callable[..., Any] | RewardFunction, settings: RewardSettings) -> RewardFunction:
    if isinstance(each, RewardFunction):
        return each
    if callable(each):
        return RewardFunction(name_of(each), each)
    if each in TABLE:
        return make(each, settings)
    near = get_close_matches(each, TABLE, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the table has {', '.join(TABLE)}"
    raise RewardError(f"no reward function is named {each!r}: {hint}")
