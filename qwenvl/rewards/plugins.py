"""Reward functions of a user's own: marked with ``@reward``, found in plugin files and by import path."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from qwenvl.rewards.adapters import adapt_verl
from qwenvl.rewards.function import RewardError, RewardFunction

Marked = TypeVar("Marked", bound=Callable[..., Any])


def reward(name: str, *, cpu_heavy: bool = False) -> Callable[[Marked], Marked]:
    """Mark a function, or a class that is made without arguments and called, as the reward ``name``.

    The mark registers it nowhere: ``--external_plugins file.py`` looks for marked functions in the file.

    Args:
        cpu_heavy: run it in worker processes where ``--reward_workers`` gives some. Its rows then come in several
            calls, so each must be scored by itself.

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


def plugin_functions(files: Sequence[str]) -> dict[str, RewardFunction]:
    """The marked functions of plugin files, by name.

    Raises:
        RewardError: a file is missing, fails, marks nothing, or two mark the same name.
    """
    found: dict[str, RewardFunction] = {}
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
            found[name] = made(name, each, spec=f"{file}:{each.__qualname__}")
    return found


def by_path(path: str) -> RewardFunction:
    """The function that ``package.module:name`` or ``file.py:name`` names.

    With ``verl:`` before it a compute_score of verl is adapted. A class is called without arguments to make the
    callable. The reward is named as its ``@reward`` says, else by ``name``.

    Raises:
        RewardError: the module or the name is not there, or cannot be called.
    """
    style, place = ("verl", path[len("verl:") :]) if path.startswith("verl:") else ("", path)
    module_name, _, attribute = place.rpartition(":")
    try:
        module = load_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    except ImportError as error:
        raise RewardError(f"reward {path!r}: cannot import {module_name}: {error}") from error
    if not hasattr(module, attribute):
        callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RewardError(
            f"reward {path!r}: {module_name} has no {attribute!r}; it has {', '.join(callables) or 'none'}"
        )
    value = getattr(module, attribute)
    if style == "verl":
        return RewardFunction(attribute, adapt_verl(value), spec=path)
    return made(getattr(value, "reward_name", attribute), value, spec=path)


def made(name: str, value: Any, spec: Any = None) -> RewardFunction:
    """A reward function of a function, of a callable object, or of a class that makes one without arguments."""
    heavy = bool(getattr(value, "cpu_heavy", False))
    if inspect.isclass(value):
        try:
            value = value()
        except TypeError as error:
            raise RewardError(f"reward {name!r}: the class cannot be made without arguments: {error}") from error
    if not callable(value):
        raise RewardError(f"reward {name!r}: expected a function f(completions, **columns), got {type(value).__name__}")
    return RewardFunction(name, value, getattr(value, "check", None), spec=spec, cpu_heavy=heavy)


def load_file(file: str) -> ModuleType:
    """Run a Python file as a module of its own, once per process.

    Raises:
        RewardError: it is not there, or it fails while it runs.
    """
    path = Path(file).resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise RewardError(f"{file}: no such Python file (--external_plugins, --reward_funcs file.py:name)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"{file}: {type(error).__name__} while it was loaded: {error}") from error
    return module
