"""Keeps reward functions apart from the run: they can't end its process, and they get copies of what others see.

``sys.exit`` raises an exception, which would end the run with exit code 0 and without a model. ``os._exit`` ends the
process at once. Within a call of a reward function both raise ``RewardExit`` instead. Out of reach are a function that
took ``os._exit`` to a name of its own before the rubric was made, and code in C that ends the process.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

_exit = os._exit
_here = threading.local()  # .process: the process in which this thread is within a call
_PLAIN = frozenset((str, bytes, int, float, complex, bool, type(None)))


class RewardExit(Exception):
    """A reward function tried to end the process."""


def staying(function: Callable[..., Any], *positional: Any, **keywords: Any) -> Any:
    """Call a function in this thread.

    Raises:
        RewardExit: it called ``sys.exit`` or ``os._exit``.
    """
    outside = _enter()
    try:
        return function(*positional, **keywords)
    except SystemExit as error:
        raise RewardExit(f"it called sys.exit({error.code!r})") from error
    finally:
        _here.process = outside


async def staying_async(result: Awaitable[Any]) -> Any:
    """Wait for what an async function gives, under an event loop of ``run_on``. It raises as ``staying`` does."""
    try:
        return await result
    except SystemExit as error:
        raise RewardExit(f"it called sys.exit({error.code!r})") from error


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
