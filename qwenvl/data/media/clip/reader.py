"""Exact frames of a clip, by number, decoded in this process.

All backends share one index (``index``), so frame i is the same picture for all of them: the i-th picture that a
player would show, whatever the container says of counts or rates. Each decoded frame is checked against its time there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.backends import FOREIGN_DECODERS
from qwenvl.data.media.clip.container import (
    READING_ERRORS,
    TURNS,
    frame_size,
    in_square_pixels,
    open_video,
    pixel_shape,
    reason_of,
    transposition,
)
from qwenvl.data.media.clip.index import index_clip
from qwenvl.data.media.clip.look import changes, luma_of
from qwenvl.data.media.clip.playing import decoded, play
from qwenvl.data.media.clip.strict import check_all_frames, check_packets, damage

if TYPE_CHECKING:
    from torch import Tensor

PART_BYTES = 8 * 2**20  # of the frames that are in memory at full size at a time
Empty = Callable[[tuple[int, ...]], np.ndarray]
"""A shape to an array of uint8."""
SKIPPING_CODECS = ("h264", "hevc")  # their decoders can leave out the very frames that no other is predicted from


class ClipReader:
    """An open clip, and a context manager. Opening it indexes the frames and decodes nothing.

    Args:
        path: the file.
        backend: ``pyav``, ``torchcodec`` or ``decord``.
        strict: also look for damage that PyAV's decoder would hide.
        may_be_cut: take what is left of a file that was cut short.

    Attributes:
        frame_times: seconds of every frame after the first one, strictly rising.
        size: height and width of a frame as the header says them, in square pixels. Decoding may turn the frame.
        notes: what the file says wrongly of its frames, in words.

    Raises:
        BadMediaError: the file is not a video, is damaged or cut short, or has no pictures.
    """

    def __init__(self, path: str, backend: str = "pyav", strict: bool = False, may_be_cut: bool = False) -> None:
        self.path = path
        self._backend, self._strict = backend, strict
        self._container, self._stream = open_video(path, strict=strict)
        try:
            self._index = index_clip(self._container, self._stream, path, may_be_cut)
            if strict:
                check_packets(path, self._index.times)
        except READING_ERRORS as error:
            self.close()
            raise BadMediaError(path, f"can't be read: {reason_of(error)}") from None
        except BaseException:
            self.close()
            raise
        self.frame_times = self._index.times
        self.size = frame_size(self._stream)
        self.notes = self._index.notes

    def __enter__(self) -> ClipReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the file and the decoder. PyAV leaks descriptors and threads without it."""
        self._container.close()

    @property
    def frame_count(self) -> int:
        """How many frames the clip has."""
        return len(self.frame_times)

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the end of the last, which is taken to last as long as the mean one."""
        return self._index.duration

    def read(self, indices: Sequence[int]) -> Tensor:
        """Decode frames by number: len(indices) x 3 x H x W, uint8 RGB, upright, in square pixels, in the order asked.

        Raises:
            IndexError: a number is outside the clip.
            BadMediaError: a frame can't be decoded, or comes out damaged.
        """
        import torch

        return torch.from_numpy(self.read_array(indices)).permute(0, 3, 1, 2)

    def read_array(self, indices: Sequence[int], empty: Empty | None = None) -> np.ndarray:
        """Decode as ``read`` does, but without torch and to len(indices) x H x W x 3, into what ``empty`` makes."""
        empty = empty or partial(np.empty, dtype=np.uint8)
        self._check_numbers(indices)
        rows = defaultdict(list)
        for row, index in enumerate(indices):
            rows[index].append(row)
        frames: Any = None
        for index, picture in zip(sorted(rows), self._decode(sorted(rows)), strict=True):
            if frames is None:
                frames = empty((len(indices), *picture.shape))
            if picture.shape != frames.shape[1:]:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
            for row in rows[index]:
                frames[row] = picture
        return frames

    @property
    def stream_times(self) -> tuple[int, ...]:
        """When each frame is shown, in units of the stream."""
        return self._index.pts

    def pictures(self) -> Iterator[np.ndarray]:
        """All frames one by one, H x W x 3 each, as ``read`` has them. It raises as ``read`` does."""
        yield from self._decode(list(range(self.frame_count)))

    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return how much the picture changes up to each of these rising frames since the one before: see ``changes``.

        PyAV decodes them, whatever the backend.

        Raises:
            IndexError, BadMediaError: as ``read`` raises them.
        """
        self._check_numbers(indices)
        return changes(map(luma_of, self._found(list(indices))))

    def check_all(self) -> None:
        """Decode all frames and keep none.

        Raises:
            BadMediaError: one of them is damaged, or hides damage.
        """
        check_all_frames(self.path, self.frame_times, self._strict)

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[Tensor]:
        """Decode as ``read`` does, but a few frames at a time, so that a long clip is never in memory as a whole.

        Args:
            indices: rising. A number may come again.
            most_bytes: of a part. A frame that is larger is a part of its own.
        """
        import torch

        for part in self.array_parts(indices, most_bytes):
            yield torch.from_numpy(part).permute(0, 3, 1, 2)

    def array_parts(self, indices: Sequence[int], most_bytes: int, empty: Empty | None = None) -> Iterator[np.ndarray]:
        """The parts of ``parts``, rows x H x W x 3. The memory of one may be used again for the next by ``empty``."""
        empty = empty or partial(np.empty, dtype=np.uint8)
        self._check_numbers(indices)
        times = Counter(indices)
        wanted = sorted(times)
        part: Any = None
        shape, filled, left = None, 0, len(indices)
        for index, picture in zip(wanted, self._decode(wanted), strict=True):
            shape = shape or picture.shape
            if picture.shape != shape:
                raise BadMediaError(self.path, "the size of the picture changes within the clip")
            for _ in range(times[index]):
                if part is None:
                    part, filled = empty((min(left, max(1, most_bytes // picture.nbytes)), *shape)), 0
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
            raise BadMediaError(self.path, f"{self._backend} squeezes its pixels, which are not square: use pyav")
        if self._index.by_count:  # the right times may stand at the wrong frames
            raise BadMediaError(self.path, f"the times that {self._backend} gives prove nothing in it: use pyav")
        if transposition(next(iter(self._found(wanted[:1]))), self.path) not in TURNS:
            raise BadMediaError(self.path, f"{self._backend} does not mirror it as its header says: use pyav")
        try:
            return FOREIGN_DECODERS[self._backend](self.path, self._index, wanted)
        except MemoryError:
            raise
        except Exception as error:  # these raise whatever their C++ side does
            raise BadMediaError(self.path, f"{self._backend}: {reason_of(error)}") from error

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
