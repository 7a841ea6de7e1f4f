"""Finds the frames of a clip and the time of each: those that a correct decoder shows, at the times of showing them.

Ordinary clips say it in their header or their packets, and nothing is decoded. Where these can't be trusted, the
beginning of the clip is decoded, or all of it, and what comes out decides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.container import JOINABLE, Packets, has_instant_refresh, play, read_packets
from qwenvl.data.media.damage import check_promise

# These containers have decoding times alone. Where frames are reordered, FFmpeg's guess at display times is wrong.
WITHOUT_DISPLAY_TIMES = ("avi", "asf")
# Few packets of these bear times, and the times that FFmpeg fills in are wrong after a jump.
WITHOUT_EXACT_SEEKING = ("mpeg",)
TRIED_FRAMES = 24  # decoded to see whether each packet gives a frame


@dataclass(frozen=True)
class ClipIndex:
    """The presentation times of a clip's frames, in the stream's units.

    Attributes:
        pts: of every shown frame, strictly rising.
        key_pts: of the frames that decoding can start at, rising, the ones not shown included.
        time_base: seconds per unit.
        by_count: decoded frames bear other times than these, so that frames are counted: the i-th that is decoded from
            the start is frame i.
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

    def shows(self, pts: int) -> bool:
        """Whether a frame is shown at this time."""
        place = bisect_left(self.pts, pts)
        return place < len(self.pts) and self.pts[place] == pts

    def key_before(self, pts: int) -> int:
        """The last key frame at or before ``pts``, or the first one."""
        return self.key_pts[max(0, bisect_right(self.key_pts, pts) - 1)]


def index_clip(container: InputContainer, stream: VideoStream, path: str) -> ClipIndex:
    """Find the frames that are shown of a clip and their times. The container's position changes.

    Raises:
        BadMediaError: the clip has no frames, or the file is cut short.
        av.FFmpegError: it can't be read.
    """
    packets = read_packets(container, stream, path)
    if not packets.shown:
        raise BadMediaError(path, "holds no frames")
    if _must_be_played(container, stream, packets, path):
        index = _index_by_playing(container, stream, path)
    elif _may_begin_with_unshown(stream, packets):
        index = _index_from_first_shown(stream, packets, path)
    else:
        shown = packets.dts if _lacks_display_times(container, stream) else packets.shown
        index = _index_of(stream, shown, packets)
    mean_gap = Fraction(index.pts[-1] - index.pts[0], max(1, len(index.pts) - 1)) or frame_step(stream)
    # Frames that are not shown belong to the file too.
    last_times = [index.pts[-1], *packets.pts[-TRIED_FRAMES:], *packets.dts[-TRIED_FRAMES:]]
    last_time = max(time for time in last_times if time is not None)
    check_promise(
        container,
        stream,
        packets=len(packets),
        end=(last_time + mean_gap) * index.time_base,
        seconds=float(mean_gap * len(index.pts) * index.time_base),
        path=path,
    )
    by_count = _lacks_display_times(container, stream) or container.format.name in WITHOUT_EXACT_SEEKING
    return replace(index, by_count=index.by_count or by_count)


def _index_of(stream: VideoStream, shown: Iterable[Any], packets: Packets) -> ClipIndex:
    """An index of frames whose times are known."""
    pts = tuple(sorted(shown))
    assert stream.time_base is not None  # of a stream that was opened
    return ClipIndex(pts, tuple(packets.key_pts) or pts[:1], stream.time_base)


def _must_be_played(container: InputContainer, stream: VideoStream, packets: Packets, path: str) -> bool:
    """Whether only decoding tells which frames the clip has, and when they are shown."""
    shown = packets.shown
    context = stream.codec_context
    # VP8 packets may hold frames that are never shown.
    if None in shown or len(set(shown)) < len(shown) or context.name == "vp8":
        return True
    if _lacks_display_times(container, stream):
        times = [time for time in packets.dts if time is not None]
        gaps = {b - a for a, b in pairwise(times)}
        evenly_spaced = len(times) == len(packets) and len(gaps) <= 1 and min(gaps, default=1) > 0
        return not evenly_spaced or not _each_gives_a_frame(packets, path)
    # The two fields of an interlaced frame may lie in a packet each. In broadcasts FFmpeg joins them.
    in_fields = context.name == "h264" and context.field_order > 1 and container.format.name not in JOINABLE
    return in_fields and not _each_gives_a_frame(packets, path)


def _lacks_display_times(container: InputContainer, stream: VideoStream) -> bool:
    """Whether the order of display is another than that of decoding, and the container does not say it."""
    return container.format.name in WITHOUT_DISPLAY_TIMES and bool(stream.codec_context.has_b_frames)


def _each_gives_a_frame(packets: Packets, path: str) -> bool:
    """Whether each of the first packets gives one frame. Packets that an edit list hides do not count."""
    frames = sum(1 for _ in play(path, TRIED_FRAMES))
    shown_packets = sum(not hidden for hidden in packets.hidden[:TRIED_FRAMES])
    return frames == shown_packets


def _may_begin_with_unshown(stream: VideoStream, packets: Packets) -> bool:
    """Whether frames come before the first key frame, in decoding or when shown: they may need what was cut off."""
    context = stream.codec_context
    if not packets.keys[0]:
        return True
    if context.name == "h264" and packets.first and not has_instant_refresh(packets.first, context.extradata):
        return True
    first = packets.pts[0]
    return first is not None and any(pts is not None and pts < first for pts in packets.shown)


def _index_from_first_shown(stream: VideoStream, packets: Packets, path: str) -> ClipIndex:
    """An index made by decoding until the first key frame is shown, or a later frame.

    All frames after it are shown.
    """
    key = next((pts for pts, is_key in zip(packets.pts, packets.keys, strict=True) if is_key), packets.pts[0])
    shown: list[int] = []
    for frame in play(path):
        if frame.pts is not None:
            shown.append(frame.pts)
            if key is None or frame.pts >= key:
                break
    if not shown:
        raise BadMediaError(path, "none of its frames can be decoded")
    later = [pts for pts in packets.shown if pts is not None and pts > shown[-1]]
    return _index_of(stream, shown + later, packets)


def _index_by_playing(container: InputContainer, stream: VideoStream, path: str) -> ClipIndex:
    """An index made by decoding the whole clip."""
    has_times = not _lacks_display_times(container, stream)
    pairs: list[tuple[int | None, int | None]] = []
    keys: list[int] = []
    for frame in play(path):
        pairs.append((frame.pts if has_times else None, frame.dts))
        if frame.key_frame and frame.pts is not None:
            keys.append(frame.pts)
    if not pairs:
        raise BadMediaError(path, "none of its frames can be decoded")
    pts = times_when_played(pairs)
    if not pts:
        raise BadMediaError(path, "none of its frames has a time: ffmpeg -r RATE -i IN OUT.mp4 gives them some")
    assert stream.time_base is not None  # of a stream that was opened
    by_count = any(pair[0] != time for pair, time in zip(pairs, pts, strict=True))
    return ClipIndex(tuple(pts), tuple(sorted(keys)) or (pts[0],), stream.time_base, by_count)


def times_when_played(frames: Sequence[tuple[int | None, int | None]]) -> list[int]:
    """The display times of decoded frames, in the stream's units, strictly rising. Empty where no frame has a time.

    Decoders give frames in the order in which they are shown, so times that do not rise are wrong. Taken are the
    presentation times or the decoding times, whichever rise oftener. Frames without a time, or with a wrong one, are
    spread evenly between their neighbours, and at the ends by the median distance of frames.

    Args:
        frames: presentation and decoding time of each, None where it has none.

    Example:
        >>> times_when_played([(10, 0), (None, 10), (30, 20), (20, 30), (50, 40)])
        [0, 10, 20, 30, 40]
    """
    by_pts = [pts for pts, _ in frames]
    by_dts = [dts for _, dts in frames]
    known = _rising(_more_often_rising(by_pts, by_dts))
    if not known:
        return []
    places = list(known)
    steps = [(known[b] - known[a]) / (b - a) for a, b in pairwise(places)]
    step = median(steps) if steps else 1
    numbers = np.arange(len(frames))
    # Frames before the first known one have a negative distance from it, and frames behind the last a positive one.
    outside = np.minimum(numbers - places[0], 0) + np.maximum(numbers - places[-1], 0)
    spread = np.interp(numbers, places, list(known.values())) + outside * step
    return np.floor(spread + 0.5).astype(int).tolist()


def _more_often_rising(by_pts: list[int | None], by_dts: list[int | None]) -> list[int | None]:
    """The times of the two that fall less often, those by ``pts`` where they are equal. None at all is worse."""
    known_pts = [time for time in by_pts if time is not None]
    known_dts = [time for time in by_dts if time is not None]
    if not known_dts:
        return by_pts
    if not known_pts:
        return by_dts
    return by_pts if _falls(known_pts) <= _falls(known_dts) else by_dts


def _falls(times: list[int]) -> int:
    """The number of times that are not above the one before."""
    return sum(after <= before for before, after in pairwise(times))


def frame_step(stream: VideoStream) -> Fraction:
    """Units of a stream from frame to frame, by the rate in its header."""
    rate = stream.average_rate or stream.base_rate or Fraction(25)
    assert stream.time_base is not None  # of a stream that was opened
    return 1 / (rate * stream.time_base)


def _rising(times: Sequence[int | None]) -> dict[int, int]:
    """The times that rise, by their places, with room for the frames between two of them: one unit for each."""
    known: dict[int, int] = {}
    previous = None  # a time less its place, which must not fall
    for place, time in enumerate(times):
        if time is not None and (previous is None or time - place >= previous):
            known[place] = time
            previous = time - place
    return known
