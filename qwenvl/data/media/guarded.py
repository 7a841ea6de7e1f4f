"""Clips read in a child process: one that hangs, crashes or swallows memory counts as bad, and the run goes on.

Each process that reads clips (the trainer, or a worker of the DataLoader) has such a child. It starts the child when it
opens its first clip, and again after a kill. Frames come back in memory that both processes map, so they are not sent.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from qwenvl.child import Child, ChildDied, ChildError, ChildFailed, ChildTimeout, WithFile
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip.reader import PART_BYTES, ClipReader

if TYPE_CHECKING:
    from torch import Tensor

REUSED_BYTES = 64 * 2**20  # finding so much new memory takes the system as long as decoding into it
LEAST_BYTES = 16 * 2**20  # a clip that has less room than that while it is opened is not called damaged
_LIBRARIES = {"torchcodec": "torchcodec.decoders", "decord": "decord"}
# Else glibc hands the memory of every frame back and asks for it anew: on short clips that took as long as decoding.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20)}
# Children without an open clip. The key holds the process id: after a fork the parent's children are not ours.
_idle: dict[tuple[int, str, float], list[Child]] = defaultdict(list)


class GuardedClip:
    """A clip open in a child process: a ``ClipReader`` with bounds on its time and memory.

    Args:
        path: the file.
        backend, strict: as for ``ClipReader``.
        timeout: seconds from opening the clip to the end of the last read. After them the child is killed.
        memory_gb: how much memory the child may take for the clip, in GB.

    Attributes:
        frame_times, duration, size, notes: as of ``ClipReader``.

    Raises:
        BadMediaError: as ``ClipReader`` raises it, or the clip exceeds a bound, or its decoder crashed.
        MemoryError: the system killed the child, and a second one too. Reading raises it as well.
    """

    def __init__(self, path: str, backend: str, *, timeout: float, memory_gb: float, strict: bool = False) -> None:
        self.path = path
        self._backend, self._strict = backend, strict
        self._timeout, self._memory_gb = timeout, memory_gb
        self._pool = _idle[os.getpid(), backend, memory_gb]
        self._child: Child | None = None
        self._closed = False
        try:
            self.frame_times, self.duration, self.size, self.notes = self._ask("open", (path, strict))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GuardedClip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the child to the next clip, at which the child closes this one."""
        if self._child is not None:
            self._pool.append(self._child)
            self._child = None
        self._closed = True

    @property
    def frame_count(self) -> int:
        """How many frames the clip has."""
        return len(self.frame_times)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Decode frames by number, as ``ClipReader.read`` does."""
        import torch

        frames = self._ask("read", tuple(indices))
        read = map_frames(frames.descriptor, frames.value)
        own = read.copy() if read.nbytes <= REUSED_BYTES else read  # the child uses the memory of few frames again
        return torch.from_numpy(own).permute(0, 3, 1, 2)

    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return how much the picture changes up to each frame, as ``ClipReader.look`` does."""
        return self._ask("look", tuple(indices))

    def check_all(self) -> None:
        """Decode all frames and keep none, as ``ClipReader.check_all`` does."""
        self._ask("check", None)

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[Tensor]:
        """Decode frames a few at a time, as ``ClipReader.parts`` does. The child decodes on where it stopped.

        A part is memory of the child, which the child uses again for the next one.
        """
        import torch

        left = tuple(indices)
        while left:
            frames = self._ask("part", (left, most_bytes))
            part = map_frames(frames.descriptor, frames.value)
            left = left[len(part) :]
            yield torch.from_numpy(part).permute(0, 3, 1, 2)

    def _ask(self, kind: str, argument: Any) -> Any:
        """The answer to a request. A child that the system kills is replaced once: most often memory was full."""
        if self._closed:
            raise ValueError(f"{self.path}: the clip is closed")
        for _ in range(2):
            try:
                if self._child is None:
                    self._child = self._unused_child()
                    self._deadline = time.monotonic() + self._timeout
                    if kind != "open":
                        self._answer("open", (self.path, self._strict))
                return self._answer(kind, argument)
            except ChildError as error:
                self._child = None
                if error.exit_code == -signal.SIGKILL:
                    continue
                if isinstance(error, ChildDied):
                    raise BadMediaError(self.path, f"its decoder crashed (exit code {error.exit_code})") from None
                raise
        raise MemoryError(
            "the system killed the process that decodes twice, as it does where memory is full: decode in fewer "
            "processes (--dataloader_num_workers, or --jobs of data check), or refuse clips that take much "
            f"(--decode_memory_gb, now {self._memory_gb:g})"
        )

    def _unused_child(self) -> Child:
        child = self._pool.pop() if self._pool else None
        if child is not None and child.alive:
            return child
        kept = {name: value for name, value in _KEEP_MEMORY.items() if name not in os.environ}
        memory_bytes = int(self._memory_gb * 1e9)
        return Child(f"{__name__}:serve", self._backend, memory_bytes=memory_bytes, environment=kept)

    def _answer(self, *request: Any) -> Any:
        """Send a request to the child and wait for the answer until the clip's time is up."""
        assert self._child is not None
        try:
            answer = self._child.ask(request, max(0.0, self._deadline - time.monotonic()))
        except ChildTimeout:
            self._child = None
            reason = f"not decoded within {self._timeout:g} s (--decode_timeout); its decoder was killed"
            raise BadMediaError(self.path, reason) from None
        except ChildFailed as error:
            raise RuntimeError(f"{self.path}: the decoding process failed:\n{error.details}") from None
        if isinstance(answer, MemoryError):
            raise BadMediaError(self.path, f"takes more than {self._memory_gb} GB to decode (--decode_memory_gb)")
        if isinstance(answer, Exception):
            raise answer
        return answer


def map_frames(descriptor: int, shape: tuple[int, ...]) -> np.ndarray:
    """The frames in the file behind a descriptor, which is closed. The memory is that of the file."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, math.prod(shape)), np.uint8).reshape(shape)
    finally:
        os.close(descriptor)


def serve(backend: str) -> Callable[[tuple[str, Any]], Any]:
    """The child's side: a function from a request of ``GuardedClip`` to its answer, an exception among them.

    The child needs torch for torchcodec alone.
    """
    if backend in _LIBRARIES:
        import_module(_LIBRARIES[backend])
    clip: ClipReader | None = None
    parts: Iterator[np.ndarray] = iter(())
    left: tuple[int, ...] = ()  # the numbers of the frames that `parts` has not given yet
    shared = SharedFrames()

    def answer(request: tuple[str, Any]) -> Any:
        nonlocal clip, parts, left
        kind, argument = request
        try:
            if kind == "check":
                return clip.check_all()
            if kind == "look":
                return clip.look(argument)
            if kind == "read":
                return shared.give(clip.read_array(argument, shared.empty).shape)
            if kind == "part":
                wanted, most_bytes = argument
                if wanted != left:
                    parts = clip.array_parts(wanted, most_bytes, shared.empty)
                left = ()
                part = next(parts)
                left = wanted[len(part) :]
                return shared.give(part.shape)
            left = ()
            if clip is not None:
                clip.close()
                clip = None
            path, strict = argument
            clip = ClipReader(path, backend, strict)
            return clip.frame_times, clip.duration, clip.size, clip.notes
        except (MemoryError, BadMediaError, IndexError) as error:
            shared.leave_large()
            # FFmpeg takes a packet whose frame it has no memory for to be damaged, or leaves its frame out.
            full = isinstance(error, BadMediaError) and no_room_for(LEAST_BYTES if clip is None else clip.size)
            return MemoryError() if full or isinstance(error, MemoryError) else error

    return answer


def no_room_for(needed: int | tuple[int, int]) -> bool:
    """Whether this process has no memory left for so many bytes, or for a frame of this height and width."""
    try:
        np.empty(needed if isinstance(needed, int) else 3 * math.prod(needed), np.uint8)
    except MemoryError:
        return True
    return False


class SharedFrames:
    """The child's memory for frames, which the parent maps as well.

    Up to ``REUSED_BYTES`` are kept from read to read. What is larger is left to the parent.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._memory: mmap.mmap | None = None

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array of uint8 in this memory, as ``np.empty`` makes one.

        Raises:
            MemoryError: it exceeds the bound of this process.
        """
        size = math.prod(shape)
        if self._memory is None or len(self._memory) < size:
            self._allocate(size)
        return np.frombuffer(self._memory, np.uint8, size).reshape(shape)

    def give(self, shape: tuple[int, ...]) -> WithFile:
        """The answer that hands the array over."""
        descriptor = self._descriptor
        return WithFile(shape, descriptor, keep=not self._forget_large())

    def leave_large(self) -> None:
        """Free the memory if it is larger than what is kept."""
        descriptor = self._descriptor
        if self._forget_large():
            os.close(descriptor)

    def _forget_large(self) -> bool:
        large = self._memory is not None and len(self._memory) > REUSED_BYTES
        if large:
            self._memory, self._descriptor = None, -1
        return large

    def _allocate(self, size: int) -> None:
        self._memory = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("frames")
        else:
            self._descriptor, name = tempfile.mkstemp()
            os.unlink(name)
        os.ftruncate(self._descriptor, size)
        try:
            self._memory = mmap.mmap(self._descriptor, size)
        except OSError as error:
            raise MemoryError(str(error)) from None
