"""Exact frames of a clip, by number, decoded in this process.

Frame i is the i-th picture that a player would show, independent of the counts and rates in the container (``index``).
The time of each decoded frame is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from av import time_base as AV_TIME_BASE
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.container import (
    READING_ERRORS,
    TURNS,
    decoded,
    frame_size,
    in_square_pixels,
    open_video,
    pixel_shape,
    play,
    reason_of,
    transposition,
)
from qwenvl.data.media.damage import check_packets, damage
from qwenvl.data.media.index import index_clip

if TYPE_CHECKING:
    from torch import Tensor

_IN_BROWSERS = ("mov", "mp4", "matroska", "webm")  # containers that browsers play, as `open_video` names them

PART_BYTES = 8 * 2**20  # of the frames that are in memory at full size at a time
SKIPPING_CODECS = ("h264", "hevc")  # their decoders can leave out the very frames that no other is predicted from


class Clip(AbstractContextManager, ABC):
    """An open clip, and a context manager.

    Attributes:
        path: the file or folder.
        frame_times: seconds of every frame after the first one, strictly rising.
        duration: seconds from the first frame to the end of the last, which is taken to last as long as the mean one.
        size: height and width of a frame as the header says them, in square pixels. Decoding may turn the frame.
        delay: seconds from where the clock of players begins to the first frame. Above 0 where the sound begins before
            the pictures, and where the first picture has a later time than 0 in files that browsers play, as in many
            clips that were cut without re-encoding.
    """

    path: str
    frame_times: tuple[float, ...]
    duration: float
    size: tuple[int, int]
    delay: float = 0.0

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def frame_count(self) -> int:
        """The number of frames."""
        return len(self.frame_times)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Decode frames by rising number: len(indices) x 3 x H x W, uint8 RGB, upright, in square pixels.

        Raises:
            IndexError: a number is outside the clip.
            BadMediaError: a frame can't be decoded, or comes out damaged.
        """
        import torch

        done = 0
        frames: np.ndarray = np.empty(0, np.uint8)
        for part in self.parts(indices):
            frames = frames if done else np.empty((len(indices), *part.shape[1:]), np.uint8)
            frames[done : done + len(part)] = part
            done += len(part)
        return torch.from_numpy(frames).permute(0, 3, 1, 2)

    @abstractmethod
    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[np.ndarray]:
        """Decode as ``read`` does, but a few frames at a time, so that a long clip is never in memory as a whole.

        Each part is rows x H x W x 3. The next one may take its memory.

        Args:
            indices: at least one, rising. A number may come again.
            most_bytes: of a part. A frame that is larger is a part of its own.
        """

    def close(self) -> None:
        """Free the file and the decoder."""


class ClipReader(Clip):
    """A video file decoded in this process. Opening it indexes the frames and decodes nothing.

    Args:
        path: the file.
        strict: also look for damage that PyAV's decoder would hide.
        backend: ``pyav`` or ``decord``, which may never return: use it in a child.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, or has no pictures.
    """

    def __init__(self, path: str, strict: bool = False, backend: str = "pyav") -> None:
        self.path = path
        self._strict = strict
        self._backend = backend
        self._container, self._stream = open_video(path, strict=strict)
        try:
            self._index = index_clip(self._container, self._stream, path)
            if strict:
                check_packets(path, self._index.times)
        except READING_ERRORS as error:
            self.close()
            raise BadMediaError(path, f"can't be read: {reason_of(error)}") from None
        except BaseException:
            self.close()
            raise
        self.frame_times = self._index.times
        self.duration = self._index.duration
        self.size = frame_size(self._stream)
        began = (self._container.start_time or 0) / AV_TIME_BASE
        if self._container.format.name.startswith(_IN_BROWSERS):  # they count from the zero of the file
            began = min(0.0, began)
        self.delay = max(0.0, float(self._index.pts[0] * self._index.time_base) - began)

    def close(self) -> None:
        self._container.close()  # PyAV leaks descriptors and threads without it

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES, memory: Any = b"") -> Iterator[np.ndarray]:
        """Decode as ``Clip.parts`` says. Each part lies in ``memory`` if that is large enough."""
        if not indices or min(indices) < 0 or max(indices) >= self.frame_count:
            raise IndexError(f"{self.path}: expected frames from 0 to {self.frame_count - 1}, got {list(indices)}")
        repeats = Counter(indices)
        wanted = sorted(repeats)
        part: Any = None
        shape = None
        filled = 0  # rows of the part
        left = len(indices)  # rows of this part and of those after it
        decode = self._decode_with_decord if self._backend == "decord" else self._decode
        for index, picture in zip(wanted, decode(wanted), strict=True):
            shape = shape or picture.shape
            if picture.shape != shape:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
            for _ in range(repeats[index]):
                if part is None:
                    rows = min(left, max(1, most_bytes // picture.nbytes))
                    filled = 0
                    shared = rows * picture.nbytes <= len(memory)
                    part = np.ndarray((rows, *shape), np.uint8, memory if shared else None)
                part[filled] = picture
                filled += 1
                left -= 1
                if filled == len(part):
                    yield part
                    part = None

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """The frames with these rising numbers, H x W x 3 each."""
        reformatter = VideoReformatter()  # one for all frames: it keeps its tables
        shape = pixel_shape(self._stream)
        scaling = None if shape == 1 else "BICUBIC"
        for index, frame in zip(wanted, self._found(wanted), strict=True):
            height, width = in_square_pixels(frame.height, frame.width, shape)
            try:
                rgb = reformatter.reformat(frame, width, height, "rgb24", interpolation=scaling, threads=1)
            except MemoryError:  # FFmpeg's own among them
                raise
            except READING_ERRORS as error:
                at = f"{self.frame_times[index]:.3f} s"
                reason = f"the colours of the frame at {at} can't be converted to RGB: {reason_of(error)}"
                raise BadMediaError(self.path, reason) from None
            (plane,) = rgb.planes
            # FFmpeg pads its lines, so that a line has more bytes than 3 for each pixel.
            picture = np.ndarray((rgb.height, rgb.width, 3), np.uint8, plane, strides=(plane.line_size, 3, 1))
            turned = transposition(frame, self.path)
            yield picture if turned is None else np.asarray(Image.fromarray(picture).transpose(turned))

    def _decode_with_decord(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """The frames of ``_decode``, by decord, which may count or order them in another way.

        So it has to prove each frame by its time.

        Raises:
            BadMediaError: decord fails, or gives frames of other times.
        """
        import decord

        mirrored = transposition(next(self._found(wanted[:1])), self.path) not in TURNS
        if mirrored or pixel_shape(self._stream) != 1 or self._index.by_count:
            reason = "it is mirrored, its pixels are not square, or its times prove nothing; decord gets those wrong"
            raise BadMediaError(self.path, f"{reason}: use --video_backend pyav")
        try:
            reader = decord.VideoReader(self.path, ctx=decord.cpu(0), num_threads=1)
            if len(reader) != self.frame_count:
                raise ValueError(f"counts {len(reader)} frames where the stream has {self.frame_count}")
            frames = reader.get_batch(wanted).asnumpy()
            times = reader.get_frame_timestamp(wanted)[:, 0].tolist()
            true_times = [float(self._index.pts[i] * self._index.time_base) for i in wanted]
            if len(times) != len(wanted) or not np.allclose(times, true_times, rtol=0, atol=1e-3):
                raise ValueError("gave other frames than those asked for, judged by their times")
        except MemoryError:
            raise
        except Exception as error:  # its C++ side raises errors of any type
            raise BadMediaError(self.path, f"decord: {reason_of(error)}") from error
        yield from frames

    def _found(self, wanted: list[int]) -> Iterator[VideoFrame]:
        """The frames with these rising numbers as the decoder gives them."""
        found = self._frames_by_count(wanted) if self._index.by_count else self._frames_by_time(wanted)
        try:
            for index, frame in zip(wanted, found, strict=True):
                if frame is None:
                    raise BadMediaError(
                        self.path, f"the frame at {self.frame_times[index]:.3f} s is missing when decoded"
                    )
                yield frame
        except MemoryError:  # FFmpeg's own among them
            raise
        except READING_ERRORS as error:
            raise BadMediaError(self.path, f"can't be decoded: {reason_of(error)}") from None

    def _frames_by_time(self, wanted: list[int]) -> Iterator[VideoFrame | None]:
        """Decode to each frame's exact time, and seek to its key frame where decoding on does not get there."""
        targets = {self._index.pts[index] for index in wanted}
        found: Iterator[VideoFrame] = iter(())
        position: int | None = None  # time of the last frame taken from `found`
        for index in wanted:
            target = self._index.pts[index]
            key = self._index.key_before(target)
            if position is None or key > position:
                self._container.seek(key, stream=self._stream, backward=True)
                found = self._arrived(self._decode_for(targets), key)
            frame = _advance(found, target)
            if frame is None:  # the seek landed too late: some demuxers do, and raw AVI can't seek at all
                found = self._decode_from_the_start()
                frame = _advance(found, target)
            position = target
            yield frame

    def _arrived(self, frames: Iterator[VideoFrame], key: int) -> Iterator[VideoFrame]:
        """The frames after a seek, or no frame where the one at time ``key`` is missing or is no key frame.

        Some files mark frames as key frames that need earlier ones, and after a jump some demuxers count on from a
        wrong time.
        """
        arrived = not self._index.shows(key)  # a key frame that is not shown can't be waited for
        for frame in frames:
            if not arrived and frame.pts is not None and frame.pts >= key:
                arrived = frame.pts == key and frame.key_frame
                if not arrived:
                    return
            if arrived:
                self._check(frame)
            yield frame

    def _decode_for(self, targets: set[int]) -> Iterator[VideoFrame]:
        """The frames from here on. Frames that are neither wanted nor needed for others may be left out."""
        context = self._stream.codec_context
        skips = context.name in SKIPPING_CODECS

        def packets() -> Iterator[Packet]:
            for packet in self._container.demux(self._stream):
                if skips:
                    may_be_wanted = packet.pts is None or packet.pts in targets
                    context.skip_frame = "DEFAULT" if may_be_wanted else "NONREF"
                yield packet

        return decoded(packets())

    def _frames_by_count(self, wanted: list[int]) -> Iterator[VideoFrame | None]:
        """Decode from the start and count. None for a frame behind the last one that is decoded."""
        played = self._decode_from_the_start()
        position = 0  # the number of the next frame of `played`
        for index in wanted:
            yield next(islice(played, index - position, None), None)
            position = index + 1

    def _decode_from_the_start(self) -> Iterator[VideoFrame]:
        for frame in play(self.path, strict=self._strict):
            self._check(frame)
            yield frame

    def _check(self, frame: VideoFrame) -> None:
        """Raise BadMediaError for a frame that the decoder knows to be damaged."""
        if frame.is_corrupt:
            first = self._index.pts[0]
            at = "" if frame.pts is None else f" at {float((frame.pts - first) * self._index.time_base):.3f} s"
            raise damage(self.path, f"the frame{at} is damaged")


def _advance(frames: Iterator[VideoFrame], target: int) -> VideoFrame | None:
    """The frame with presentation time ``target``, or None if the stream goes past it or ends."""
    for frame in frames:
        if frame.pts is not None and frame.pts >= target:
            return frame if frame.pts == target else None
    return None
