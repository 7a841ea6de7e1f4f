"""Exact frames of a clip, by number, decoded in this process.

Every backend shares one index (``clip_index``), so that frame i is the same picture for all: the i-th that a player
would show, whatever the container says of counts or rates. Each decoded frame is checked against its time in the index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import av
import numpy as np
from av.video.frame import VideoFrame

from qwenvl.data.backends import FOREIGN_DECODERS
from qwenvl.data.clip_index import index_clip, video_stream
from qwenvl.data.errors import BadMediaError
from qwenvl.data.mediafile import video_format

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


class ClipReader:
    """An open clip; a context manager. Opening indexes the frames and decodes nothing.

    Args:
        path: the file.
        backend: ``pyav``, ``torchcodec`` or ``decord``.
        fall_back: where another backend fails on this file, let PyAV read it.

    Attributes:
        frame_times: seconds of every frame after the first one, strictly rising.
        fell_back: PyAV had to.

    Raises:
        BadMediaError: not a video, damaged, cut short, or without pictures.
    """

    def __init__(self, path: str, backend: str = "pyav", fall_back: bool = False) -> None:
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

        return torch.from_numpy(self.read_array(indices))

    def read_array(self, indices: Sequence[int]) -> np.ndarray:
        """As ``read``, without torch."""
        if not indices or min(indices) < 0 or max(indices) >= self.frame_count:
            raise IndexError(f"{self.path}: expected frames from 0 to {self.frame_count - 1}, got {list(indices)}")
        wanted = sorted(set(indices))
        frames = self._decode(wanted)
        if wanted != list(indices):
            row = {index: i for i, index in enumerate(wanted)}
            frames = frames[[row[index] for index in indices]]
        return np.ascontiguousarray(frames)

    def _decode(self, wanted: list[int]) -> np.ndarray:
        """Frames with rising numbers."""
        if self._backend != "pyav":
            try:
                return FOREIGN_DECODERS[self._backend](self.path, self._index, wanted)
            except MemoryError:
                raise
            except Exception as error:  # these raise whatever their C++ side does
                if not self._fall_back:
                    raise BadMediaError(self.path, f"{self._backend}: {_reason(error)}") from error
                logger.warning("%s: %s: %s; PyAV reads this file", self.path, self._backend, _reason(error))
                self.fell_back = True
        try:
            return self._decode_with_pyav(wanted)
        except MemoryError:  # FFmpeg's own among them
            raise
        except av.FFmpegError as error:
            raise BadMediaError(self.path, f"can't be decoded: {_reason(error)}") from None

    def _decode_with_pyav(self, wanted: list[int]) -> np.ndarray:
        frames = np.empty(0)
        found = self._frames_by_count(wanted) if self._index.by_count else self._frames_by_time(wanted)
        for i, (index, frame) in enumerate(zip(wanted, found, strict=True)):
            if frame is None:
                raise BadMediaError(self.path, f"the frame at {self.frame_times[index]:.3f} s is missing when decoded")
            if frame.is_corrupt:
                raise BadMediaError(self.path, f"the frame at {self.frame_times[index]:.3f} s is damaged")
            picture = _upright_rgb(frame)
            if i == 0:
                frames = np.empty((len(wanted), *picture.shape), np.uint8)
            if picture.shape != frames.shape[1:]:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
            frames[i] = picture
        return frames

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
    """3 x H x W, uint8, turned as the file's display matrix says (``rotation`` counts degrees counter-clockwise)."""
    return np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90)).transpose(2, 0, 1)


def _reason(error: BaseException) -> str:
    """The first line of what a decoder complains of, without the path that the message already begins with."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0]
