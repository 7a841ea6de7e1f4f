"""Opens a clip, in this process or in a child that can be killed.

PyAV with an index of presentation times gives the right frames of every container tried (docs/benchmarks.md). It brings
its own FFmpeg, and so gives the same pixels on every machine: ``auto`` means PyAV. decord gives wrong frames for clips
that were cut without re-encoding, and hangs on one in four of those, so it never runs in the user's process.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

import numpy as np

from qwenvl.child import Child, ChildDied, ChildError, ChildFailed, ChildTimeout
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.images import FrameFolder
from qwenvl.data.media.reader import PART_BYTES, Clip, ClipReader
from qwenvl.data.media.source import frame_list
from qwenvl.data.options import SampleOptions

logger = logging.getLogger(__name__)

LEAST_BYTES = 16 * 2**20  # a clip that has less room than that while it is opened is not called damaged
# Else glibc hands the memory of every frame back and asks for it anew: on short clips that took as long as decoding.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20)}
# Children without an open clip. The key holds the process id: after a fork the parent's children are not ours.
_idle: dict[tuple[int, str, float], list[Decoder]] = defaultdict(list)


def open_clip(
    path: str,
    backend: str = SampleOptions.video_backend,
    *,
    timeout: float = 0.0,
    memory_gb: float = SampleOptions.decode_memory_gb,
    strict: bool = False,
    frames_fps: float | None = None,
    frame_times: Sequence[float] | None = None,
) -> Clip:
    """Open a clip and index its frames.

    Args:
        backend: as ``--video_backend``. No other replaces one that fails.
        timeout: seconds for the whole clip, after which its decoder is killed. The decoder then runs in a child
            process. 0 decodes in this process, without bounds.
        memory_gb: how much memory the child may take for one clip, in GB.
        strict: also look for damage that PyAV's decoder would hide, in what is decoded and in the whole container.
        frames_fps: frames per second of a folder or list of images, which need no decoder.
        frame_times: seconds of each of these images, in place of ``frames_fps``.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, has no pictures, or exceeds the bounds, or it
            has ``frame_times`` though it is a file.
        ImportError, ValueError: decord is not installed, or has no timeout.

    Example:
        >>> with open_clip("data/example/clips/lid.mp4") as clip:
        ...     frames = clip.read([0, clip.frame_count - 1])  # 2 x 3 x H x W, uint8
    """
    chosen = resolve_backend(backend)
    if os.path.isdir(path) or frame_list(path) is not None:
        return FrameFolder(path, frames_fps, frame_times)
    if frame_times is not None:
        message = "frame_times are for a folder or list of frames; this is a file, which has its own: leave them out"
        raise BadMediaError(path, message, "meta and clip disagree")
    if timeout > 0:
        return GuardedClip(path, chosen, timeout=timeout, memory_gb=memory_gb, strict=strict)
    if chosen == "decord":
        raise ValueError("video_backend decord: it hangs on some files, so it needs --decode_timeout above 0")
    return ClipReader(path, strict)


@lru_cache  # so that it warns once
def resolve_backend(backend: str) -> str:
    """The decoder behind a ``--video_backend``, ``pyav`` or ``decord``.

    Raises:
        ImportError: decord is not installed.
    """
    if backend != "decord":
        return "pyav"
    if find_spec("decord") is None:
        raise ImportError(
            "--video_backend decord: the package decord is not installed: pip install 'qwenvl[decord]', or use "
            "--video_backend auto"
        )
    logger.warning(
        "video_backend decord: clips cut without re-encoding come out with wrong frames or hang; those are refused or "
        "killed here and count as bad. `auto` reads them"
    )
    return backend


class Decoder(Child):
    """A child process that decodes one clip at a time.

    Attributes:
        frames: memory that both processes map, in which the child puts a part of frames.
    """

    def __init__(self, backend: str, memory_gb: float) -> None:
        with _anonymous_file() as file:
            os.ftruncate(file.fileno(), PART_BYTES)
            self.frames = mmap.mmap(file.fileno(), PART_BYTES)
            super().__init__(
                f"{__name__}:serve",
                backend,
                str(file.fileno()),
                memory_bytes=int(memory_gb * 1e9),
                environment={name: value for name, value in _KEEP_MEMORY.items() if name not in os.environ},
                descriptors=[file.fileno()],
            )


def _anonymous_file() -> IO[bytes]:
    """A file in memory, or on disk where the system has none in memory."""
    in_memory = hasattr(os, "memfd_create")
    return open(os.memfd_create("frames"), "r+b") if in_memory else tempfile.TemporaryFile()


class GuardedClip(Clip):
    """A clip open in a child process: one that hangs, crashes or swallows memory counts as bad, and the run continues.

    Each process that reads clips (the trainer, or a worker of the DataLoader) has such a child. It starts the child
    when it opens its first clip, and again after a kill.

    Args:
        path: the file.
        backend, strict: as for ``ClipReader``.
        timeout: seconds from opening the clip to the end of the last read. After them the child is killed.
        memory_gb: how much memory the child may take for the clip, in GB.

    Raises:
        BadMediaError: as ``ClipReader`` raises it, or the clip exceeds a bound, or its decoder crashed.
        MemoryError: the system killed the child, and a second one too. Reading raises it as well.
    """

    def __init__(self, path: str, backend: str, *, timeout: float, memory_gb: float, strict: bool = False) -> None:
        self.path, self._backend = path, backend
        self._strict, self._timeout, self._memory_gb = strict, timeout, memory_gb
        self._pool = _idle[os.getpid(), backend, memory_gb]
        self._child: Decoder | None = None
        try:
            self.frame_times, self.duration, self.size = self._ask("open", (path, strict))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the child to the next clip, at which the child closes this one."""
        if self._child is not None:
            self._pool.append(self._child)
            self._child = None

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[np.ndarray]:
        left = tuple(indices)
        while True:
            part = self._ask("part", (left, most_bytes))  # the child continues where it stopped
            if isinstance(part, tuple):  # the shape of a part in shared memory, which the next part overwrites
                part = np.ndarray(part, np.uint8, self._child.frames)
            left = left[len(part) :]
            yield part
            if not left:
                return

    def _ask(self, kind: str, argument: Any) -> Any:
        """The answer to a request. A child that the system kills is replaced once: most often memory was full."""
        for _ in range(2):
            try:
                if self._child is None:
                    idle = self._pool.pop() if self._pool else None
                    self._child = idle if idle and idle.alive else Decoder(self._backend, self._memory_gb)
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
            if "MemoryError" not in str(error):
                raise RuntimeError(f"{self.path}: the decoding process failed:\n{error.details}") from None
            answer = MemoryError()
        if isinstance(answer, MemoryError):
            raise BadMediaError(self.path, f"takes more than {self._memory_gb} GB to decode (--decode_memory_gb)")
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(backend: str, descriptor: str) -> Callable[[tuple[str, Any]], Any]:
    """The child's side: a function from a request of ``GuardedClip`` to its answer, an exception among them.

    The child does without torch.

    Args:
        descriptor: of the file behind the shared memory.
    """
    memory = mmap.mmap(int(descriptor), PART_BYTES)
    if backend == "decord":
        import_module("decord")  # before memory is bounded
    clip: ClipReader | None = None
    parts: Iterator[np.ndarray] = iter(())
    left: tuple[int, ...] = ()  # the numbers of the frames that `parts` has not given yet

    def answer(request: tuple[str, Any]) -> Any:
        nonlocal clip, parts, left
        kind, argument = request
        try:
            if kind == "part":
                wanted, most_bytes = argument
                if wanted != left:
                    parts = clip.parts(wanted, most_bytes, memory)
                left = ()
                part = next(parts)
                left = wanted[len(part) :]
                return part.shape if part.nbytes <= PART_BYTES else part
            left = ()
            if clip is not None:
                clip.close()
                clip = None
            path, strict = argument
            clip = ClipReader(path, strict, backend)
            return clip.frame_times, clip.duration, clip.size
        except (MemoryError, BadMediaError, IndexError) as error:
            # FFmpeg takes a packet whose frame it has no memory for to be damaged, or leaves its frame out.
            needed = LEAST_BYTES if clip is None else 3 * math.prod(clip.size)
            full = isinstance(error, BadMediaError) and _no_room_for(needed)
            return MemoryError() if full or isinstance(error, MemoryError) else error

    return answer


def _no_room_for(needed: int) -> bool:
    """Whether this process has no memory left for so many bytes."""
    try:
        np.empty(needed, np.uint8)
    except MemoryError:
        return True
    return False
