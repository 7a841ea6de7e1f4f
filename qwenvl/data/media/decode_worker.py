"""The child of ``watchdog``: reads clips on request until its parent goes away. It needs torch for torchcodec alone."""

from __future__ import annotations

import math
import mmap
import os
import signal
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

import numpy as np

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip_reader import ClipReader

REUSED_BYTES = 64 * 2**20


def main(arguments: list[str]) -> None:
    """Serve on an inherited descriptor: arguments are its number, the parent's id, a backend, and a bound in GB."""
    descriptor, parent, backend, memory_gb = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    connection = Connection(int(descriptor))
    if backend == "torchcodec":
        import torchcodec.decoders  # noqa: F401  (loaded now, its libraries do not count as the clips' memory)
    elif backend == "decord":
        import decord  # noqa: F401
    _limit_memory(float(memory_gb))
    connection.send(True)
    with suppress(EOFError, ConnectionError):  # the parent has gone
        _serve(connection, backend, memory_gb)


class SharedFrames:
    """Memory that the parent maps as well: frames are put there, not sent.

    Up to ``REUSED_BYTES`` are kept from clip to clip, since the system takes as long to find new memory as the decoder
    to fill it; the parent copies frames from these, and keeps larger ones where they are.
    """

    def __init__(self) -> None:
        self.descriptor = -1
        self._memory: mmap.mmap | None = None

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """As ``np.empty`` of uint8.

        Raises:
            MemoryError: beyond this process's bound.
        """
        size = math.prod(shape)
        if self._memory is None or not size <= len(self._memory) <= REUSED_BYTES:
            self._allocate(size)
        return np.frombuffer(self._memory, np.uint8, size).reshape(shape)

    def _allocate(self, size: int) -> None:
        self._memory = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("frames")
        else:
            self.descriptor, name = tempfile.mkstemp()
            os.unlink(name)
        os.ftruncate(self.descriptor, size)
        try:
            self._memory = mmap.mmap(self.descriptor, size)
        except OSError as error:
            raise MemoryError(str(error)) from None

    def release_large(self) -> None:
        """Leave to the parent alone what is not kept."""
        if self._memory is not None and len(self._memory) > REUSED_BYTES:
            self._memory = None
            os.close(self.descriptor)
            self.descriptor = -1


def _serve(connection: Connection, backend: str, memory_gb: str) -> None:
    clip: ClipReader | None = None
    path = ""
    shared = SharedFrames()
    while True:
        kind, argument = connection.recv()
        try:
            if kind == "open":
                if clip is not None:
                    clip.close()
                    clip = None
                path = argument
                clip = ClipReader(path, backend)
                reply = ("ok", clip.frame_times, clip.duration)
            else:
                reply = ("ok", clip.read_array(argument, shared.empty).shape)
        except MemoryError:
            reply = ("error", BadMediaError(path, f"takes more than {memory_gb} GB to decode (--decode_memory_gb)"))
        except (BadMediaError, IndexError) as error:
            reply = ("error", error)
        except Exception:
            reply = ("error", RuntimeError(f"{path}: the decoding process failed:\n{traceback.format_exc()}"))
        connection.send(reply)
        if kind == "read" and reply[0] == "ok":
            send_handle(connection, shared.descriptor, os.getppid())
        shared.release_large()


def _follow(parent: int) -> None:
    """Exit with the parent, even from within a decoder that hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _limit_memory(memory_gb: float) -> None:
    """Bound this process to what it holds now and ``memory_gb`` more, where the system knows such bounds."""
    try:
        import resource

        with open("/proc/self/statm") as statm:
            held = int(statm.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    bound = held + int(memory_gb * 1e9)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or bound < hard:
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
