"""Calls reward functions: async ones together, all on copies of their columns. None can exit the run."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from qwenvl.rewards.function import RewardError, RewardFunction, arguments

_PLAIN = frozenset((str, bytes, int, float, complex, bool, type(None)))


class RewardExit(Exception):
    """A reward function called ``sys.exit``, which would end the run with its status and without a model."""


@dataclass(frozen=True)
class Call:
    """One function on the rows that are its own.

    Attributes:
        completions: the texts of its rows.
        columns: lists as long as ``completions``, by name.
        shared: arguments that are not one per row (``trainer_state``, ``log_metric``).
    """

    function: RewardFunction
    completions: list[str]
    columns: Mapping[str, list[Any]]
    shared: Mapping[str, Any]

    def only(self, row: int) -> Call:
        """The same call on one of its rows."""
        columns = {name: [values[row]] for name, values in self.columns.items()}
        return replace(self, completions=[self.completions[row]], columns=columns)

    def arguments(self) -> tuple[list, dict]:
        """Positional and keyword arguments for the function: copies, so that it changes nothing that others see."""
        positional, keywords = arguments(self.function, self.completions, {**self.columns, **self.shared})
        return own(positional), {name: each if name in self.shared else own(each) for name, each in keywords.items()}


class Runner:
    """Makes calls and waits for them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, calls: list[Call]) -> list[list[Any]]:
        """The values of each call, one per row. A row that failed has the exception as its value.

        Async functions run beside each other and beside the others. A function that raises is called again row by row,
        to learn which rows it fails on.

        Raises:
            RewardError: a function needs a column that is missing, or did not return one value per row.
        """
        begun = [self._begin(call) if call.function.is_async else None for call in calls]
        return [self._finish(call, result or self._begin(call)) for call, result in zip(calls, begun, strict=True)]

    def close(self) -> None:
        """Stop the event loop and its thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _begin(self, call: Call) -> Callable[[], Any]:
        """Start a call, and return a function that waits for its values."""
        function = call.function.call
        positional, keywords = call.arguments()
        if call.function.is_async:
            coroutine = _call_async(function, positional, keywords)
            return asyncio.run_coroutine_threadsafe(coroutine, self._event_loop()).result
        return lambda: _call(function, positional, keywords)

    def _finish(self, call: Call, result: Callable[[], Any]) -> list[Any]:
        try:
            return _one_per_row(call, result())
        except RewardError:
            raise
        except Exception as error:
            failure = error  # the second call is outside of the handler: the traceback shows one error, not two
        if len(call.completions) == 1:
            return [failure]
        alone = [value for (value,) in self.run([call.only(row) for row in range(len(call.completions))])]
        # A function that fails on no single row fails on several together: all of them are affected.
        failed_alone = any(isinstance(value, Exception) for value in alone)
        return alone if failed_alone else [failure] * len(call.completions)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The one loop of this runner. Clients and semaphores belong to the loop that they were first used in."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_on, args=(self._loop,), name="async-rewards", daemon=True).start()
        return self._loop


def _one_per_row(call: Call, values: Any) -> list[Any]:
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (list, tuple)) and len(values) == len(call.completions):
        return list(values)
    got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
    raise RewardError(
        f'reward "{call.function.name}": expected a list of {len(call.completions)} values, one per completion '
        f"(a number, or None where it does not apply), got {got}"
    )


@contextmanager
def _no_exit() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise RewardExit(f"it called sys.exit({error.code!r})") from error


def _call(function: Callable[..., Any], positional: list, keywords: dict) -> Any:
    with _no_exit():
        return function(*positional, **keywords)


async def _call_async(function: Callable[..., Any], positional: list, keywords: dict) -> Any:
    with _no_exit():
        return await function(*positional, **keywords)


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped. ``sys.exit`` in a task that a function made does not stop it."""
    while True:
        with suppress(SystemExit):
            return loop.run_forever()


def own(value: Any) -> Any:
    """A copy of lists, dicts and all that they hold. Numbers, texts and None stay as they are."""
    if type(value) in _PLAIN or isinstance(value, str):
        return value
    if type(value) is list:
        return value.copy() if _PLAIN.issuperset(map(type, value)) else [own(each) for each in value]
    if type(value) is dict:
        return {name: own(each) for name, each in value.items()}
    return copy.deepcopy(value)
