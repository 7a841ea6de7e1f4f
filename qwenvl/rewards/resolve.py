"""From what a user names to a rubric: names of the table, import paths, plugin files and functions, with arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeVar

from qwenvl.rewards.columns import adapt_verl
from qwenvl.rewards.function import (
    RewardError,
    RewardFunction,
    bound_arguments,
    name_of,
    parsed,
    without_arguments,
    written,
)
from qwenvl.rewards.functions.reward_model import RewardModel
from qwenvl.rewards.options import Aggregation, OnError, ResponseFormat, RewardOptions, RewardSettings
from qwenvl.rewards.rubric import Rubric
from qwenvl.rewards.table import BY_FLAG, TABLE
from qwenvl.rewards.workers import load_file

DEFAULT_WEIGHTS = {"format": RewardOptions.format_reward_weight, "accuracy": RewardOptions.accuracy_reward_weight}

Named = str | Mapping[str, Any] | Callable[..., Any] | RewardFunction
Plugins = Mapping[str, tuple[Any, str]]
"""Marked functions of plugin files by name, each with the path by which a worker process finds it."""
Marked = TypeVar("Marked", bound=Callable[..., Any])


def reward(name: str, *, cpu_heavy: bool = False) -> Callable[[Marked], Marked]:
    """Mark a function or a class as the reward ``name``.

    The mark registers it nowhere: ``--external_plugins file.py`` looks for marked functions in the file.

    Args:
        cpu_heavy: run it in worker processes if ``--reward_workers`` gives some. Its rows then come in several calls,
            so each must be scored by itself.

    Example:
        >>> @reward("polite")
        ... def polite(completions, **columns):
        ...     return [float("please" in text) for text in completions]
        >>> polite.reward_name
        'polite'
    """

    def mark(function: Marked) -> Marked:
        function.reward_name, function.cpu_heavy = name, cpu_heavy  # type: ignore[attr-defined]
        return function

    return mark


def build_rubric(
    reward_funcs: Named | Sequence[Named] | None = None,
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
        reward_funcs: names of the table or of plugins, ``package.module:name``, ``file.py:name`` or ``verl:`` before
            one of these two, each with arguments in brackets or without; functions; or one of these without a list.
            None: ``format`` and ``accuracy``.
        reward_weights: one per function. None: 1 each, or the two named weights if ``reward_funcs`` is None.
        format_reward_weight, accuracy_reward_weight: weights of the default pair, 0.3 and 0.7 if None. They are
            refused with ``reward_funcs`` or ``reward_weights``, where they would have no effect.
        response_format: short for that setting.
        external_plugins: Python files whose functions carry ``@reward("name")``.
        reward_models: paths or names of reward models, appended after the functions. Without ``reward_funcs`` they are
            all that scores.
        settings: of the run, which are the defaults of some arguments.
        aggregation, on_error, timeout: see ``Rubric``.

    Raises:
        RewardError: an unknown name or argument, a clash of names, or weights that do not fit.

    Example:
        >>> build_rubric().names, build_rubric().weights
        (('format', 'accuracy'), (0.3, 0.7))
        >>> build_rubric("soft_overlong(max_len=10, cache=4)").score(["x"], {"completion_ids": [[0] * 9]}).totals()
        [-0.75]
    """
    if isinstance(reward_funcs, (str, Mapping, RewardFunction)) or callable(reward_funcs):
        reward_funcs = [reward_funcs]
    if reward_models and reward_funcs is None:
        reward_funcs = ()
    weights = _weights(reward_funcs, reward_weights, format_reward_weight, accuracy_reward_weight)
    values = dict(vars(settings or RewardSettings()))
    if response_format is not None:
        values["response_format"] = response_format
    plugins = _plugin_functions(external_plugins)
    named = DEFAULT_WEIGHTS if reward_funcs is None else reward_funcs
    functions = [resolve(each, values, plugins) for each in named]
    for place, path in enumerate(reward_models, start=1):
        name = "reward_model" if len(reward_models) == 1 else f"reward_model_{place}"
        functions.append(RewardFunction(name, RewardModel(path)))
    return Rubric(
        functions,
        [1.0] * len(functions) if weights is None else weights,
        aggregation=aggregation,
        on_error=on_error,
        timeout=timeout,
        workers=values["reward_workers"],
    )


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


def resolve(each: Named, settings: Mapping[str, Any] | None = None, plugins: Plugins | None = None) -> RewardFunction:
    """The reward function that a user named or gave, with its arguments bound.

    Args:
        each: see ``build_rubric``.
        settings: of the run, by name. None: the defaults.
        plugins: by name.

    Raises:
        RewardError: no such function, with the closest names, or arguments that do not fit.
    """
    if isinstance(each, RewardFunction):
        return each
    settings, plugins = settings or vars(RewardSettings()), plugins or {}
    given: Mapping[str, Any] = {}
    value: Any = each
    path, entry = None, None
    if not isinstance(each, (str, Mapping)):
        name = name_of(each)
    else:
        name, given = parsed(written(each))
        if name in plugins:
            value, path = plugins[name]
        elif entry := TABLE.get(name):
            value = entry.made_of
        elif ":" in name:
            path = name
            name, value = _imported(path)
        else:
            raise RewardError(_no_such(name, [*TABLE, *plugins]))
    bound = bound_arguments(name, value, given, settings, partial(resolve, settings=settings, plugins=plugins))
    plain = without_arguments(value)
    heavy = bool(getattr(plain, "cpu_heavy", False))
    if inspect.isclass(value):
        try:
            value = plain = value(**bound)
        except TypeError as error:
            with_these = "with these arguments" if bound else "without arguments"
            raise RewardError(f"reward {name!r}: the class cannot be made {with_these}: {error}") from error
    elif bound:
        value = partial(value, **bound)
    if not callable(value):
        raise RewardError(f"reward {name!r}: expected a function f(completions, **columns), got {type(value).__name__}")
    if entry and entry.refuses and (problem := entry.refuses(**bound)):
        raise RewardError(f"reward {name!r}: {problem}")
    check = _check((entry and entry.check) or getattr(plain, "check", None), bound)
    literals = {name: argument for name, argument in bound.items() if not isinstance(argument, RewardFunction)}
    spec = path and written({path: {**literals, **given}})
    return RewardFunction(name, value, check, spec=spec, cpu_heavy=heavy, arguments=bound)


def _no_such(name: str, names: Sequence[str]) -> str:
    if name in BY_FLAG:
        return f"{name} is set by --{name}, not among --reward_funcs"
    near = get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    words = name.replace(",", " ").split()
    if len(words) > 1 and not set(words) - set(names):
        hint = f"these are several names: a settings file lists them, [{', '.join(words)}], a flag parts them by spaces"
    return f"no reward function is named {name!r}: {hint}"


def call_by_spec(spec: str, /, *positional: Any, **keywords: Any) -> Any:
    """Call the function of a ``spec`` (see ``RewardFunction``) in a worker process."""
    return _call_of(spec)(*positional, **keywords)


@cache
def _call_of(spec: str) -> Callable[..., Any]:
    return resolve(spec).call


def _check(check: Callable[..., str | None] | None, bound: Mapping[str, Any]) -> Callable[..., str | None] | None:
    """The check of records with the arguments that it takes. Without one, that of the reward which is an argument."""
    if check is None:
        return next((each.check for each in bound.values() if isinstance(each, RewardFunction)), None)
    own = {name: value for name, value in bound.items() if name in inspect.signature(check).parameters}
    return partial(check, **own) if own else check


def _plugin_functions(files: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """The marked functions of plugin files by name, each with the path by which a worker process finds it.

    Raises:
        RewardError: a file is missing, fails, marks nothing, or marks a name that is taken.
    """
    found: dict[str, tuple[Any, str]] = {}
    for file in files:
        module = load_file(file)
        marked = [
            each
            for each in vars(module).values()
            if getattr(each, "__module__", None) == module.__name__ and isinstance(vars(each).get("reward_name"), str)
        ]
        if not marked:
            raise RewardError(f'{file}: no function is marked with @reward("name") (from qwenvl.rewards import reward)')
        for each in marked:
            name = each.reward_name
            if name in found:
                raise RewardError(f"{file}: the reward {name!r} is there twice among the plugin files: rename one")
            if name in TABLE or name in BY_FLAG:
                raise RewardError(f"{file}: the plugin reward {name!r} has the name of one in the table: rename it")
            found[name] = each, f"{file}:{each.__qualname__}"
    return found


def _imported(path: str) -> tuple[str, Any]:
    """Name and value of the reward ``package.module:name``, ``file.py:name``, or ``verl:`` before one of these."""
    module_name, _, attribute = path.removeprefix("verl:").rpartition(":")
    try:
        module = load_file(module_name) if module_name.endswith(".py") else import_module(module_name)
    except ImportError as error:
        raise RewardError(f"reward {path!r}: cannot import {module_name}: {error}") from error
    if not hasattr(module, attribute):
        callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RewardError(
            f"reward {path!r}: {module_name} has no {attribute!r}; it has {', '.join(callables) or 'none'}"
        )
    value = getattr(module, attribute)
    if path.startswith("verl:"):
        return attribute, adapt_verl(value)
    return getattr(value, "reward_name", attribute), value
