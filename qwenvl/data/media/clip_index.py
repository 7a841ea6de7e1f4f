"""The times of all frames of a clip, read from its header or its packets without decoding them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.mp4_times import table_times

MAX_FRAME_PIXELS = 50_000_000  # 8K video has 33 million; headers that claim more are bombs or noise
# A container may hold this much less than its header promises: a last packet or two are often lost when clips are cut.
MAX_MISSING_FRAMES = 2
MAX_MISSING_SHARE = 0.10


@dataclass(frozen=True)
class ClipIndex:
    """The presentation times of a clip's frames, in the stream's units.

    Attributes:
        pts: of every shown frame, strictly rising.
        key_pts: of the frames that decoding can start at, rising, the ones not shown included.
        time_base: seconds per unit.
        by_count: decoded frames bear other times than these. The i-th frame decoded from the start is frame i.
    """

    pts: tuple[int, ...]
    key_pts: tuple[int, ...]
    time_base: Fraction
    by_count: bool = False

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Seconds after the first frame."""
        units = np.array(self.pts) - self.pts[0]
        return tuple((units * self.time_base.numerator / self.time_base.denominator).tolist())

    @property
    def duration(self) -> float:
        """Seconds to the end of the last frame, taken to last as long as the mean one. One frame alone lasts 0.0."""
        n = len(self.pts)
        return self.times[-1] * n / (n - 1) if n > 1 else 0.0

    def key_before(self, pts: int) -> int:
        """The last key frame at or before ``pts``, or the first one."""
        return self.key_pts[max(0, bisect_right(self.key_pts, pts) - 1)]


def video_stream(container: InputContainer, path: str) -> VideoStream:
    """The first video stream that is not a cover picture.

    Raises:
        BadMediaError: the file has none, or its pictures have an impossible size.
    """
    for stream in container.streams.video:
        if Disposition.attached_pic not in stream.disposition:
            width, height = stream.width, stream.height
            if not 0 < width * height <= MAX_FRAME_PIXELS:
                raise BadMediaError(
                    path, f"claims frames of {width} x {height} pixels; expected 1 to {MAX_FRAME_PIXELS:,} pixels"
                )
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    if not kinds:
        raise BadMediaError(path, "has no streams: it was probably cut short and lost its index", "cut short")
    raise BadMediaError(path, f"has no video stream, only {' and '.join(kinds)}")


def index_clip(container: InputContainer, stream: VideoStream, path: str) -> ClipIndex:
    """Find the presentation times of all frames and sort them. The container's position changes.

    Raises:
        BadMediaError: the clip has no frames, two frames have the same time, or the file ends before its header says.
    """
    table = table_times(container, stream, path)
    if table is not None:
        (shown, keys), packets = table, stream.frames
    else:
        shown, keys, packets = _times_of_packets(container, stream)
    if not shown:
        raise BadMediaError(path, "holds no frames")
    shown.sort()
    if len(set(shown)) < len(shown):
        raise BadMediaError(path, "two of its frames have the same time")
    # AVI knows the order of decoding alone; where frames are reordered FFmpeg's guess at their times is wrong.
    by_count = container.format.name == "avi" and bool(stream.codec_context.has_b_frames)
    assert stream.time_base is not None  # of a stream that was opened
    index = ClipIndex(tuple(shown), tuple(sorted(keys)) or (shown[0],), stream.time_base, by_count)
    _check_complete(container, stream, packets, index, path)
    return index


def _times_of_packets(container: InputContainer, stream: VideoStream) -> tuple[list[int], list[int], int]:
    """Times of the frames shown and of all key frames, and how many packets there are."""
    shown: list[int] = []
    keys: list[int] = []
    packets = 0
    timed = True
    for packet in container.demux(stream):
        if packet.size == 0:  # the flush at the end, or an AVI's "repeat the last frame"
            continue
        packets += 1
        if packet.pts is None:
            timed = False
            continue
        if packet.is_keyframe:
            keys.append(packet.pts)
        if not packet.is_discard:  # an edit list hides it, as it does when players show the file
            shown.append(packet.pts)
    # Some streams store no presentation times, and VP8 packets may hold frames that are never shown.
    if not timed or stream.codec_context.name == "vp8":
        shown, keys = _times_by_decoding(container, stream)
    return shown, keys, packets


def _times_by_decoding(container: InputContainer, stream: VideoStream) -> tuple[list[int], list[int]]:
    container.seek(0, stream=stream)
    frames = [(frame.pts, frame.key_frame) for frame in container.decode(stream) if frame.pts is not None]
    return [pts for pts, _ in frames], [pts for pts, is_key in frames if is_key]


def _check_complete(container: InputContainer, stream: VideoStream, packets: int, index: ClipIndex, path: str) -> None:
    """Compare the index with what the header promises: most decoders play a file that was cut short without a word."""
    if stream.frames - packets > MAX_MISSING_FRAMES:
        raise BadMediaError(
            path, f"is cut short: its header promises {stream.frames} frames, the file holds {packets}", "cut short"
        )
    promised = _promised_seconds(container, stream)
    missing = promised - index.duration
    frame_seconds = index.duration / len(index.pts) or float(1 / (stream.average_rate or 1))
    if missing > MAX_MISSING_SHARE * promised and missing > MAX_MISSING_FRAMES * frame_seconds:
        reason = f"is cut short: its header promises {promised:.2f} s, the file holds {index.duration:.2f} s"
        raise BadMediaError(path, reason, "cut short")


def _promised_seconds(container: InputContainer, stream: VideoStream) -> float:
    """The length that the header gives the video stream, or 0.0 where it says nothing that can be relied on."""
    if tag := stream.metadata.get("DURATION"):  # Matroska, "00:00:01.500000000"
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    # Other containers either have counts (checked above) or durations that FFmpeg estimates from the file itself.
    if container.format.name.startswith("matroska") and len(container.streams) == 1 and container.duration:
        return container.duration / 1_000_000
    return 0.0
