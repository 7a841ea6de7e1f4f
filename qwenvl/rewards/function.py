"""A reward function with what the rubric must know of it, and the error that names it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


class RewardError(ValueError):
    """A reward function failed, or gave no reward. The message names the function, the record and the completion."""


class Unfinished(Exception):
    """In place of a row's value: a bound on computing or memory kept the function from finding it.

    The row has no value from this function, which is counted and named, and the run goes on.
    """


@dataclass(frozen=True)
class RewardFunction:
    """One column of a rubric.

    Attributes:
        name: under which its values are logged (``reward/<name>``).
        call: ``f(completions, **columns) -> list[float | None]``, plain or async.
        check: ``check(solution, fields)`` says why a record cannot be scored, or None. It is called when data is read.
        spec: how a worker process finds ``call`` again. None where the function itself has to be pickled.
        cpu_heavy: run it in a worker process where there are any.
    """

    name: str
    call: Callable[..., Any]
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None
    spec: Any = None
    cpu_heavy: bool = False

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        called = self.call if inspect.isroutine(self.call) else type(self.call).__call__
        return inspect.iscoroutinefunction(called)


def arguments(function: RewardFunction, completions: list[str], columns: Mapping[str, Any]) -> tuple[list, dict]:
    """Positional and keyword arguments of one call: the completions and those columns that the function takes.

    Raises:
        RewardError: the function requires a column that the records do not have.
    """
    parameters = inspect.signature(function.call).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = {"completions": completions, **columns}
    keywords = {name: value for name, value in given.items() if takes_all or name in named}
    positional = []
    first = next(iter(parameters), None)
    if "completions" not in named and first is not None and first.name not in columns and first.kind in _BY_POSITION:
        positional = [keywords.pop("completions", completions)]
        named.pop(first.name, None)
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise RewardError(
            f'reward "{function.name}" needs the column {missing[0]!r}, which no record has; '
            f"there are: {', '.join(sorted(given))}"
        )
    return positional, keywords


def call_plain(function: RewardFunction, completions: list[str], columns: Mapping[str, Any]) -> Any:
    """Call a function that is not async with the columns that it takes, for a reward that builds on another one."""
    positional, keywords = arguments(function, completions, columns)
    return function.call(*positional, **keywords)


def name_of(function: Any) -> str:
    """The name of a function, or of the class of a callable object."""
    return getattr(function, "__name__", None) or type(function).__name__
