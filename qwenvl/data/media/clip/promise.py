"""What a container promises of its length, and whether the file is whole.

Most decoders play a file that was cut short without a word. Headers that promise too much are no proof of that: they
often stay as they were when a clip is cut. So a file is cut short where it ends before its own structure does.
"""

from __future__ import annotations

import os
import struct
from fractions import Fraction

from av.container import InputContainer
from av.video.stream import VideoStream

from qwenvl.data.errors import BadMediaError

# A container may hold this much less than its header promises: a last packet or two are often lost when clips are cut.
MAX_MISSING_FRAMES = 2
MAX_MISSING_SHARE = 0.10
_SEGMENT = 0x18538067  # the element of Matroska that holds all others


def check_promise(
    container: InputContainer, stream: VideoStream, packets: int, end: Fraction, seconds: float, path: str
) -> list[str]:
    """What a header says wrongly of a clip's length, in words. The file itself is whole.

    Args:
        packets: how many it has.
        end: the time at which the last frame ends, in the container's own time.
        seconds: that the clip lasts.

    Raises:
        BadMediaError: it is cut short.
    """
    name = container.format.name
    whole = is_whole(path, name)
    frame = seconds / max(1, packets)
    if name.startswith("mov"):
        if stream.frames - packets > MAX_MISSING_FRAMES and whole is not True:
            raise _cut_short(path, f"{stream.frames} frames", str(packets))
        if whole is False and not stream.frames:  # in fragments, each with a header of its own
            raise BadMediaError(path, "is cut short: its last part is not whole", "cut short")
        return []
    if name == "gif" and not whole:
        raise BadMediaError(path, "is cut short: the block that ends a GIF is missing", "cut short")
    promised = _promised_end(container, stream)
    missing = promised - float(end)
    if missing <= MAX_MISSING_SHARE * seconds or missing <= MAX_MISSING_FRAMES * frame:
        surplus = float(end) - promised
        less = promised > 0 and surplus > MAX_MISSING_SHARE * seconds and surplus > MAX_MISSING_FRAMES * frame
        return [_differs(promised, float(end))] if less else []
    if whole is False or (whole is None and name.startswith("matroska")):
        raise _cut_short(path, f"{promised:.2f} s", f"{float(end):.2f} s")
    return [_differs(promised, float(end))]


def is_whole(path: str, container_format: str) -> bool | None:
    """Whether a file is as long as its outermost parts say, or None where these don't say it."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if container_format == "avi":
            return _riff_end(file, size) <= size
        if container_format.startswith("matroska"):
            end = _segment_end(file)
            return None if end is None else end <= size
        if container_format.startswith("mov"):
            return _last_box_end(file, size) <= size
        if container_format == "gif":
            return _has_gif_trailer(file)
    return None


def _promised_end(container: InputContainer, stream: VideoStream) -> float:
    """The second at which the video stream ends by its header, or 0.0 where that can't be relied on."""
    if container.format.name == "avi":
        return float((stream.start_time or 0) + stream.frames) * float(stream.time_base or 0)
    if tag := stream.metadata.get("DURATION"):  # Matroska, "00:00:01.500000000": not a length, but when it ends
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    # Other containers have durations that FFmpeg estimates from the file itself.
    if container.format.name.startswith("matroska") and len(container.streams) == 1 and container.duration:
        return container.duration / 1_000_000
    return 0.0


def _differs(promised: float, held: float) -> str:
    return f"its header says that it ends at {promised:.2f} s, and it ends at {held:.2f} s"


def _cut_short(path: str, promised: str, held: str) -> BadMediaError:
    return BadMediaError(path, f"is cut short: its header promises {promised}, the file holds {held}", "cut short")


def _riff_end(file, size: int) -> int:
    """Where the last part of an AVI ends. Large ones have several parts."""
    end = 0
    while end + 12 <= size:
        file.seek(end)
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind != b"RIFF":
            break  # what stands behind it is no part of it
        end += 8 + length + length % 2
    return min(end, size) if end - size == 1 else end  # a last byte that pads


def _segment_end(file) -> int | None:
    """Where a Matroska file ends by its header, or None where that was left open."""
    head, _ = _element(file, 0)
    if head is None:
        return None
    segment, kind = _element(file, head)
    return segment if kind == _SEGMENT else None


def _element(file, start: int) -> tuple[int | None, int]:
    """Where an element of Matroska ends, None where it does not say it, and its kind."""
    file.seek(start)
    data = file.read(12)
    if len(data) < 12 or not data[0]:
        return None, 0
    id_length = 9 - data[0].bit_length()
    first = data[id_length]
    length = 9 - first.bit_length()
    if length > 8 or id_length + length > 12:
        return None, 0
    value = int.from_bytes(data[id_length : id_length + length], "big") & ((1 << 7 * length) - 1)
    unknown = value == (1 << 7 * length) - 1
    return None if unknown else start + id_length + length + value, int.from_bytes(data[:id_length], "big")


def _last_box_end(file, size: int) -> int:
    """Where the last of an MP4's outermost boxes ends."""
    at = 0
    while at + 8 <= size:
        file.seek(at)
        (length,) = struct.unpack(">I4x", file.read(8))
        if length == 1:
            (length,) = struct.unpack(">Q", file.read(8))
        if length == 0:  # to the end of the file
            return size
        if length < 8:
            return at  # padding
        at += length
    return at


def _has_gif_trailer(file) -> bool:
    """Whether the blocks of a GIF lead to the one that ends it."""

    def pass_colours(flags: int) -> None:
        if flags & 0x80:
            file.seek(3 * 2 ** (flags % 8 + 1), os.SEEK_CUR)

    pass_colours(file.read(13)[10])
    while (kind := file.read(1)) in (b"!", b","):
        if kind == b",":
            head = file.read(9)
            if len(head) < 9:
                return False
            pass_colours(head[8])
        file.seek(1, os.SEEK_CUR)  # the label of an extension, or how wide codes are
        while length := int.from_bytes(file.read(1), "big"):
            file.seek(length, os.SEEK_CUR)
    return kind == b";"
