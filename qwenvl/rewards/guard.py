"""Runs reward functions: with a deadline, apart from each other, and without letting them end the run.

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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from qwenvl.rewards.function import RewardError, RewardFunction, arguments
from qwenvl.rewards.workers import Workers

_exit = os._exit
_here = threading.local()  # .process: the process in which this thread is within a call
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
        return Call(self.function, [self.completions[row]], columns, self.shared)

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
        """The values of each call, one per row. In place of a row that failed stands the exception.

        A function that raises is called again row by row, to learn which rows it fails on.

        Raises:
            RewardError: a function needs a column that is missing, or did not return one value per row.
        """
        begun = [self._begin(call) if self._runs_elsewhere(call.function) else None for call in calls]
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
        if self._in_workers(call.function):
            return self._begin_in_workers(call)
        positional, keywords = call.arguments()
        if call.function.is_async:
            coroutine = staying_async(call.function.call(*positional, **keywords))
            future = asyncio.run_coroutine_threadsafe(coroutine, self._event_loop())
        elif self._timeout is None:
            return lambda: staying(call.function.call, *positional, **keywords)
        else:
            future = _in_thread(call.function.call, positional, keywords)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        return lambda: _result(future, deadline, self._timeout)

    def _finish(self, call: Call, result: Callable[[], Any]) -> list[Any]:
        try:
            return _one_per_row(call, result())
        except RewardError:
            raise
        except Exception as error:
            failure = error  # what follows stands outside: a row's own error would be told as one of two
        if isinstance(failure, RewardTimeout) or len(call.completions) == 1:
            return [failure] * len(call.completions)
        rows = [call.only(row) for row in range(len(call.completions))]
        alone = [value for values in self.run(rows) for value in values]
        # A function that fails on no row by itself fails on their company: all of them are affected.
        failed_alone = any(isinstance(value, Exception) for value in alone)
        return alone if failed_alone else [failure] * len(call.completions)

    def _begin_in_workers(self, call: Call) -> Callable[[], list[Any]]:
        shared = {name: value for name, value in call.shared.items() if name != "log_metric"}
        by_spec = ("qwenvl.rewards.resolve:call_by_spec", call.function.spec)
        what = by_spec if call.function.spec else (call.function.call,)
        futures = []
        for row in range(len(call.completions)):
            positional, keywords = replace(call.only(row), shared=shared).arguments()
            futures.append(self._workers.submit(*what, *positional, seconds=self._timeout, **keywords))
        return lambda: [_value_or_error(call, future) for future in futures]

    def _runs_elsewhere(self, function: RewardFunction) -> bool:
        return function.is_async or self._in_workers(function)

    def _in_workers(self, function: RewardFunction) -> bool:
        return self._workers is not None and function.cpu_heavy and not function.is_async

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The one loop of this runner. Clients and semaphores belong to the loop that they were first used in."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            run = _on_this_device(partial(run_on, self._loop))
            threading.Thread(target=run, name="async-rewards", daemon=True).start()
        return self._loop


def _in_thread(function: Callable, positional: list, keywords: dict) -> Future:
    future: Future = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel a thread: what it gives too late is let go

    def work() -> None:
        try:
            future.set_result(staying(function, *positional, **keywords))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=_on_this_device(work), name="reward", daemon=True).start()
    return future


def _on_this_device(work: Callable[[], None]) -> Callable[[], None]:
    """``work`` on the GPU of this process. Another thread would begin on the first GPU of the machine."""
    import torch

    if not torch.cuda.is_initialized():
        return work
    device = torch.cuda.current_device()

    def there() -> None:
        torch.cuda.set_device(device)
        work()

    return there


def _value_or_error(call: Call, future: Future) -> Any:
    try:
        return _one_per_row(call.only(0), future.result())[0]
    except RewardError:
        raise
    except Exception as error:
        return error


def _result(future: Future, deadline: float | None, timeout: float | None) -> Any:
    wait([future], None if deadline is None else max(deadline - time.monotonic(), 0))
    if not future.done():
        future.cancel()
        raise RewardTimeout(f"no result after {timeout:g} s (--reward_timeout)")
    return future.result()


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


def staying(function: Callable[..., Any], *positional: Any, **keywords: Any) -> Any:
    """Call a function in this thread.

    Raises:
        RewardExit: it called ``sys.exit`` or ``os._exit``.
    """
    outside = _enter()
    try:
        with _within():
            return function(*positional, **keywords)
    finally:
        _here.process = outside


async def staying_async(result: Awaitable[Any]) -> Any:
    """Wait for what an async function gives, under an event loop of ``run_on``. It raises as ``staying`` does."""
    with _within():
        return await result


@contextmanager
def _within() -> Iterator[None]:
    """A call. A process that it forks ends with it, and does not become a second run."""
    process, status = os.getpid(), 1
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


def run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop of async reward functions in this thread until it is stopped.

    A ``sys.exit`` in a task of a function's own ends ``run_forever``. The loop then goes on, so that the function which
    waits for the task gets the exception.
    """
    _enter()
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


def _enter() -> int | None:
    """Mark this thread as within a call, and return how it was marked before."""
    os._exit = _exit_unless_within_a_call  # type: ignore[assignment]
    outside = getattr(_here, "process", None)
    _here.process = os.getpid()
    return outside


def _exit_unless_within_a_call(status: int) -> None:
    if getattr(_here, "process", None) == os.getpid():  # a process that was forked within a call may end
        raise RewardExit(f"it called os._exit({status!r})")
    _exit(status)
