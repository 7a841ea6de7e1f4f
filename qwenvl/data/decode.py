"""Exact frames of a clip, by number, with the presentation times of the stream.

Every backend shares one index: the packets are demuxed (not decoded), those that an edit list discards are dropped,
and the presentation times sorted. Frame i is the i-th picture that a player would show, whatever the container says of
counts or rates. torchcodec or PyAV then decodes the frames asked for, and each is checked against its time there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import av
import numpy as np
from av.video.frame import VideoFrame

from qwenvl.data.clip_index import ClipIndex, index_clip, video_stream
from qwenvl.data.mediafile import BadMediaError, video_format

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

Backend = Literal["torchcodec", "pyav"]
BACKENDS = ("auto", "torchcodec", "pyav")


def resolve_backend(backend: str) -> Backend:
    """The decoder behind a ``--video_backend``: ``auto`` is torchcodec where it works on this machine, else PyAV.

    Raises:
        ValueError: an unknown name.
        ImportError: torchcodec asked for by name, and not usable here.
    """
    if backend not in BACKENDS:
        raise ValueError(f"video_backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "torchcodec" and not _torchcodec_works():
        raise ImportError(
            "video_backend torchcodec: not usable here; it needs `pip install qwenvl[torchcodec]` in a version that "
            "fits torch, and FFmpeg's shared libraries. `auto` and `pyav` need neither"
        )
    if backend == "auto":
        return "torchcodec" if _torchcodec_works() else "pyav"
    return backend  # type: ignore[return-value]


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


def open_clip(path: str, backend: str = "auto") -> ClipReader:
    """Open a clip and index its frames; nothing is decoded yet.

    Args:
        backend: ``auto`` (torchcodec where usable, PyAV where torchcodec fails on this file or is missing), or one of
            the two by name, without the other as a fallback.

    Raises:
        BadMediaError: not a video, damaged, cut short, or without pictures.

    Example:
        >>> with open_clip("data/example/clips/lid.mp4") as clip:
        ...     frames = clip.read([0, clip.frame_count - 1])  # 2 x 3 x H x W, uint8
    """
    return ClipReader(path, resolve_backend(backend), fall_back=backend == "auto")


class ClipReader:
    """An open clip; a context manager.

    Attributes:
        path: the file.
        frame_times: seconds of every frame after the first one, strictly rising.
        fell_back: torchcodec could not read the file and PyAV did.
    """

    def __init__(self, path: str, backend: Backend = "pyav", fall_back: bool = False) -> None:
        self.path = path
        self.fell_back = False
        self._backend = backend
        self._fall_back = fall_back
        self._open()
        try:
            self._index = index_clip(self._container, self._stream, path)
        except av.FFmpegError as error:
            self.close()
            raise BadMediaError(path, f"can't be read: {_reason(error)}") from None
        except BaseException:
            self.close()
            raise
        self.frame_times = self._index.times

    def _open(self) -> None:
        container_format = video_format(self.path)
        try:
            # The format is forced: left to guess, FFmpeg would follow a playlist to other files.
            self._container = av.open(self.path, format=container_format)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise BadMediaError(self.path, f"can't be opened as {container_format}: {_reason(error)}") from None
        try:
            self._stream = video_stream(self._container, self.path)
        except BaseException:
            self.close()
            raise
        self._stream.codec_context.thread_count = 1  # workers are the parallelism

    def __enter__(self) -> ClipReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the file and the decoder; PyAV leaks descriptors and threads without it."""
        self._container.close()

    @property
    def frame_count(self) -> int:
        return len(self.frame_times)

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the end of the last, which is taken to stay as long as the mean one."""
        return self._index.duration

    def read(self, indices: Sequence[int]) -> Tensor:
        """Decode frames by number: len(indices) x 3 x H x W, uint8 RGB, upright, in the order asked.

        Raises:
            IndexError: a number outside the clip.
            BadMediaError: a frame can't be decoded, or comes out damaged.
        """
        import torch

        return torch.from_numpy(self.read_array(indices)).permute(0, 3, 1, 2).contiguous()

    def read_array(self, indices: Sequence[int]) -> np.ndarray:
        """As ``read``, but len(indices) x H x W x 3 and without torch."""
        if not indices or min(indices) < 0 or max(indices) >= self.frame_count:
            raise IndexError(f"{self.path}: expected frames from 0 to {self.frame_count - 1}, got {list(indices)}")
        wanted = sorted(set(indices))
        row = {index: i for i, index in enumerate(wanted)}
        return self._decode(wanted)[[row[index] for index in indices]]

    def _decode(self, wanted: list[int]) -> np.ndarray:
        """Frames with rising numbers."""
        if self._backend == "torchcodec":
            try:
                return _decode_with_torchcodec(self.path, self._index, wanted)
            except Exception as error:  # torchcodec raises whatever its C++ side does
                if not self._fall_back:
                    raise BadMediaError(self.path, f"torchcodec: {_reason(error)}") from error
                logger.warning("%s: torchcodec: %s; PyAV takes over for this file", self.path, _reason(error))
                self.fell_back = True
        try:
            return self._decode_with_pyav(wanted)
        except av.FFmpegError as error:
            raise BadMediaError(self.path, f"can't be decoded: {_reason(error)}") from None

    def _decode_with_pyav(self, wanted: list[int]) -> np.ndarray:
        pictures: list[np.ndarray] = []
        found = self._frames_by_count(wanted) if self._index.by_count else self._frames_by_time(wanted)
        for index, frame in zip(wanted, found, strict=True):
            if frame is None:
                raise BadMediaError(self.path, f"the frame at {self.frame_times[index]:.3f} s is missing when decoded")
            if frame.is_corrupt:
                raise BadMediaError(self.path, f"the frame at {self.frame_times[index]:.3f} s is damaged")
            pictures.append(_upright_rgb(frame))
            if pictures[-1].shape != pictures[0].shape:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
        return np.stack(pictures)

    def _frames_by_time(self, wanted: list[int]) -> Iterator[VideoFrame | None]:
        """Seek to the key frame of each, unless decoding on gets there without, and decode to its exact time."""
        decoded: Iterator[VideoFrame] = iter(())
        position: int | None = None  # time of the last frame taken from `decoded`
        for index in wanted:
            target = self._index.pts[index]
            key = self._index.key_before(target)
            if position is None or key > position:
                self._container.seek(key, stream=self._stream, backward=True)
                decoded = self._container.decode(self._stream)
            frame = _advance(decoded, target)
            if frame is None:  # the seek landed too late: some demuxers do, and raw AVI can't seek at all
                decoded = self._decode_from_the_start()
                frame = _advance(decoded, target)
            position = target
            yield frame

    def _frames_by_count(self, wanted: list[int]) -> Iterator[VideoFrame | None]:
        decoded = enumerate(self._decode_from_the_start())
        for index in wanted:
            yield next((frame for number, frame in decoded if number == index), None)

    def _decode_from_the_start(self) -> Iterator[VideoFrame]:
        self.close()
        self._open()
        return self._container.decode(self._stream)


def _advance(frames: Iterator[VideoFrame], target: int) -> VideoFrame | None:
    """The frame with presentation time ``target``, or None where the stream has gone past it or ends."""
    for frame in frames:
        if frame.pts is not None and frame.pts >= target:
            return frame if frame.pts == target else None
    return None


def _upright_rgb(frame: VideoFrame) -> np.ndarray:
    """H x W x 3, uint8, turned as the file's display matrix says (``rotation`` counts degrees counter-clockwise)."""
    return np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90))


def _decode_with_torchcodec(path: str, index: ClipIndex, wanted: list[int]) -> np.ndarray:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, seek_mode="exact", num_ffmpeg_threads=1, dimension_order="NHWC")
    if decoder.metadata.num_frames != len(index.pts):
        raise ValueError(f"counts {decoder.metadata.num_frames} frames where the stream has {len(index.pts)}")
    batch = decoder.get_frames_at(wanted)
    if len(batch.data) != len(wanted):
        raise ValueError(f"gave {len(batch.data)} frames where {len(wanted)} were asked for")
    times = [float(index.pts[i] * index.time_base) for i in wanted]
    if not np.allclose(batch.pts_seconds.numpy(), times, rtol=0, atol=1e-3):
        raise ValueError("gave other frames than those asked for, judged by their times")
    return batch.data.numpy()


def _reason(error: BaseException) -> str:
    """The first line of what a decoder complains of, without the path that the message already begins with."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0]
