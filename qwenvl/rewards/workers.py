"""A pool of child processes for functions that compute for long or may never end."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from qwenvl.child import Child

Task = tuple[str | Callable[..., Any], Sequence[Any], Mapping[str, Any]]
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Workers:
    """A fixed number of child processes. Each is started when it is first needed and serves until it is killed.

    Args:
        size: processes.
        memory_bytes: how much memory each may take for tasks. None for no bound.
        preload: ``module:function``, called in each process before its first task without arguments, so that what it
            loads counts against no bound.

    Example:
        >>> workers = Workers(1)
        >>> workers.submit("qwenvl.rewards.functions.countdown:solves", "1 + 2", [1, 2], 3).result()
        True
        >>> workers.close()
    """

    def __init__(self, size: int, memory_bytes: int | None = None, preload: str = "") -> None:
        self._memory_bytes, self._preload = memory_bytes, preload
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="reward-worker")
        self._idle: queue.LifoQueue[Child | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._busy: set[Child] = set()
        self._closed = False

    def submit(
        self,
        what: str | Callable[..., Any],
        *positional: Any,
        seconds: float | None = None,
        cpu_seconds: float | None = None,
        **keywords: Any,
    ) -> Future:
        """Run a function in a process of the pool.

        Args:
            what: ``module:name``, a path of ``--reward_funcs``, or a function that can be pickled.
            seconds: how long it may take by the clock, from when a process takes the task. None for no bound.
            cpu_seconds: how long it may compute. None for no bound.

        Returns:
            A future. Its exceptions are those of ``Child`` and of pickling.
        """
        return self._threads.submit(self._run, (what, positional, keywords), seconds, cpu_seconds)

    def close(self) -> None:
        """End the processes, those with a task too."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in list(self._busy):
            child.abort()
        with suppress(queue.Empty):
            while True:
                if idle := self._idle.get_nowait():
                    idle.kill()

    def _run(self, task: Task, seconds: float | None, cpu_seconds: float | None) -> Any:
        child = self._idle.get()
        try:
            if child is None or not child.alive:
                child = None  # one that can't be replaced is not put back
                child = self._start()
            self._busy.add(child)
            if self._closed:
                child.abort()
            return child.ask(task, seconds, cpu_seconds)
        finally:
            self._busy.discard(child)
            self._idle.put(child)
            if self._closed and child:
                child.kill()

    def _start(self) -> Child:
        here = f"{__name__}:serve"
        return Child(here, self._preload, memory_bytes=self._memory_bytes, environment=_ENVIRONMENT)


def serve(preload: str) -> Callable[[Task], Any]:
    """The child's side: a function from a task to its result."""
    if preload:
        find(preload)()

    def answer(task: Task) -> Any:
        what, positional, keywords = task
        function = find(what) if isinstance(what, str) else what
        return function(*positional, **keywords)

    return answer


@lru_cache(maxsize=64)
def find(spec: str) -> Callable[..., Any]:
    """The function that ``module:name`` or a path of ``--reward_funcs`` names."""
    module, _, name = spec.partition(":")
    if module.startswith("qwenvl."):
        return getattr(import_module(module), name)
    from qwenvl.rewards.plugins import by_path

    return by_path(spec).call
