"""Makes a rubric of what a user names: names of the table, import paths, plugin files, functions, with arguments."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from qwenvl.option import nearest, parse_row
from qwenvl.own_code import described
from qwenvl.rewards.function import RewardError, RewardFunction, adapt_verl, bound_arguments
from qwenvl.rewards.functions.models import RewardModel
from qwenvl.rewards.options import OnError, RewardOptions
from qwenvl.rewards.rubric import Rubric
from qwenvl.rewards.table import BY_FLAG, TABLE

DEFAULT_WEIGHTS = {"format": RewardOptions.format_reward_weight, "accuracy": RewardOptions.accuracy_reward_weight}

Named = str | Callable[..., Any] | RewardFunction
Marked = TypeVar("Marked", bound=Callable[..., Any])


def reward(name: str) -> Callable[[Marked], Marked]:
    """Mark a function or a class as the reward ``name``.

    The mark registers it nowhere: ``--external_plugins file.py`` looks for marked functions in the file.

    Example:
        >>> @reward("polite")
        ... def polite(completions, **columns):
        ...     return [float("please" in text) for text in completions]
        >>> polite.reward_name
        'polite'
    """

    def mark(function: Marked) -> Marked:
        function.reward_name = name  # type: ignore[attr-defined]
        return function

    return mark


def build_rubric(
    reward_funcs: Named | Sequence[Named] | None = None,
    reward_weights: Sequence[float] | None = None,
    format_reward_weight: float | None = None,
    accuracy_reward_weight: float | None = None,
    *,
    external_plugins: Sequence[str] = (),
    reward_models: Sequence[str] = (),
    settings: Any = None,
    on_error: OnError = "error",
) -> Rubric:
    """The rubric of a run.

    Args:
        reward_funcs: names of the table or of plugins, ``package.module:name``, ``file.py:name`` or ``verl:`` before
            one of these two, each with arguments in brackets or without; functions; or one of these without a list.
            None: ``format`` and ``accuracy``.
        reward_weights: one per function. None: 1 each, or the two named weights if ``reward_funcs`` is None.
        format_reward_weight, accuracy_reward_weight: weights of the default pair, 0.3 and 0.7 if None. They are
            refused with ``reward_funcs`` or ``reward_weights``, where they would have no effect.
        external_plugins: Python files whose functions carry ``@reward("name")``.
        reward_models: paths or names of reward models, appended after the functions. Without ``reward_funcs`` they are
            all that scores.
        settings: of the run, whose attributes are the defaults of some arguments. None: their own defaults.
        on_error: see ``Rubric``.

    Raises:
        RewardError: an unknown name or argument, a clash of names, or weights that do not fit.

    Example:
        >>> build_rubric().names, build_rubric().weights
        (('format', 'accuracy'), (0.3, 0.7))
        >>> build_rubric("soft_overlong(max_len=10, cache=4)").score(["x"], {"completion_ids": [[0] * 9]}).totals()
        [-0.75]
    """
    if isinstance(reward_funcs, (str, RewardFunction)) or callable(reward_funcs):
        reward_funcs = [reward_funcs]
    elif isinstance(reward_funcs, (Mapping, Set)) or not isinstance(reward_funcs, Iterable | None):
        got = type(reward_funcs).__name__
        raise RewardError(f"reward_funcs: expected a name, a function or a list of these, got {got}")
    if reward_models and reward_funcs is None:
        reward_funcs = ()
    named = {"format": format_reward_weight, "accuracy": accuracy_reward_weight}
    if reward_funcs is None and reward_weights is None:
        reward_weights = [DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in named.items()]
    elif given := [name for name, weight in named.items() if weight is not None]:
        other = "--reward_funcs" if reward_weights is None else "--reward_weights"
        raise RewardError(
            f"--{given[0]}_reward_weight has no effect with {other}: give all weights in --reward_weights"
        )
    plugins = _plugin_functions(external_plugins)
    names = DEFAULT_WEIGHTS if reward_funcs is None else reward_funcs
    functions = [resolve(each, settings, plugins) for each in names]
    for place, path in enumerate(reward_models, start=1):
        name = "reward_model" if len(reward_models) == 1 else f"reward_model_{place}"
        functions.append(RewardFunction(name, RewardModel(path)))
    try:
        weights = [1.0] * len(functions) if reward_weights is None else [float(each) for each in reward_weights]
    except (TypeError, ValueError):
        expected = "a list of numbers, one for each reward function"
        raise RewardError(f"reward_weights: expected {expected}, got {reward_weights!r}") from None
    return Rubric(functions, weights, on_error=on_error)


def check_names(reward_funcs: Sequence[str], external_plugins: Sequence[str] = ()) -> None:
    """Raise for a name that no reward has. Functions of modules and files are not looked up, which would load them.

    Raises:
        RewardError: an unknown name, or a plugin file that cannot be loaded.
    """
    plugins = _plugin_functions(external_plugins)
    for each in reward_funcs:
        try:
            name, _ = parse_row(each)
        except ValueError as error:
            raise RewardError(f"reward {each!r}: {error}") from None
        if name not in plugins and name not in TABLE and ":" not in name:
            raise RewardError(_no_such(name, [*TABLE, *plugins]))


def resolve(
    each: Named, settings: Any = None, plugins: Mapping[str, Any] | None = None
) -> RewardFunction:
    """The reward function that a user named or gave, with its arguments.

    Args:
        each, settings: see ``build_rubric``.
        plugins: marked functions by name.

    Raises:
        RewardError: no such function, with the closest names, or arguments that do not fit.
    """
    if isinstance(each, RewardFunction):
        return each
    plugins = plugins or {}
    given: Mapping[str, Any] = {}
    value: Any = each
    entry = None
    name = ""
    if isinstance(each, str):
        try:
            name, given = parse_row(each)
        except ValueError as error:
            raise RewardError(f"reward {each!r}: {error}") from None
        if name in plugins:
            value = plugins[name]
        elif entry := TABLE.get(name):
            value = entry.made_of
        elif ":" in name:
            name, value = _imported(name)
        else:
            raise RewardError(_no_such(name, [*TABLE, *plugins]))
    of_partial: dict[str, Any] = {}
    while isinstance(value, partial):
        of_partial = {**value.keywords, **of_partial}  # the outer one decides
        value = value.func
    name = name or getattr(value, "reward_name", None) or getattr(value, "__name__", None) or type(value).__name__
    bound = bound_arguments(name, value, given, settings, partial(resolve, settings=settings, plugins=plugins))
    bound |= of_partial
    if entry and entry.problem and (problem := entry.problem(**_named_by(entry.problem, bound))):
        raise RewardError(f"reward {name!r}: {problem}")
    arguments = bound
    if inspect.isclass(value):
        try:
            value = value(**bound)
            arguments = {}
        except TypeError as error:
            with_these = "with these arguments" if bound else "without arguments"
            raise RewardError(f"reward {name!r}: the class cannot be made {with_these}: {error}") from error
    if not callable(value):
        raise RewardError(f"reward {name!r}: expected a function f(completions, **columns), got {type(value).__name__}")
    check = _check((entry and entry.check) or getattr(value, "check", None), bound)
    value_range = (entry.low, entry.high) if entry else None
    return RewardFunction(name, value, check, arguments, getattr(value, "value_range", value_range))


def _no_such(name: str, names: Sequence[str]) -> str:
    if name in BY_FLAG:
        return f"{name} is set by --{name}, not among --reward_funcs"
    hint = nearest(name, names, "there are")
    words = name.replace(",", " ").split()
    if len(words) > 1 and not set(words) - set(names):
        hint = f"these are several names: a settings file lists them, [{', '.join(words)}], a flag parts them by spaces"
    return f"no reward function is named {name!r}: {hint}"


def _check(check: Callable[..., str | None] | None, bound: Mapping[str, Any]) -> Callable[..., str | None] | None:
    """The check of records with the arguments that it takes. Without one, that of the reward which is an argument."""
    if check is None:
        return next((each.check for each in bound.values() if isinstance(each, RewardFunction)), None)
    own = _named_by(check, bound)
    return partial(check, **own) if own else check


def _named_by(function: Callable[..., Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some arguments that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in bound.items() if name in parameters}


def _plugin_functions(files: Sequence[str]) -> dict[str, Any]:
    """The marked functions of plugin files by name.

    Raises:
        RewardError: a file is missing, fails, marks nothing, or marks a name that is taken.
    """
    found: dict[str, Any] = {}
    for file in files:
        module = load_file(file)
        own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
        marked = [each for each in own if isinstance(getattr(each, "reward_name", None), str)]
        if not marked:
            raise RewardError(f'{file}: no function is marked with @reward("name") (from qwenvl.rewards import reward)')
        for each in marked:
            if each.reward_name in {*found, *TABLE, *BY_FLAG}:
                raise RewardError(f"{file}: there is another reward {each.reward_name!r}: rename this one")
            found[each.reward_name] = each
    return found


def _imported(path: str) -> tuple[str, Any]:
    """Name and value of the reward ``package.module:name``, ``file.py:name``, or ``verl:`` before one of these."""
    module_name, _, attribute = path.removeprefix("verl:").rpartition(":")
    try:
        module = load_file(module_name) if module_name.endswith(".py") else import_module(module_name)
    except RewardError:
        raise
    except ImportError as error:
        raise RewardError(f"reward {path!r}: cannot import {module_name}: {error}") from error
    except (Exception, SystemExit) as error:  # the module's own code, or a name that is none of a module
        raise RewardError(f"reward {path!r}: cannot import {module_name}: {described(error)}") from error
    if not hasattr(module, attribute):
        callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RewardError(f"reward {path!r}: {module_name} has no {attribute!r}: {nearest(attribute, callables)}")
    value = getattr(module, attribute)
    if path.startswith("verl:"):
        return attribute, adapt_verl(value)
    return getattr(value, "reward_name", attribute), value


def load_file(file: str, named_by: str = "--external_plugins, --reward_funcs file.py:name") -> ModuleType:
    """Run a Python file as a module, once per process.

    Args:
        named_by: the flags that may name the file, for the error of one that does not exist.

    Raises:
        RewardError: it does not exist, or it fails while it is loaded.
    """
    path = Path(file).resolve()
    name = str(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise RewardError(f"{file}: no such Python file ({named_by})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"{file}: {type(error).__name__} while it was loaded: {error}") from error
    return module
