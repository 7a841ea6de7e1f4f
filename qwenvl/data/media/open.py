"""Opens a clip or an image, in this process or in a child that can be killed.

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
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qwenvl.child import Child, ChildDied, ChildError, ChildFailed, ChildTimeout
from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.data.media.images import FrameFolder, image_size, load_image, upright_image
from qwenvl.data.media.reader import PART_BYTES, Clip, ClipReader
from qwenvl.data.media.shape import Size
from qwenvl.data.media.source import frame_list
from qwenvl.data.options import SampleOptions

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

HEADER_SECONDS = 5.0  # for a header that is read to learn what a file is, or how large
# Errors of a decoding process that are those of the installation. All others are the file's fault: an odd file makes
# decoders fail in many ways, and also the code that reads their results.
MISTAKES = ("ImportError", "ModuleNotFoundError", "NameError")
LEAST_BYTES = 16 * 2**20  # a clip that has less room than that while it is opened is not called damaged
# Without these glibc hands the memory of every frame back and asks for it anew, which on short clips took as long as
# decoding.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20)}
# Children without an open clip, by process id, backend and memory: after a fork the parent's children are not ours.
_idle: dict[tuple[int, str, float], list[Decoder]] = defaultdict(list)


class ImageFiles(NamedTuple):
    """The images of a folder or list as a clip: the arguments of ``FrameFolder`` behind the path."""

    fps: float | None
    times: Sequence[float] | None
    listed: list[str] | None


def open_clip(
    path: str,
    backend: str = SampleOptions.video_backend,
    *,
    timeout: float = 0.0,
    memory_gb: float = SampleOptions.decode_memory_gb,
    strict: bool = False,
    frames_fps: float | None = None,
    frame_times: Sequence[float] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Clip:
    """Open a clip and index its frames.

    Args:
        backend: as ``--video_backend``. No other replaces one that fails.
        timeout: seconds for the whole clip, after which its decoder is killed. The decoder then runs in a child
            process. 0 decodes in this process, without bounds.
        memory_gb: the memory that the child may take for one clip, in GB.
        strict: also look for damage that PyAV's decoder would hide, in what is decoded and in the whole container.
        frames_fps: frames per second of a folder or list of images.
        frame_times: seconds of each of these images, in place of ``frames_fps``.
        is_over: with a timeout: whether nobody wants the clip any more. Its decoder is then killed as well.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, has no pictures, or exceeds the bounds, or it
            has ``frame_times`` though it is a file.
        ImportError, ValueError: decord is not installed, or has no timeout.

    Example:
        >>> with open_clip("data/example/clips/lid.mp4") as clip:
        ...     frames = clip.read([0, clip.frame_count - 1])  # 2 x 3 x H x W, uint8
    """
    chosen = resolve_backend(backend)
    listed = frame_list(path)
    images = None
    if listed is not None or os.path.isdir(path):
        images = ImageFiles(frames_fps, frame_times, listed)
    if frame_times is not None and images is None:
        message = "frame_times are for a folder or list of frames; this is a file, which has its own: leave them out"
        raise BadMediaError(path, message, "meta and clip disagree")
    if timeout > 0:
        return GuardedClip(
            path,
            chosen,
            timeout=timeout,
            memory_gb=memory_gb,
            strict=strict,
            images=images,
            is_over=is_over,
        )
    if images is not None:
        return FrameFolder(path, images.fps, images.times, images.listed)
    if chosen == "decord":
        raise ValueError("video_backend decord: it hangs on some files, so it needs --decode_timeout above 0")
    return ClipReader(path, strict)


def is_of_images(path: str) -> bool:
    """Whether a clip is a folder or a list of images."""
    return os.path.isdir(path) or frame_list(path) is not None


def read_image(
    path: str, *, timeout: float = 0.0, memory_gb: float = SampleOptions.decode_memory_gb
) -> Tensor:
    """Read an image as ``load_image`` does, within bounds: a file of a megabyte can keep Pillow busy for hours.

    Args:
        timeout, memory_gb: see ``open_clip``.

    Raises:
        BadMediaError: as ``load_image`` raises it, or the image exceeds the bounds.
    """
    import torch

    if timeout <= 0:
        return load_image(path)
    with GuardedFile(path, timeout=timeout, memory_gb=memory_gb) as file:
        return torch.from_numpy(file.picture()).permute(2, 0, 1).contiguous()


def read_image_size(
    path: str, *, timeout: float, memory_gb: float = SampleOptions.decode_memory_gb
) -> tuple[int, int]:
    """Read the size of an image as ``image_size`` does, within bounds: already the header can take for ever.

    Raises:
        BadMediaError: as ``image_size`` raises it, or the header exceeds the bounds.
    """
    with GuardedFile(path, timeout=timeout, memory_gb=memory_gb) as file:
        return file.picture_size()


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


class GuardedFile(AbstractContextManager):
    """A file read in a child process: one that hangs, crashes or swallows memory counts as bad, and the run continues.

    Each process that reads media (the trainer, or a worker of the DataLoader) has such a child. It starts the child
    when it reads its first file, and again after a kill.

    Args:
        path: the file.
        backend: as for ``ClipReader``.
        timeout: seconds from the first request to the end of the last one. After them the child is killed.
        memory_gb: the memory that the child may take for the file, in GB.

    ``picture`` and ``picture_size`` raise:
        BadMediaError: the file is bad, or exceeds a bound, or its decoder crashed. ``MediaTimeout`` where it took too
            long.
        MemoryError: the system killed the child, and a second one too.
    """

    _is_over: Callable[[], bool] | None = None
    _opening: tuple[Any, ...] = ()  # the argument of the request "open", which a new child gets first

    def __init__(self, path: str, backend: str = "pyav", *, timeout: float, memory_gb: float) -> None:
        self.path = path
        self._backend = backend
        self._full_path = os.path.abspath(path)  # the child may have been started in another working folder
        self._timeout = timeout
        self._memory_gb = memory_gb
        self._pool = _idle[os.getpid(), backend, memory_gb]
        self._child: Decoder | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the child to the next file. The child closes this one when it opens the next."""
        if self._child is not None:
            self._pool.append(self._child)
            self._child = None

    def picture(self) -> np.ndarray:
        """The image that the file is, as ``load_image`` has it: H x W x 3."""
        return self._received(self._ask("picture", self._full_path)).copy()

    def picture_size(self) -> tuple[int, int]:
        """The height and width of the image that the file is, by its header."""
        return self._ask("picture size", self._full_path)

    def _received(self, answer: Any) -> np.ndarray:
        """Pixels that the child has sent, or the shape of those in shared memory, which the next ones overwrite."""
        if isinstance(answer, np.ndarray):
            return answer
        assert self._child is not None
        return np.ndarray(answer, np.uint8, self._child.frames)

    def _ask(self, kind: str, argument: Any) -> Any:
        """The answer to a request. A child that the system kills is replaced once: most often memory was full."""
        for _ in range(2):
            try:
                if self._child is None:
                    self._child = self._idle_child() or Decoder(self._backend, self._memory_gb)
                    self._deadline = time.monotonic() + self._timeout
                    if kind == "part":
                        self._answer("open", self._opening)
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

    def _idle_child(self) -> Decoder | None:
        """A child that waits for a file, taken from the pool."""
        with suppress(IndexError):  # other threads take from it too
            child = self._pool.pop()
            return child if child.alive else None
        return None

    def _answer(self, *request: Any) -> Any:
        """Send a request to the child and wait for the answer until the clip's time is up."""
        assert self._child is not None
        try:
            answer = self._child.ask(request, max(0.0, self._deadline - time.monotonic()), is_over=self._is_over)
        except ChildTimeout:
            self._child = None
            reason = f"not decoded within {self._timeout:g} s (--decode_timeout); its decoder was killed"
            raise MediaTimeout(self.path, reason) from None
        except ChildFailed as error:
            kind, _, _ = str(error).partition(":")
            if kind in MISTAKES:
                raise RuntimeError(f"{self.path}: the decoding process failed:\n{error.details}") from None
            if "MemoryError" not in kind:
                logger.warning(f"{self.path}: the decoding process failed:\n{error.details}")
                raise BadMediaError(self.path, f"its decoder failed: {error}") from None
            answer = MemoryError()
        if isinstance(answer, MemoryError):
            raise BadMediaError(self.path, f"takes more than {self._memory_gb} GB to decode (--decode_memory_gb)")
        if isinstance(answer, BadMediaError) and answer.path == self._full_path:
            raise BadMediaError(self.path, answer.reason, answer.kind)
        if isinstance(answer, Exception):
            raise answer
        return answer


class GuardedClip(GuardedFile, Clip):
    """A clip that is open in a child process, which closes it when the process reads another file.

    Args:
        path: the file, or a folder or list of images.
        backend, strict: as for ``ClipReader``.
        timeout: seconds from opening the clip to the end of the last read.
        memory_gb: see ``GuardedFile``.
        images: the folder or list of images that is the clip. None: it is a file.
        is_over: see ``open_clip``.

    Raises:
        BadMediaError: as ``ClipReader`` raises it, or the clip exceeds a bound, or its decoder crashed.
        MemoryError: the system killed the child, and a second one too. Reading raises it as well.
    """

    def __init__(
        self,
        path: str,
        backend: str,
        *,
        timeout: float,
        memory_gb: float,
        strict: bool = False,
        images: ImageFiles | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(path, backend, timeout=timeout, memory_gb=memory_gb)
        self._is_over = is_over
        self._opening = (self._full_path, strict, images)
        try:
            opened = self._ask("open", self._opening)
        except BaseException:
            self.close()
            raise
        self.frame_times, self.duration, self.size, self.delay = opened

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[np.ndarray]:
        left = tuple(indices)
        while True:
            part = self._received(self._ask("part", (left, most_bytes)))  # the child continues where it stopped
            left = left[len(part) :]
            yield part
            if not left:
                return


def serve(backend: str, descriptor: str) -> ClipServer:
    """Make the child's side. ``Decoder`` names this function, and the child calls it once.

    Args:
        descriptor: of the file behind the shared memory.
    """
    memory = mmap.mmap(int(descriptor), PART_BYTES)
    if backend == "decord":
        import_module("decord")  # before memory is bounded
    return ClipServer(backend, memory)


class ClipServer:
    """Answers the requests of a ``GuardedFile`` in its child process, which does without torch.

    An exception that the parent should raise is an answer too.

    Args:
        memory: shared with the parent. A part of frames that fits lies there, and the answer is its shape.
    """

    def __init__(self, backend: str, memory: mmap.mmap) -> None:
        self.backend = backend
        self.memory = memory
        self.clip: ClipReader | FrameFolder | None = None
        self.parts: Iterator[np.ndarray] = iter(())
        self.left: tuple[int, ...] = ()  # the numbers of the frames that `parts` has not given yet

    def __call__(self, request: tuple[str, Any]) -> Any:
        kind, argument = request
        try:
            if kind == "part":
                indices, most_bytes = argument
                return self._next_part(indices, most_bytes)
            self._close()
            if kind == "picture":
                return self._sent(np.array(upright_image(argument)))
            if kind == "picture size":
                return image_size(argument)
            path, strict, images = argument
            return self._open(path, strict, images)
        except (MemoryError, BadMediaError, IndexError) as error:
            # FFmpeg takes a packet whose frame it has no memory for to be damaged, or leaves its frame out.
            full = isinstance(error, BadMediaError) and _no_room_for(_bytes_of_frame(self.clip))
            return MemoryError() if full or isinstance(error, MemoryError) else error

    def _open(self, path: str, strict: bool, images: ImageFiles | None) -> tuple[Sequence[float], float, Size, float]:
        """Open a clip. Returns the attributes of a ``Clip``: ``frame_times``, ``duration``, ``size`` and ``delay``."""
        if images is None:
            self.clip = ClipReader(path, strict, self.backend)
        else:
            self.clip = FrameFolder(path, images.fps, images.times, images.listed)
        return self.clip.frame_times, self.clip.duration, self.clip.size, self.clip.delay

    def _close(self) -> None:
        self.left = ()
        if self.clip is not None:
            self.clip.close()
            self.clip = None

    def _next_part(self, indices: tuple[int, ...], most_bytes: int) -> Any:
        """Decode the next part of these frames. Decoding goes on where it stopped if they are those that were left."""
        assert self.clip is not None  # the parent opened it
        if indices != self.left:
            self.parts = self.clip.parts(indices, most_bytes, self.memory)
        self.left = ()  # if decoding fails it begins anew
        part = next(self.parts)
        self.left = indices[len(part) :]
        return self._sent(part)

    def _sent(self, pixels: np.ndarray) -> Any:
        """Put pixels into the shared memory and return their shape. Larger ones are sent as they are."""
        if pixels.nbytes > PART_BYTES:
            return pixels
        shared: np.ndarray = np.ndarray(pixels.shape, np.uint8, self.memory)
        if not np.may_share_memory(shared, pixels):  # a ClipReader decodes into it
            shared[:] = pixels
        return pixels.shape


def _bytes_of_frame(clip: Clip | None) -> int:
    """The bytes of a frame of a clip. ``LEAST_BYTES`` where none is open, or its size can't be read."""
    if clip is None:
        return LEAST_BYTES
    try:
        return 3 * math.prod(clip.size)
    except BadMediaError:  # the size of a folder of frames is read from its first picture
        return LEAST_BYTES


def _no_room_for(needed: int) -> bool:
    """Whether this process has no memory left for so many bytes."""
    try:
        np.empty(needed, np.uint8)
    except MemoryError:
        return True
    return False
