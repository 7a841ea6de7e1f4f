"""Decoding in a process that can be killed: a clip that hangs, crashes or swallows memory is bad, and the run goes on.

Each process that reads clips (the trainer, or a DataLoader worker, forked or spawned) has such a child, started when
first needed and again after a kill. It is a fresh interpreter: it inherits no lock and no open reader, and DataLoader
workers may start it, though as daemons they may not start ``multiprocessing`` children.
"""

from __future__ import annotations

import atexit
import math
import mmap
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.decode_worker import REUSED_BYTES

if TYPE_CHECKING:
    from torch import Tensor

START_SECONDS = 120.0  # torchcodec imports torch, which takes long from a cold network disk
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from qwenvl.data.media.decode_worker import main; main(sys.argv[2:])"
)
# Else glibc hands the memory of every frame back and asks for it anew: on short clips that took as long as decoding.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20)}
# Children without an open clip. The key holds the process id: after a fork the parent's children are not ours.
_idle: dict[tuple[int, str, float], list[DecodeProcess]] = defaultdict(list)


class DecodeProcess:
    """A running child that serves one clip at a time."""

    def __init__(self, backend: str, memory_gb: float) -> None:
        self.connection, child_end = Pipe()
        arguments = [str(child_end.fileno()), str(os.getpid()), backend, str(memory_gb)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(Path(__file__).resolve().parents[3]), *arguments],
            pass_fds=[child_end.fileno()],
            stdin=subprocess.DEVNULL,
            env={**_KEEP_MEMORY, **os.environ},
        )
        child_end.close()
        atexit.register(self.kill)
        try:
            ready = self.connection.poll(START_SECONDS) and self.connection.recv()
        except (EOFError, ConnectionError):
            ready = False
        if not ready:
            self.kill()
            raise RuntimeError(f"the decoding process ({backend}) did not start within {START_SECONDS:g} s")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def join(self, seconds: float = 2.0) -> None:
        """Let a child that closed its connection end by itself, so that its exit code tells why."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> int:
        """End the child whatever it does, and return its exit code; negative is the signal that ended it."""
        self._process.kill()
        self.connection.close()
        atexit.unregister(self.kill)
        return self._process.wait()


def map_frames(descriptor: int, shape: tuple[int, ...]) -> np.ndarray:
    """The frames that a child put behind a descriptor, which is closed; a copy where the child will use it again."""
    size = math.prod(shape)
    try:
        frames = np.frombuffer(mmap.mmap(descriptor, size), np.uint8).reshape(shape)
    finally:
        os.close(descriptor)
    return frames.copy() if size <= REUSED_BYTES else frames


class GuardedClip:
    """A clip open in a child: a ``ClipReader`` with bounds on its time and memory.

    Args:
        timeout: seconds from opening to the last read, after which the child is killed.
        memory_gb: what the child may take for the clip, in GB.
        backend: as for ``ClipReader``.

    Raises:
        BadMediaError: as ``ClipReader``; beyond the bounds; or the decoder crashed.
    """

    def __init__(self, path: str, backend: str, *, timeout: float, memory_gb: float) -> None:
        self.path = path
        self._timeout = timeout
        self._pool = _idle[os.getpid(), backend, memory_gb]
        self._child = self._pool.pop() if self._pool else None
        if self._child is None or not self._child.alive:
            self._child = DecodeProcess(backend, memory_gb)
        self._deadline = time.monotonic() + timeout
        try:
            self.frame_times, self.duration = self._call("open", path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GuardedClip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the child to the next clip; it closes this one then."""
        if self._child is not None:
            self._pool.append(self._child)
            self._child = None

    @property
    def frame_count(self) -> int:
        return len(self.frame_times)

    def read(self, indices: Sequence[int]) -> Tensor:
        """As ``ClipReader.read``."""
        import torch

        (shape,) = self._call("read", tuple(indices))
        try:
            descriptor = recv_handle(self._child.connection)
        except (EOFError, OSError):
            self._crashed()
        return torch.from_numpy(map_frames(descriptor, shape)).permute(0, 3, 1, 2)

    def _call(self, *request: Any) -> list[Any]:
        """Send a request and wait for its reply until the clip's time is up."""
        if self._child is None:
            raise ValueError(f"{self.path}: the clip is closed")
        try:
            self._child.connection.send(request)
            if not self._child.connection.poll(max(0.0, self._deadline - time.monotonic())):
                self._kill()
                raise BadMediaError(
                    self.path, f"not decoded within {self._timeout:g} s (--decode_timeout); its decoder was killed"
                )
            status, *reply = self._child.connection.recv()
        except (EOFError, ConnectionError):
            self._crashed()
        if status == "error":
            raise reply[0]
        return reply

    def _crashed(self) -> NoReturn:
        self._child.join()
        code = self._kill()
        raise BadMediaError(self.path, f"its decoder crashed (exit code {code})") from None

    def _kill(self) -> int:
        child, self._child = self._child, None
        return child.kill()
