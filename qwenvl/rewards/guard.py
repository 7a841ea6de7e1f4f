"""Runs reward functions: with a deadline, on copies of their arguments, and without letting them end the run.

``sys.exit`` raises an exception, which would end the run with exit code 0 and without a model. ``os._exit`` ends the
process at once. Within a call of a reward function both raise ``RewardExit`` instead. Out of reach are a function that
took ``os._exit`` to a name of its own before the rubric was made, and code in C that ends the process.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from qwenvl.rewards.function import RewardError, RewardFunction, arguments
from qwenvl.rewards.workers import Workers

_exit = os._exit
_process: ContextVar[int | None] = ContextVar("the process in which this thread or task calls a function", default=None)
_PLAIN = frozenset((str, bytes, int, float, complex, bool, type(None)))


class RewardExit(Exception):
    """A reward function tried to end the process."""


class RewardTimeout(Exception):
    """A call took longer than ``--reward_timeout``."""


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
        state = {"trainer_state": own_state(self.shared.get("trainer_state"))} if "trainer_state" in keywords else {}
        return own(positional), own({name: each for name, each in keywords.items() if name not in state}) | state


class Runner:
    """Makes calls and waits for them.

    Args:
        timeout: seconds that a call may take, or None for no limit. With a timeout each plain function runs in a thread
            of its own, because it could not be waited for with a limit otherwise.
        workers: processes for functions that are ``cpu_heavy``. They get one completion at a time. With 0 such
            functions run in this process.
    """

    def __init__(self, timeout: float | None = None, workers: int = 0) -> None:
        self._timeout = timeout
        self._workers = Workers(workers) if workers else None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, calls: list[Call]) -> list[list[Any]]:
        """The values of each call, one per row. A row that failed has the exception as its value.

        Async functions and those of worker processes run beside each other and beside the others. A function that
        raises is called again row by row, to learn which rows it fails on.

        Raises:
            RewardError: a function needs a column that is missing, or did not return one value per row.
        """
        aside = [each.function.is_async or (self._workers and each.function.cpu_heavy) for each in calls]
        begun = [self._begin(call) if beside else None for call, beside in zip(calls, aside, strict=True)]
        return [self._finish(call, result or self._begin(call)) for call, result in zip(calls, begun, strict=True)]

    def close(self) -> None:
        """Stop the event loop and its thread, and the worker processes."""
        if self._workers is not None:
            self._workers.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _begin(self, call: Call) -> Callable[[], Any]:
        """Start a call, and return a function that waits for its values."""
        function = call.function
        if self._workers is not None and function.cpu_heavy and not function.is_async:
            return self._begin_in_workers(call, self._workers)
        positional, keywords = call.arguments()
        if function.is_async:
            coroutine = _call_async(function.call, positional, keywords)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._event_loop())
        elif self._timeout is None:
            return lambda: _call(function.call, positional, keywords)
        else:
            future = _in_thread("reward", _call, function.call, positional, keywords)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        return lambda: self._result(future, deadline)

    def _begin_in_workers(self, call: Call, workers: Workers) -> Callable[[], list[Any]]:
        shared = {name: value for name, value in call.shared.items() if name != "log_metric"}
        by_spec = ("qwenvl.rewards.resolve:call_by_spec", call.function.spec)
        what = by_spec if call.function.spec else (call.function.call,)
        rows = [replace(call.only(row), shared=shared) for row in range(len(call.completions))]
        futures = []
        for row in rows:
            positional, keywords = row.arguments()
            futures.append(workers.submit(*what, *positional, seconds=self._timeout, **keywords))

        def value_or_error(row: Call, future: Future) -> Any:
            try:
                return _one_per_row(row, future.result())[0]
            except RewardError:
                raise
            except Exception as error:
                return error

        return lambda: list(map(value_or_error, rows, futures))

    def _result(self, future: Future, deadline: float | None) -> Any:
        wait([future], None if deadline is None else max(deadline - time.monotonic(), 0))
        if not future.done():
            future.cancel()
            raise RewardTimeout(f"no result after {self._timeout:g} s (--reward_timeout)")
        return future.result()

    def _finish(self, call: Call, result: Callable[[], Any]) -> list[Any]:
        try:
            return _one_per_row(call, result())
        except RewardError:
            raise
        except Exception as error:
            failure = error  # the second call is outside of the handler: the traceback shows one error, not two
        if isinstance(failure, RewardTimeout) or len(call.completions) == 1:
            return [failure] * len(call.completions)
        alone = [value for (value,) in self.run([call.only(row) for row in range(len(call.completions))])]
        # A function that fails on no single row fails on several together: all of them are affected.
        failed_alone = any(isinstance(value, Exception) for value in alone)
        return alone if failed_alone else [failure] * len(call.completions)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The one loop of this runner. Clients and semaphores belong to the loop that they were first used in."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            _in_thread("async-rewards", _run_on, self._loop)
        return self._loop


def _in_thread(name: str, function: Callable[..., Any], *positional: Any) -> Future:
    """Run a function in a daemon thread, on the GPU of this process: a thread begins on the machine's first GPU."""
    import torch

    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    future: Future = Future()
    future.set_running_or_notify_cancel()  # a thread cannot be cancelled: a late result is ignored

    def work() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            future.set_result(function(*positional))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


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
    """A call of a reward function, plain or async, in which exits raise.

    A process that the function forks ends with the call, and does not become a second run.

    Raises:
        RewardExit: ``sys.exit`` or ``os._exit`` was called.
    """
    process, status = os.getpid(), 1
    os._exit = _exit_outside_calls  # type: ignore[assignment]
    outside = _process.set(process)
    try:
        yield
        status = 0
    except SystemExit as error:
        if os.getpid() == process:
            raise RewardExit(f"it called sys.exit({error.code!r})") from error
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:
        if os.getpid() == process:
            raise
        traceback.print_exc()
    finally:
        if os.getpid() != process:
            _exit(status)
        _process.reset(outside)


def _exit_outside_calls(status: int) -> None:
    if _process.get() == os.getpid():  # a process that was forked within a call may end
        raise RewardExit(f"it called os._exit({status!r})")
    _exit(status)


def _call(function: Callable[..., Any], positional: list, keywords: dict) -> Any:
    with _no_exit():
        return function(*positional, **keywords)


async def _call_async(function: Callable[..., Any], positional: list, keywords: dict) -> Any:
    with _no_exit():
        return await function(*positional, **keywords)


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped.

    A ``sys.exit`` in a task that a function made ends ``run_forever``. The loop then continues, so that the function,
    which waits for the task, gets the exception.
    """
    while True:
        try:
            return loop.run_forever()
        except SystemExit:
            continue


def own(value: Any) -> Any:
    """A copy of lists, dicts and all that they hold. Numbers, texts and None stay as they are."""
    if type(value) in _PLAIN or isinstance(value, str):
        return value
    if type(value) is list:
        return value.copy() if _PLAIN.issuperset(map(type, value)) else [own(each) for each in value]
    if type(value) is dict:
        return {name: own(each) for name, each in value.items()}
    return copy.deepcopy(value)


def own_state(state: Any) -> Any:
    """A copy of the Trainer's state, with copies of the lists and dicts that it holds."""
    state = copy.copy(state)
    for name, value in getattr(state, "__dict__", {}).items():
        if isinstance(value, (list, dict, set)):
            setattr(state, name, own(value))
    return state
