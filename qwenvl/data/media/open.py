"""Opens a clip by the backend that is asked for, in this process or in a child.

The choice was measured on clips whose frames carry their number (docs/benchmarks.md). PyAV with an index of
presentation times gives the right frames of every container tried. It is the fastest that does, brings its own FFmpeg,
and gives the same pixels on every machine, so ``auto`` means PyAV. torchcodec in its exact mode is wrong for MPEG
streams and AVI alone, and the index notices. decord gives wrong frames for clips that were cut without re-encoding, and
hangs on one in four of those, so it never runs in the user's process.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Literal, cast

from qwenvl.data.media.clip.reader import ClipReader
from qwenvl.data.media.frame_folder import FrameFolder
from qwenvl.data.media.guarded import GuardedClip
from qwenvl.data.media.source import frame_list
from qwenvl.data.options import SampleOptions

logger = logging.getLogger(__name__)

Backend = Literal["torchcodec", "pyav", "decord"]
BACKENDS = ("auto", "torchcodec", "pyav", "decord")
Clip = ClipReader | GuardedClip | FrameFolder


def open_clip(
    path: str,
    backend: str = SampleOptions.video_backend,
    *,
    timeout: float = 0.0,
    memory_gb: float = SampleOptions.decode_memory_gb,
    strict: bool = False,
    frames_fps: float | None = None,
) -> Clip:
    """Open a clip and index its frames. The clip is a context manager with the methods of ``ClipReader``.

    Args:
        backend: one of ``BACKENDS``. None stands in for another that fails.
        timeout: seconds for the whole clip, after which its decoder is killed. The decoder then runs in a child
            process. 0 decodes in this process, without bounds.
        memory_gb: how much memory the child may take for one clip, in GB.
        strict: also look for damage that PyAV's decoder would hide, in what is decoded and in the whole container.
        frames_fps: frames per second of a folder or list of images, which need no decoder.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, has no pictures, or exceeds the bounds.
        ValueError, ImportError: as ``resolve_backend`` raises them. ValueError for decord without a timeout too.

    Example:
        >>> with open_clip("data/example/clips/lid.mp4") as clip:
        ...     frames = clip.read([0, clip.frame_count - 1])  # 2 x 3 x H x W, uint8
    """
    chosen = resolve_backend(backend)
    if os.path.isdir(path) or frame_list(path) is not None:
        return FrameFolder(path, frames_fps)
    if timeout > 0:
        return GuardedClip(path, chosen, timeout=timeout, memory_gb=memory_gb, strict=strict)
    if chosen == "decord":
        raise ValueError("video_backend decord: it hangs on some files, so it needs --decode_timeout above 0")
    return ClipReader(path, chosen, strict)


def resolve_backend(backend: str) -> Backend:
    """The decoder behind a ``--video_backend``.

    Raises:
        ValueError: the name is unknown.
        ImportError: torchcodec or decord is asked for, and can't be used here.
    """
    if backend not in BACKENDS:
        raise ValueError(f"video_backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "auto":
        return "pyav"
    if backend == "torchcodec" and not _torchcodec_works():
        raise ImportError(
            "video_backend torchcodec: not usable here; it needs `pip install qwenvl[torchcodec]` in a version that "
            "fits torch, and FFmpeg's shared libraries. `auto` and `pyav` need neither"
        )
    if backend == "decord":
        _warn_of_decord()
    return cast(Backend, backend)


@lru_cache(maxsize=1)
def _torchcodec_works() -> bool:
    """Whether torchcodec is installed, fits torch, and finds FFmpeg. An import alone does not show all of this."""
    try:
        from transformers.utils.import_utils import is_torchcodec_usable
    except ImportError:  # transformers before 5.20
        try:
            import torchcodec.decoders

            return getattr(torchcodec, "ffmpeg_major_version", True) is not None
        except Exception:
            return False
    return is_torchcodec_usable(decode="video")


@lru_cache(maxsize=1)
def _warn_of_decord() -> None:
    from importlib.util import find_spec

    if find_spec("decord") is None:
        raise ImportError("video_backend decord: not installed; `pip install decord`, or use `auto`")
    logger.warning(
        "video_backend decord: clips cut without re-encoding come out with wrong frames or hang; those are refused or "
        "killed here and count as bad. `auto` reads them"
    )
