"""Finds damage of clips: files that were cut short, and errors that decoders hide by filling what they can't read.

Most decoders play a file that was cut short without a word. Headers that promise too much are no proof of that: they
often stay as they were when a clip is cut. So a file is cut short where it ends before its own structure does.
Nothing here sees damage that still decodes: of video without checksums a wrong bit may be another picture.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from itertools import pairwise
from statistics import median
from typing import BinaryIO

from av.container import InputContainer
from av.video.stream import VideoStream

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.container import READING_ERRORS, boxes, open_video, reason_of
from qwenvl.data.media.matroska import break_in, segment_of

# A container may hold this much less than its header promises: a last packet or two are often lost when clips are cut.
MAX_MISSING_FRAMES = 2
MAX_MISSING_SHARE = 0.10
# A clip of constant rate, in which at least this share of the distances from frame to frame is the usual one ...
STEADY_SHARE = 0.95
# ... has no pause as long as this many of them. It is a hole.
HOLE_FRAMES = 5
HOLE_SECONDS = 0.5
# A tag of Matroska, "00:00:01.500000000". Others may have written something else there.
_END_TAG = re.compile(r"([0-9]+):([0-9]+):([0-9]+(?:\.[0-9]+)?)")


def check_promise(
    container: InputContainer, stream: VideoStream, packets: int, end: Fraction, seconds: float, path: str
) -> None:
    """Check that a file does not end before its own structure does, and that the structure of a Matroska file is whole.

    A whole file whose header is wrong passes.

    Args:
        packets: their number.
        end: the time at which the last frame ends, in the container's own time.
        seconds: the duration of the clip.

    Raises:
        BadMediaError: it is cut short, or damaged.
    """
    name = container.format.name
    whole = _is_whole(path, name)
    frame_seconds = seconds / max(1, packets)
    if name.startswith("mov"):
        if stream.frames - packets > MAX_MISSING_FRAMES and whole is not True:
            raise _cut_short(path, f"{stream.frames} frames", str(packets))
        if whole is False and not stream.frames:  # in fragments, each with a header of its own
            raise BadMediaError(path, "is cut short: its last part is not whole", "cut short")
        return
    if name.startswith("matroska"):
        with open(path, "rb") as file:
            broken = break_in(file, os.path.getsize(path))
        if broken is not None:
            raise damage(path, f"its container is damaged at byte {broken:,}: frames are missing")
    if name == "gif" and not whole:
        raise BadMediaError(path, "is cut short: the block that ends a GIF is missing", "cut short")
    promised = _promised_end(container, stream)
    missing = promised - float(end)
    too_much = promised > 0 and missing > max(MAX_MISSING_SHARE * seconds, MAX_MISSING_FRAMES * frame_seconds)
    if too_much and (whole is False or (whole is None and name.startswith("matroska"))):
        raise _cut_short(path, f"{promised:.2f} s", f"{float(end):.2f} s")


def _is_whole(path: str, container_format: str) -> bool | None:
    """Whether a file is as long as its outermost parts say, or None where these don't say it."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if container_format == "avi":
            return _riff_end(file, size) <= size
        if container_format.startswith("matroska"):
            segment = segment_of(file)
            return None if segment is None or segment.end is None else segment.end <= size
        if container_format.startswith("mov"):
            return max((end for *_, end in boxes(file, 0, size)), default=0) <= size
        if container_format == "gif":
            file.seek(-min(size, 64), os.SEEK_END)
            return file.read().rstrip(b"\0\r\n").endswith(b";")  # the block that ends it
    return None


def _promised_end(container: InputContainer, stream: VideoStream) -> float:
    """The second at which the video stream ends by its header, or 0.0 where that can't be relied on."""
    if container.format.name == "avi":
        return float((stream.start_time or 0) + stream.frames) * float(stream.time_base or 0)
    tag = _END_TAG.fullmatch(stream.metadata.get("DURATION") or "")
    if tag:  # of Matroska: not a length, but when it ends
        hours, minutes, seconds = tag.groups()
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    # Other containers have durations that FFmpeg estimates from the file itself.
    if container.format.name.startswith("matroska") and len(container.streams) == 1 and container.duration:
        return container.duration / 1_000_000  # microseconds
    return 0.0


def _cut_short(path: str, promised: str, held: str) -> BadMediaError:
    """The error of a file that holds less than its header promises."""
    return BadMediaError(path, f"is cut short: its header promises {promised}, the file holds {held}", "cut short")


def _riff_end(file: BinaryIO, size: int) -> int:
    """The byte at which the last part of an AVI ends. Large files have several parts."""
    end = 0
    while end + 12 <= size:
        file.seek(end)
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind != b"RIFF":
            break  # what stands behind it is no part of it
        end += 8 + length + length % 2  # parts of odd length are padded
    return size if end - size == 1 else end  # the last byte only pads, and may be missing


def check_packets(path: str, times: Sequence[float]) -> None:
    """Read all packets of a clip and decode none of them.

    Args:
        times: of the clip's frames, in seconds.

    Raises:
        BadMediaError: the container is damaged, or frames are missing within the clip.
    """
    container, stream = open_video(path, strict=True)
    with closing(container):
        try:
            for packet in container.demux(stream):
                if packet.size and packet.is_corrupt:  # also the last one before a packet that a broadcast lost
                    seconds = float((packet.dts or 0) * (stream.time_base or 0))
                    reason = f"a packet at {seconds:.2f} s of its container's time is damaged, or the next one is lost"
                    raise damage(path, reason)
        except READING_ERRORS as error:
            raise damage(path, f"its container is damaged: {reason_of(error)}") from None
    hole = _hole(times)
    if hole is not None:
        start, end = hole
        raise damage(path, f"it has no frames from {start:.2f} s to {end:.2f} s, at an otherwise constant rate")


def damage(path: str, reason: str) -> BadMediaError:
    """The error of a clip that is damaged."""
    return BadMediaError(path, reason, "damaged media")


def _hole(times: Sequence[float]) -> tuple[float, float] | None:
    """The first pause in a clip of constant rate: its beginning and its end. None in all other clips."""
    gaps = [b - a for a, b in pairwise(times)]
    if len(gaps) < 2:
        return None
    usual = median(gaps)
    steady = sum(abs(gap - usual) <= 0.1 * usual for gap in gaps)
    if steady < STEADY_SHARE * len(gaps):
        return None
    most = max(HOLE_SECONDS, HOLE_FRAMES * usual)
    for before, after in pairwise(times):
        if after - before > most:
            return before, after
    return None
