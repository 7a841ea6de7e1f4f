"""Calls of reward functions: async ones in one event loop, and the settings of the process that a call may change."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from qwenvl.own_code import described, ends_forks
from qwenvl.rewards.function import RewardError

if TYPE_CHECKING:
    import torch

SECONDS_BETWEEN_LOOKS = 0.2  # at the thread of the loop, while a call is waited for


@dataclass(frozen=True)
class Settings:
    """Settings of the process that a reward function may change, and that the training step after it depends on."""

    recursion_limit: int
    has_grad: bool
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def now(cls) -> Settings:
        """The settings as they are."""
        import torch

        return cls(
            recursion_limit=sys.getrecursionlimit(),
            has_grad=torch.is_grad_enabled(),
            dtype=torch.get_default_dtype(),
            device=torch.get_default_device(),
        )

    def restore(self) -> None:
        """Set the settings of the process back to these where they differ."""
        sys.setrecursionlimit(self.recursion_limit)  # first: a low one may end any other call
        import torch

        torch.set_grad_enabled(self.has_grad)
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
        if torch.get_default_device() != self.device:
            # None is the CPU without the wrapper that torch puts around each call for a device that was set.
            torch.set_default_device(None if self.device.type == "cpu" else self.device)


class AsyncCalls:
    """Runs async reward functions side by side.

    They share one event loop for all calls of a run: clients and semaphores belong to the loop that first used them.
    So a loop that has ended is not replaced.
    """

    def __init__(self) -> None:
        self._ended_by: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="async-rewards", daemon=True)
        self._thread.start()

    def start(self, name: str, begin: Callable[[], Any]) -> Callable[[], Any]:
        """Start a call of the function ``name``. Returns the function that waits for its values.

        Waiting raises what the coroutine raised, and RewardError if the loop ends before the call does.
        """
        if not self._thread.is_alive():
            raise self._ended(name)
        future = asyncio.run_coroutine_threadsafe(_awaited(begin), self._loop)
        return partial(self._values, name, future)

    def close(self) -> None:
        """Stop the loop. Calls that still run are given up."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # a task of the user's own raised KeyboardInterrupt or SystemExit
            self._ended_by = error

    def _values(self, name: str, future: Future[Any]) -> Any:
        # Nothing completes the future of a loop that has ended: a wait without a limit would last forever.
        while not wait([future], timeout=SECONDS_BETWEEN_LOOKS).done:
            if not self._thread.is_alive() and not future.done():
                raise self._ended(name)
        return future.result()

    def _ended(self, name: str) -> RewardError:
        cause = described(self._ended_by) if self._ended_by else "a coroutine called its stop()"
        error = RewardError(
            f'reward "{name}": the event loop of the async reward functions has ended ({cause}). All of them share '
            "this loop: no function may stop it, nor raise SystemExit or KeyboardInterrupt in a task of its own"
        )
        error.__cause__ = self._ended_by
        return error


async def _awaited(begin: Callable[[], Any]) -> Any:
    try:
        with ends_forks():  # one that left here would wait for the tasks of an event loop that it does not run
            return await begin()
    # The first two would end the event loop, and in the run's own thread KeyboardInterrupt means Ctrl-C. Nobody cancels
    # this task: a cancellation is the function's own.
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise RuntimeError(f"the coroutine raised {described(error)}") from error
