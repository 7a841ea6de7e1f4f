"""A clip played from its beginning to its end, frame by frame: what a player shows, whatever its file says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

import av
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from qwenvl.data.media.clip.container import open_video
from qwenvl.data.media.clip.packets import Clock


class Played(NamedTuple):
    """A frame that was shown.

    Attributes:
        part: of a file that several were joined to, which one it comes from.
        offset: units to add to its times, so that this part goes on where the last one ended.
    """

    frame: VideoFrame
    part: int
    offset: int


def play(path: str, most_packets: int | None = None, strict: bool = False) -> Iterator[Played]:
    """Decode a clip from its beginning. Parts that were joined are decoded each on its own.

    Args:
        most_packets: only so many of them.
        strict: as of ``open_video``.

    Raises:
        BadMediaError: as ``open_video`` raises it.
        av.FFmpegError: a packet can't be decoded, after others could.
    """
    container, stream = open_video(path, strict=strict)
    with closing(container):
        clock, context = Clock(container, stream), stream.codec_context
        part, offset, began = 0, 0, False
        packets = (packet for packet in container.demux(stream) if packet.size)
        for packet in islice(packets, most_packets):
            if clock.begins_anew(packet):
                yield from [Played(frame, part, offset) for frame in context.decode(None)]
                context.flush_buffers()
                part, began = part + 1, False
            offset = clock.offset
            frames = _frames_in(packet, began)
            began = began or bool(frames)
            yield from [Played(frame, part, offset) for frame in frames]
        yield from [Played(frame, part, offset) for frame in context.decode(None)]


def decoded(packets: Iterable[Packet]) -> Iterator[VideoFrame]:
    """Decode packets one by one, whatever their times."""
    began = False
    for packet in packets:
        frames = _frames_in(packet, began)
        began = began or bool(frames)
        yield from frames


def times_when_played(frames: Sequence[tuple[int | None, int | None]], step: Fraction) -> list[int]:
    """When frames are shown, in the stream's units: strictly rising, one for each.

    Decoders give frames in the order in which they are shown, so times that do not rise are wrong. Taken are the
    presentation times or the decoding times, whichever rise oftener. Frames without a time, or with a wrong one, are
    spread evenly between their neighbours, at most the median distance of frames apart.

    Args:
        frames: presentation and decoding time of each, None where it has none.
        step: units from frame to frame, for where no frame has a time.

    Example:
        >>> times_when_played([(10, 0), (None, 10), (30, 20), (20, 30), (50, 40)], Fraction(10))
        [10, 20, 30, 40, 50]
    """
    by_pts, by_dts = ([frame[kind] for frame in frames] for kind in (0, 1))
    wrong = lambda times: sum(b <= a for a, b in pairwise(t for t in times if t is not None))
    has = lambda times: any(t is not None for t in times)
    times = by_pts if has(by_pts) and (wrong(by_pts) <= wrong(by_dts) or not has(by_dts)) else by_dts
    known = _rising(times)
    if not known:
        return [round(i * step) for i in range(len(times))]
    places = list(known)
    if len(places) > 1:  # a gap is not the distance from frame to frame
        step = median(Fraction(known[b] - known[a], b - a) for a, b in pairwise(places))
    first, last = places[0], places[-1]
    spread = {place: Fraction(known[place]) for place in places}
    spread |= {i: known[first] - (first - i) * step for i in range(first)}
    spread |= {i: known[last] + (i - last) * step for i in range(last + 1, len(times))}
    for a, b in pairwise(places):
        own = min(step, Fraction(known[b] - known[a], b - a))
        spread |= {i: known[a] + (i - a) * own for i in range(a + 1, b)}
    return [round(spread[i]) for i in range(len(times))]


def frame_step(stream: VideoStream) -> Fraction:
    """Units of a stream from frame to frame, by the rate in its header."""
    rate = stream.average_rate or stream.base_rate or Fraction(25)
    assert stream.time_base is not None  # of a stream that was opened
    return 1 / (rate * stream.time_base)


def _frames_in(packet: Packet, began: bool) -> Sequence[VideoFrame]:
    """Decode a packet. Where no frame came out before it may fail: a recording that joins midway begins with such."""
    try:
        return packet.decode()
    except av.InvalidDataError:
        if began:
            raise
        return ()


def _rising(times: Sequence[int | None]) -> dict[int, int]:
    """Places and values of the longest strictly rising choice of times.

    There must be room for the frames between two chosen ones, a unit for each.
    """
    ends: list[int] = []  # the least value, less its place, that a choice of each length ends with
    places: list[int] = []
    before: dict[int, int | None] = {}
    for place, time in enumerate(times):
        if time is None:
            continue
        room = time - place
        at = bisect_right(ends, room)  # equal ones may follow each other
        before[place] = places[at - 1] if at else None
        ends[at : at + 1], places[at : at + 1] = [room], [place]
    chosen: list[int] = []
    last = places[-1] if places else None
    while last is not None:
        chosen.append(last)
        last = before[last]
    return {place: times[place] for place in reversed(chosen)}  # type: ignore[misc]
