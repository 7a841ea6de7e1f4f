"""From what a user names to a rubric: names of the table, import paths, plugin files, functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from qwenvl.rewards.function import RewardError, RewardFunction, name_of
from qwenvl.rewards.functions.reward_model import RewardModel
from qwenvl.rewards.options import Aggregation, OnError, ResponseFormat, RewardOptions, RewardSettings
from qwenvl.rewards.plugins import by_path, made, plugin_functions
from qwenvl.rewards.rubric import Rubric
from qwenvl.rewards.table import BY_FLAG, TABLE

DEFAULT_WEIGHTS = {"format": RewardOptions.format_reward_weight, "accuracy": RewardOptions.accuracy_reward_weight}

Named = str | Callable[..., Any] | RewardFunction


def build_rubric(
    reward_funcs: Sequence[Named] | None = None,
    reward_weights: Sequence[float] | None = None,
    format_reward_weight: float | None = None,
    accuracy_reward_weight: float | None = None,
    response_format: ResponseFormat | None = None,
    *,
    external_plugins: Sequence[str] = (),
    reward_models: Sequence[str] = (),
    settings: RewardSettings | None = None,
    aggregation: Aggregation = "sum",
    on_error: OnError = "error",
    timeout: float | None = None,
) -> Rubric:
    """The rubric of a run.

    Args:
        reward_funcs: names of the table or of plugins, ``package.module:name``, ``file.py:name``, ``verl:`` before one
            of these two, or functions. None stands for ``format`` and ``accuracy``.
        reward_weights: one per function. None stands for 1 each, or, where ``reward_funcs`` is None, for the two named
            weights.
        format_reward_weight, accuracy_reward_weight: weights of the default pair, 0.3 and 0.7 where None. They are
            refused with ``reward_funcs`` or ``reward_weights``, where they would have no effect.
        response_format: short for that setting.
        external_plugins: Python files whose functions carry ``@reward("name")``.
        reward_models: paths or names of reward models, appended after the functions. Without ``reward_funcs`` they are
            all that scores.
        settings: of the functions of the table, and ``reward_workers``.
        aggregation, on_error, timeout: see ``Rubric``.

    Raises:
        RewardError: an unknown name, a clash of names, or weights that do not fit.

    Example:
        >>> build_rubric().names, build_rubric().weights
        (('format', 'accuracy'), (0.3, 0.7))
    """
    if reward_models and reward_funcs is None:
        reward_funcs = ()
    weights = _weights(reward_funcs, reward_weights, format_reward_weight, accuracy_reward_weight)
    values = (settings or RewardSettings()).values()
    if response_format is not None:
        values["response_format"] = response_format
    plugins = plugin_functions(external_plugins)
    for name in plugins:
        if name in TABLE or name in BY_FLAG:
            raise RewardError(f"the plugin reward {name!r} has the name of one in the table: rename it")
    named = DEFAULT_WEIGHTS if reward_funcs is None else reward_funcs
    functions = [resolve(each, values, plugins) for each in named]
    for place, path in enumerate(reward_models, start=1):
        name = "reward_model" if len(reward_models) == 1 else f"reward_model_{place}"
        functions.append(RewardFunction(name, RewardModel(path)))
    used = {*(function.name for function in functions), values["correctness_func"]}
    if values["reward_workers"] and "math_accuracy" not in used and not any(each.cpu_heavy for each in functions):
        raise RewardError("--reward_workers has no effect: only math_accuracy and functions marked cpu_heavy use them")
    return Rubric(
        functions,
        [1.0] * len(functions) if weights is None else weights,
        aggregation=aggregation,
        on_error=on_error,
        timeout=timeout,
        workers=values["reward_workers"],
    )


def resolve(each: Named, settings: Mapping[str, Any], plugins: Mapping[str, RewardFunction]) -> RewardFunction:
    """The function that a user named or gave.

    Raises:
        RewardError: there is no such function. The message lists near names.
    """
    if isinstance(each, RewardFunction):
        return each
    if not isinstance(each, str):
        return made(getattr(each, "reward_name", None) or name_of(each), each)
    if each in plugins:
        return plugins[each]
    if ":" in each:
        return by_path(each)
    if each in BY_FLAG:
        raise RewardError(f"{each} is asked for by --{each}, not among --reward_funcs")
    if each in TABLE:
        return _made_of_table(each, settings, plugins)
    names = [*TABLE, *plugins]
    near = get_close_matches(each, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    words = each.replace(",", " ").split()
    if len(words) > 1 and not set(words) - set(names):
        hint = f"these are several names: a settings file lists them, [{', '.join(words)}], a flag parts them by spaces"
    raise RewardError(f"no reward function is named {each!r}: {hint}")


def _made_of_table(name: str, settings: Mapping[str, Any], plugins: Mapping[str, RewardFunction]) -> RewardFunction:
    """The function ``name`` of the table, told the settings that its constructor names."""
    entry = TABLE[name]
    if not inspect.isclass(entry.made_of):
        return RewardFunction(name, entry.made_of, entry.check)
    wanted = inspect.signature(entry.made_of).parameters
    given = {setting: settings[setting] for setting in wanted if setting in settings}
    check = entry.check
    if "correctness" in wanted:
        given["correctness"] = correctness = resolve(settings["correctness_func"], settings, plugins)
        check = correctness.check
    function: Any = entry.made_of(**given)
    return RewardFunction(name, function, getattr(function, "check", check))


def _weights(
    reward_funcs: Sequence[Named] | None, weights: Sequence[float] | None, *named: float | None
) -> Sequence[float] | None:
    given = dict(zip(DEFAULT_WEIGHTS, named, strict=True))
    if reward_funcs is None and weights is None:
        return [DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()]
    for name, weight in given.items():
        if weight is not None:
            other = "--reward_funcs" if weights is None else "--reward_weights"
            raise RewardError(
                f"--{name}_reward_weight has no effect with {other}: give all weights in --reward_weights"
            )
    return weights
