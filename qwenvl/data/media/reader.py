"""Exact frames of a clip, by number, decoded in this process.

All backends share one index (``index``), so frame i is the same picture for all of them: the i-th picture that a
player would show, independent of the counts and rates in the container. The time of each decoded frame is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
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
from qwenvl.data.media.damage import check_all_frames, check_packets, damage
from qwenvl.data.media.index import ClipIndex, index_clip

if TYPE_CHECKING:
    from torch import Tensor

Some = TypeVar("Some", bound="Clip")
PART_BYTES = 8 * 2**20  # of the frames that are in memory at full size at a time
SKIPPING_CODECS = ("h264", "hevc")  # their decoders can leave out the very frames that no other is predicted from
FIELDS = 32  # across and down of the small pictures by which frames are compared
IGNORED = 4  # levels of 255 by which noise, flicker and coding change a field


class Clip(ABC):
    """An open clip, and a context manager.

    Attributes:
        path: the file or folder.
        frame_times: seconds of every frame after the first one, strictly rising.
        duration: seconds from the first frame to the end of the last, which is taken to last as long as the mean one.
        size: height and width of a frame as the header says them, in square pixels. Decoding may turn the frame.
        notes: what the file says wrongly of its frames, in words.
    """

    path: str
    frame_times: tuple[float, ...]
    duration: float
    size: tuple[int, int]
    notes: tuple[str, ...] = ()

    def __enter__(self: Some) -> Some:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def frame_count(self) -> int:
        """How many frames the clip has."""
        return len(self.frame_times)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Decode frames by number: len(indices) x 3 x H x W, uint8 RGB, upright, in square pixels, in this order.

        Raises:
            IndexError: a number is outside the clip.
            BadMediaError: a frame can't be decoded, or comes out damaged.
        """
        import torch

        rising = sorted(indices)
        frames: Tensor | None = None
        done = 0
        for part in self.parts(rising):
            if frames is None:  # in the memory layout of a decoded frame
                frames = torch.empty(len(rising), *part.shape[2:], 3, dtype=torch.uint8).permute(0, 3, 1, 2)
            frames[done : done + len(part)] = part
            done += len(part)
        assert frames is not None  # `parts` refuses to read no frames
        return frames if rising == list(indices) else frames[[rising.index(number) for number in indices]]

    @abstractmethod
    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[Tensor]:
        """Decode as ``read`` does, but a few frames at a time, so that a long clip is never in memory as a whole.

        Args:
            indices: rising. A number may come again.
            most_bytes: of a part. A frame that is larger is a part of its own.
        """

    @abstractmethod
    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return how much the picture changes up to each of these rising frames since the one before: see ``changes``.

        Raises:
            IndexError, BadMediaError: as ``read`` raises them.
        """

    @abstractmethod
    def check_all(self) -> None:
        """Decode all frames and keep none.

        Raises:
            BadMediaError: one of them is damaged, or hides damage.
        """

    def close(self) -> None:  # noqa: B027 (nothing to free)
        """Free the file and the decoder."""


class ClipReader(Clip):
    """A video file decoded in this process. Opening it indexes the frames and decodes nothing.

    Args:
        path: the file.
        backend: ``pyav`` or ``decord``.
        strict: also look for damage that PyAV's decoder would hide.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, or has no pictures.
    """

    def __init__(self, path: str, backend: str = "pyav", strict: bool = False) -> None:
        self.path = path
        self._backend, self._strict = backend, strict
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
        self.frame_times, self.duration = self._index.times, self._index.duration
        self.size = frame_size(self._stream)
        self.notes = self._index.notes

    def close(self) -> None:
        self._container.close()  # PyAV leaks descriptors and threads without it

    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        self._check_numbers(indices)
        return changes(map(luma_of, self._found(list(indices))))  # by PyAV, whatever the backend

    def check_all(self) -> None:
        check_all_frames(self.path, self.frame_times, self._strict)

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[Tensor]:
        import torch

        for part in self.array_parts(indices, most_bytes):
            yield torch.from_numpy(part).permute(0, 3, 1, 2)

    def array_parts(
        self, indices: Sequence[int], most_bytes: int = PART_BYTES, memory: Any = b""
    ) -> Iterator[np.ndarray]:
        """The parts of ``parts``, rows x H x W x 3, without torch. Each is in ``memory`` if that is large enough."""
        self._check_numbers(indices)
        times = Counter(indices)
        part: Any = None
        shape, filled, left = None, 0, len(indices)
        for index, picture in zip(sorted(times), self._decode(sorted(times)), strict=True):
            shape = shape or picture.shape
            if picture.shape != shape:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
            for _ in range(times[index]):
                if part is None:
                    rows, filled = min(left, max(1, most_bytes // picture.nbytes)), 0
                    shared = rows * picture.nbytes <= len(memory)
                    part = np.ndarray((rows, *shape), np.uint8, memory if shared else None)
                part[filled] = picture
                filled, left = filled + 1, left - 1
                if filled == len(part):
                    yield part
                    part = None

    def _check_numbers(self, indices: Sequence[int]) -> None:
        if not indices or min(indices) < 0 or max(indices) >= self.frame_count:
            raise IndexError(f"{self.path}: expected frames from 0 to {self.frame_count - 1}, got {list(indices)}")

    def _decode(self, wanted: list[int]) -> Iterable[np.ndarray]:
        """The frames with these rising numbers, H x W x 3 each."""
        if self._backend == "pyav":
            return self._decode_with_pyav(wanted)
        if pixel_shape(self._stream) != 1:
            raise BadMediaError(self.path, "decord squeezes its pixels, which are not square: use pyav")
        if self._index.by_count:  # the right times may stand at the wrong frames
            raise BadMediaError(self.path, "the times that decord gives prove nothing in it: use pyav")
        if transposition(next(iter(self._found(wanted[:1]))), self.path) not in TURNS:
            raise BadMediaError(self.path, "decord does not mirror it as its header says: use pyav")
        try:
            return decode_with_decord(self.path, self._index, wanted)
        except MemoryError:
            raise
        except Exception as error:  # it raises whatever its C++ side does
            raise BadMediaError(self.path, f"decord: {reason_of(error)}") from error

    def _decode_with_pyav(self, wanted: list[int]) -> Iterator[np.ndarray]:
        reformatter = VideoReformatter()  # one for all frames: it keeps its tables
        shape = pixel_shape(self._stream)
        scaling = None if shape == 1 else "BICUBIC"
        for frame in self._found(wanted):
            height, width = in_square_pixels(frame.height, frame.width, shape)
            rgb = reformatter.reformat(frame, width, height, "rgb24", interpolation=scaling, threads=1)
            (plane,) = rgb.planes
            picture = np.ndarray((rgb.height, rgb.width, 3), np.uint8, plane, strides=(plane.line_size, 3, 1))
            turned = transposition(frame, self.path)
            yield picture if turned is None else np.asarray(Image.fromarray(picture).transpose(turned))

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
        """The frames after a seek. None come where the key frame at time ``key`` does not, or is no key frame.

        Files call frames so that need earlier ones, and after a jump some demuxers count on from a wrong time.
        """
        arrived = not self._index.shows(key)
        for frame in frames:
            if not arrived and frame.pts is not None and frame.pts >= key:
                arrived = frame.pts == key and frame.key_frame
                if not arrived:
                    return
            if arrived:
                self._check(frame)
            yield frame

    def _decode_for(self, targets: set[int]) -> Iterator[VideoFrame]:
        """The frames from here on. Those that are neither wanted nor needed for others may be left out."""
        context = self._stream.codec_context
        skips = context.name in SKIPPING_CODECS

        def packets() -> Iterator[Packet]:
            for packet in self._container.demux(self._stream):
                if skips:
                    context.skip_frame = "DEFAULT" if packet.pts is None or packet.pts in targets else "NONREF"
                yield packet

        return decoded(packets())

    def _frames_by_count(self, wanted: list[int]) -> Iterator[VideoFrame | None]:
        played = enumerate(self._decode_from_the_start())
        for index in wanted:
            yield next((frame for number, frame in played if number == index), None)

    def _decode_from_the_start(self) -> Iterator[VideoFrame]:
        for frame, _, _ in play(self.path, strict=self._strict):
            self._check(frame)
            yield frame

    def _check(self, frame: VideoFrame) -> None:
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


def decode_with_decord(path: str, index: ClipIndex, wanted: list[int]) -> np.ndarray:
    """The frames with these rising numbers, F x H x W x 3 uint8. decord may never return: call it in a child.

    It may count or order frames in another way than the index does, so it has to prove by times that they are right.
    """
    import decord

    reader = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)
    if len(reader) != len(index.pts):
        raise ValueError(f"counts {len(reader)} frames where the stream has {len(index.pts)}")
    frames = reader.get_batch(wanted).asnumpy()
    times = reader.get_frame_timestamp(wanted)[:, 0].tolist()
    true_times = [float(index.pts[i] * index.time_base) for i in wanted]
    if len(times) != len(wanted) or not np.allclose(times, true_times, rtol=0, atol=1e-3):
        raise ValueError("gave other frames than those asked for, judged by their times")
    return frames


def luma_of(frame: VideoFrame) -> np.ndarray:
    """The brightness of a frame, H x W uint8."""
    if frame.format.name.startswith("yuv") and frame.format.components[0].bits == 8 and frame.format.is_planar:
        plane = frame.planes[0]
        return np.ndarray((frame.height, frame.width), np.uint8, plane, strides=(plane.line_size, 1))
    return frame.to_ndarray(format="gray")


def small_picture(luma: np.ndarray) -> np.ndarray:
    """The means of ``FIELDS`` x ``FIELDS`` fields of a picture, H x W uint8, as int16. Left-over edges are cut."""
    rows, columns = (min(FIELDS, side) for side in luma.shape)
    height, width = luma.shape[0] // rows, luma.shape[1] // columns
    lines = luma[: rows * height, : columns * width].reshape(rows, height, -1).sum(1, dtype=np.uint32)
    return (lines.reshape(rows, columns, width).sum(2) // (height * width)).astype(np.int16)


def changes(pictures: Iterable[np.ndarray]) -> tuple[int, ...]:
    """How much each picture, H x W uint8, differs from the one before. 0 for the first.

    It is the sum over the fields of ``small_picture`` of the levels by which they differ beyond ``IGNORED``. Small
    pictures were measured against the sizes of the encoded frames, which cost no decoding: sizes said little where the
    camera has noise, the encoder holds a bit rate, or each frame is coded by itself (docs/benchmarks.md).

    Example:
        >>> black, white = np.zeros((64, 64), np.uint8), np.full((64, 64), 255, np.uint8)
        >>> changes([black, black + 4, black, white])  # 32 x 32 fields by 255 - 4
        (0, 0, 0, 257024)
    """
    found: list[int] = []
    before: Any = None
    for small in map(small_picture, pictures):
        same = before is not None and before.shape == small.shape
        found.append(int(np.maximum(np.abs(small - before) - IGNORED, 0).sum()) if same else 0)
        before = small
    return tuple(found)
