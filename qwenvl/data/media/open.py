"""The door to clips: which backend reads them, and in which process.

Measured on clips whose frames carry their number (docs/benchmarks.md): PyAV with an index of presentation times gives
the right frames of every container tried, is the fastest of those that do, brings its own FFmpeg, and gives the same
pixels on every machine: it is what ``auto`` means. torchcodec in its exact mode is right but for MPEG streams and AVI,
where the index tells. decord gives wrong frames for clips that were cut without re-encoding, and hangs on one in four
of those: it never runs in the user's process.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Literal, cast

from qwenvl.data.media.clip_reader import ClipReader
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
    frames_fps: float | None = None,
) -> Clip:
    """Open a clip and index its frames; a context manager with the face of ``ClipReader``.

    Args:
        backend: one of ``BACKENDS``; none stands in for another where it fails.
        timeout: seconds for the whole clip, after which its decoder is killed; it then runs in a process of its own.
            0 decodes in this process, without bounds.
        memory_gb: what the decoder's process may take for one clip, in GB.
        frames_fps: frames per second of a folder or list of images, which need no decoder.

    Raises:
        BadMediaError: not a video, damaged, cut short, without pictures, or beyond the bounds.
        ValueError, ImportError: as ``resolve_backend`` does; decord without a timeout.

    Example:
        >>> with open_clip("data/example/clips/lid.mp4") as clip:
        ...     frames = clip.read([0, clip.frame_count - 1])  # 2 x 3 x H x W, uint8
    """
    chosen = resolve_backend(backend)
    if os.path.isdir(path) or frame_list(path) is not None:
        return FrameFolder(path, frames_fps)
    if timeout > 0:
        return GuardedClip(path, chosen, timeout=timeout, memory_gb=memory_gb)
    if chosen == "decord":
        raise ValueError("video_backend decord: it hangs on some files, so it needs --decode_timeout above 0")
    return ClipReader(path, chosen)


def resolve_backend(backend: str) -> Backend:
    """The decoder behind a ``--video_backend``.

    Raises:
        ValueError: an unknown name.
        ImportError: torchcodec or decord asked for by name, and not usable here.
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
    """Installed, loads beside this torch, and finds FFmpeg: an import alone shows none of these for certain."""
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
