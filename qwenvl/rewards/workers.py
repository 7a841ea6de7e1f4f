"""A pool of child processes for functions that compute for long or may never end."""

from __future__ import annotations

import hashlib
import importlib.util
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from qwenvl.child import Child
from qwenvl.rewards.function import RewardError

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
        >>> workers.submit("qwenvl.rewards.functions.numbers:solves", "1 + 2", [1, 2], 3).result()
        True
        >>> workers.close()
    """

    def __init__(self, size: int, memory_bytes: int | None = None, preload: str = "") -> None:
        self._memory_bytes, self._preload = memory_bytes, preload
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._children: set[Child] = set()
        self._closed = False
        # Daemons: the interpreter would wait for other threads, and a task may never end.
        self._threads = [threading.Thread(target=self._work, name="reward-worker", daemon=True) for _ in range(size)]
        for each in self._threads:
            each.start()

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
            what: ``package.module:name``, ``file.py:name``, or a function that can be pickled.
            seconds: how long it may take by the clock, from when a process takes the task. None for no bound.
            cpu_seconds: how long it may compute. None for no bound.

        Returns:
            A future. Its exceptions are those of ``Child`` and of pickling.
        """
        future: Future = Future()
        self._tasks.put((future, (what, positional, keywords), seconds, cpu_seconds))
        return future

    def close(self) -> None:
        """End the processes, those with a task too."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for child in list(self._children):
            child.abort()

    def _work(self) -> None:
        """Answer tasks by one child process, which is replaced when it has died."""
        child = None
        for future, task, seconds, cpu_seconds in iter(self._tasks.get, None):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if child is None or not child.alive:
                    self._children.discard(child)
                    child = None
                    child = self._start()
                    self._children.add(child)
                if self._closed:
                    child.abort()
                future.set_result(child.ask(task, seconds, cpu_seconds))
            except BaseException as error:
                future.set_exception(error)
        if child is not None:
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


def find(spec: str) -> Callable[..., Any]:
    """The function ``package.module:name`` or ``file.py:name``."""
    module, _, name = spec.rpartition(":")
    return getattr(load_file(module) if module.endswith(".py") else import_module(module), name)


def load_file(file: str) -> ModuleType:
    """Run a Python file as a module, once per process.

    Raises:
        RewardError: it does not exist, or it fails while it is loaded.
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
