"""What runs in a worker process: it reads tasks from its standard input and answers them on its standard output.

A process of its own rather than one of ``multiprocessing``: those import the main script again, which starts a second
training where it has no ``__main__`` guard, and they cannot be started from threads on every platform.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO

READY = b"!"
HEADER = struct.Struct(">Q")  # length of the pickle that follows


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message; EOFError at the end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        raise EOFError
    return pickle.loads(stream.read(HEADER.unpack(header)[0]))


@lru_cache(maxsize=64)
def find(spec: str) -> Callable[..., Any]:
    """The function that ``module:name`` or a path of ``--reward_funcs`` names."""
    module, _, name = spec.partition(":")
    if module.startswith("qwenvl."):
        return getattr(importlib.import_module(module), name)
    from qwenvl.rewards.plugins import by_path

    return by_path(spec).call


def main() -> None:
    """Answer (what, positional, keywords, seconds) with (True, value) or (False, kind of error, message)."""
    if limit := int(os.environ.get("QWENVL_WORKER_BYTES", 0)):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a function prints must not stand among the answers
    if preload := os.environ.get("QWENVL_WORKER_PRELOAD"):
        importlib.import_module(preload)
    answers.write(READY)
    answers.flush()
    while True:
        try:
            what, positional, keywords, seconds = receive(tasks)
        except EOFError:
            return
        except Exception as error:
            send(answers, (False, type(error).__name__, f"the task cannot be read in a worker process: {error}"))
            continue
        # Should the parent be gone when the time is over, the kernel ends this process, whatever it is computing.
        signal.setitimer(signal.ITIMER_REAL, seconds + 5 if seconds else 0)
        try:
            function = find(what) if isinstance(what, str) else what
            answer = (True, function(*positional, **keywords))
        except Exception as error:
            answer = (False, type(error).__name__, str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            send(answers, answer)
        except Exception as error:
            send(answers, (False, type(error).__name__, f"the result cannot be sent back: {error}"))
