"""Worker processes for what is slow or may never end: each task has a deadline, after which its process is killed."""

from __future__ import annotations

import os
import pickle
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from qwenvl.rewards.worker import HEADER, send

START_SECONDS = 120.0  # for a process to start and import, on a busy machine


class WorkerError(Exception):
    """A task failed in its worker, or the worker died."""


class WorkerTimeout(WorkerError):
    """A task took longer than its deadline; its process was killed."""


class Workers:
    """A fixed number of processes, started when they are first needed, that outlive tasks and are replaced when killed.

    Args:
        size: processes.
        memory_bytes: address space of each; None: no limit.
        preload: a module to import before the first task, so that its import does not count against a deadline.

    Example:
        >>> workers = Workers(1)
        >>> workers.submit("qwenvl.rewards.functions.countdown:solves", "1 + 2", [1, 2], 3).result()
        True
        >>> workers.close()
    """

    def __init__(self, size: int, memory_bytes: int | None = None, preload: str = "") -> None:
        self._memory_bytes, self._preload = memory_bytes, preload
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="reward-worker")
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)

    def submit(
        self, what: str | Callable[..., Any], *positional: Any, seconds: float | None = None, **keywords: Any
    ) -> Future:
        """Run a function in a worker.

        Args:
            what: ``module:name``, a path of ``--reward_funcs``, or a function that can be pickled.
            seconds: deadline, counted from when a worker takes the task; None: none.

        Returns:
            A future; its exception is a WorkerError, or a WorkerTimeout after the deadline.
        """
        return self._threads.submit(self._run, what, positional, keywords, seconds)

    def close(self) -> None:
        """End the processes; tasks that run are killed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not self._idle.empty():
            if process := self._idle.get():
                process.kill()

    def _run(self, what: Any, positional: Sequence, keywords: Mapping, seconds: float | None) -> Any:
        process = self._idle.get()
        try:
            process = process or _Process(self._memory_bytes, self._preload)
            answer = process.ask((what, positional, keywords, seconds), seconds)
        except BaseException:
            if process is not None:
                process.kill()
            process = None
            raise
        finally:
            self._idle.put(process)
        if answer[0]:
            return answer[1]
        raise WorkerError(f"{answer[1]}: {answer[2]}")


class _Process:
    """One worker; it ends by itself when this end of its input is closed."""

    def __init__(self, memory_bytes: int | None, preload: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "QWENVL_WORKER_BYTES": str(memory_bytes or 0),
            "QWENVL_WORKER_PRELOAD": preload,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from qwenvl.rewards.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._read(1, time.monotonic() + START_SECONDS, START_SECONDS)  # the byte that says it is ready

    def ask(self, task: tuple, seconds: float | None) -> tuple:
        """Send a task and wait for its answer."""
        try:
            send(self._process.stdin, task)
        except (BrokenPipeError, OSError) as error:
            raise WorkerError(f"a worker process died ({self._process.poll()})") from error
        deadline = None if seconds is None else time.monotonic() + seconds
        size = HEADER.unpack(self._read(HEADER.size, deadline, seconds))[0]
        return pickle.loads(self._read(size, deadline, seconds))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self, size: int, deadline: float | None, seconds: float | None) -> bytes:
        data, source = b"", self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while len(data) < size:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and (remaining <= 0 or not selector.select(remaining)):
                    raise WorkerTimeout(f"no result after {seconds:g} s")
                part = os.read(source, size - len(data))
                if not part:
                    raise WorkerError(f"a worker process died (exit status {self._process.wait()})")
                data += part
        return data
