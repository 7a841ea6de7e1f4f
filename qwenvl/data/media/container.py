"""A video file opened by FFmpeg: its stream, its packets, and its frames as a player decodes them from the start."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import compress, islice, pairwise
from typing import BinaryIO

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL.Image import Transpose

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.source import video_format

MAX_FRAME_PIXELS = 50_000_000  # 8K video has 33 million; headers that claim more are bombs or noise
MAX_FRAMES = 3_000_000  # a day of 30 frames per second has 2.6 million; each takes some 100 bytes of memory
READING_ERRORS = (av.FFmpegError, IndexError)  # PyAV raises the second where streams turn up in a damaged file
CHECKSUMS = "crccheck+bitstream+buffer"
MAX_PIXEL_SHAPE = 4  # real pixels are at most twice as wide as high; what headers claim beyond this is noise
MAX_SLANT = 0.035  # the sine of 2 degrees, which players ignore too
JOINABLE = ("mpegts", "mpeg")  # a file may be made of several, one after the other, each with times of its own
MAX_GAP_SECONDS = 10.0  # players take a longer jump in such a file for the beginning of another one
MAX_BACK_SECONDS = 0.1  # and so a jump back by more than this
MIN_TABLE_FRAMES = 2000  # reading the packets of shorter clips takes a few milliseconds
CHECKED_PACKETS = 64  # the first ones, whose times must be those of the tables

# By a, b, c, d of a display matrix, which shows the point (x, y) at (a x + c y, b x + d y).
TRANSPOSITIONS = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Transpose.ROTATE_270,
    (-1, 0, 0, -1): Transpose.ROTATE_180,
    (0, -1, 1, 0): Transpose.ROTATE_90,
    (-1, 0, 0, 1): Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Transpose.TRANSPOSE,
    (0, -1, -1, 0): Transpose.TRANSVERSE,
}
TURNS = (None, Transpose.ROTATE_90, Transpose.ROTATE_180, Transpose.ROTATE_270)


def open_video(path: str, timeout: float | None = None, strict: bool = False) -> tuple[InputContainer, VideoStream]:
    """Open a file and find its video stream. The caller closes the container: PyAV leaks descriptors without it.

    Args:
        timeout: seconds that reading may block. None for no bound.
        strict: let the decoder stop at errors that it would else hide.

    Raises:
        BadMediaError: the file is not a video, or has no pictures.
    """
    container_format = video_format(path)
    try:
        # The format is forced: left to guess, FFmpeg would follow a playlist to other files.
        options = {"err_detect": CHECKSUMS} if strict else {}
        container = av.open(path, format=container_format, timeout=timeout, options=options)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise BadMediaError(path, f"can't be opened as {container_format}: {reason_of(error)}") from None
    try:
        stream = _video_stream(container, path)
    except BaseException:
        container.close()
        raise
    stream.codec_context.thread_count = 1  # workers are the parallelism
    if strict:
        stream.codec_context.options = {"err_detect": f"{CHECKSUMS}+explode"}
    return container, stream


def _video_stream(container: InputContainer, path: str) -> VideoStream:
    """The first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if Disposition.attached_pic not in stream.disposition:
            if stream.codec_context is None:
                raise BadMediaError(path, "no decoder is known for its pictures: fetch it again, or encode it anew")
            width = stream.width
            height = stream.height
            if not 0 < width * height <= MAX_FRAME_PIXELS:
                raise BadMediaError(
                    path, f"claims frames of {width} x {height} pixels; expected 1 to {MAX_FRAME_PIXELS:,} pixels"
                )
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    if not kinds:
        raise BadMediaError(path, "has no streams: it was probably cut short and lost its index", "cut short")
    raise BadMediaError(path, f"has no video stream, only {' and '.join(kinds)}")


def frame_size(stream: VideoStream) -> tuple[int, int]:
    """Height and width of a frame in square pixels, as the header says them."""
    return in_square_pixels(stream.height, stream.width, pixel_shape(stream))


def in_square_pixels(height: int, width: int, shape: Fraction) -> tuple[int, int]:
    """Height and width at which a picture is shown. One side is stretched and none is shrunk.

    Args:
        shape: of a stored pixel, its width by its height.

    Example:
        >>> in_square_pixels(576, 720, Fraction(16, 15))  # PAL in 4 : 3
        (576, 768)
    """
    return (height, round(width * shape)) if shape > 1 else (round(height / shape), width)


def pixel_shape(stream: VideoStream) -> Fraction:
    """The width of a shown pixel by its height, 1 where the header does not say it or makes no sense."""
    shape = stream.sample_aspect_ratio
    return shape if shape and Fraction(1, MAX_PIXEL_SHAPE) <= shape <= MAX_PIXEL_SHAPE else Fraction(1)


def transposition(frame: VideoFrame, path: str) -> Transpose | None:
    """The turn or reflection that makes of a decoded frame what players show. None: it is upright.

    Pillow does it, as it is faster than numpy.

    Raises:
        BadMediaError: the frame is shown slanted.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    # The upper left 2 x 2 of the matrix turns and mirrors. The lengths of its rows are a scale.
    axes = np.frombuffer(data, np.int32).reshape(3, 3)[:2, :2].astype(float)
    lengths = np.hypot(axes[:, 0], axes[:, 1])
    if not lengths.all():  # no matrix at all, to players as well
        return None
    axes /= lengths[:, None]
    nearest = tuple(axes.round().astype(int).ravel().tolist())
    if nearest not in TRANSPOSITIONS or np.abs(axes.ravel() - nearest).max() > MAX_SLANT:
        degrees = round(np.degrees(np.arctan2(axes[0, 1], axes[0, 0]))) % 360
        reason = f"its header turns it by {degrees} degrees or slants it; expected a multiple of 90 degrees"
        raise BadMediaError(path, f"{reason}: encode it anew as it is to be seen")
    return TRANSPOSITIONS[nearest]


def reason_of(error: BaseException) -> str:
    """The first line of a decoder's error, without the path that our message already begins with."""
    if isinstance(error, IndexError):
        return "streams turn up in it that it did not begin with"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0]


@dataclass
class Packets:
    """The packets of a clip in decoding order.

    Attributes:
        pts: presentation times in the stream's units, None where the file does not say it.
        dts: decoding times, as ``pts``. Empty for an MP4 whose times were read from its header.
        keys: whether decoding can start at the packet.
        hidden: whether an edit list hides its frame, as it does when players show the file.
        first: the bytes of the first one, empty for such an MP4.
    """

    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)
    hidden: list[bool] = field(default_factory=list)
    first: bytes = b""

    def __len__(self) -> int:
        return len(self.pts)

    @cached_property
    def shown(self) -> list[int | None]:
        """Presentation times of the frames that are not hidden."""
        if not any(self.hidden):
            return self.pts
        return [pts for pts, hidden in zip(self.pts, self.hidden, strict=True) if not hidden]

    @cached_property
    def key_pts(self) -> list[int]:
        """Presentation times of the key frames, as far as they are known, rising."""
        return sorted(pts for pts in compress(self.pts, self.keys) if pts is not None)


def read_packets(container: InputContainer, stream: VideoStream, path: str) -> Packets:
    """Read the packets of a clip, or the tables in the header of a long MP4. The container's position changes.

    Raises:
        BadMediaError: several files in one, each with times of its own, or more than ``MAX_FRAMES``.
    """
    table = table_packets(container, stream, path)
    if table is not None:
        return table
    packets = Packets()
    for packet in container.demux(stream):
        if packet.size == 0:  # the flush at the end, or an AVI's "repeat the last frame"
            continue
        if not packets.pts:
            packets.first = bytes(packet)
        packets.pts.append(packet.pts)
        packets.dts.append(packet.dts)
        packets.keys.append(packet.is_keyframe)
        packets.hidden.append(packet.is_discard)
        _check_number(len(packets), path)
    if container.format.name in JOINABLE:
        _check_not_joined(packets, stream, path)
    return packets


def _check_number(frames: int, path: str) -> None:
    """Raise BadMediaError for more frames than a clip may have."""
    if frames > MAX_FRAMES:
        raise BadMediaError(path, f"has more than {MAX_FRAMES:,} frames; cut it into clips")


def _check_not_joined(packets: Packets, stream: VideoStream, path: str) -> None:
    """Raise BadMediaError where the decoding times jump, as where several files were joined."""
    if not stream.time_base:
        return
    seconds = [float(time * stream.time_base) for time in packets.dts if time is not None]
    for before, after in pairwise(seconds):
        if not -MAX_BACK_SECONDS <= after - before <= MAX_GAP_SECONDS:
            raise BadMediaError(
                path,
                f"its times jump from {before:.1f} to {after:.1f} s, as where several files were joined: "
                "ffmpeg -i IN -c copy OUT.mp4 writes them as one",
            )


def play(path: str, most_packets: int | None = None, strict: bool = False) -> Iterator[VideoFrame]:
    """Decode a clip from its beginning.

    Args:
        most_packets: stop after so many packets. None for all.
        strict: as for ``open_video``.

    Raises:
        BadMediaError: as ``open_video`` raises it.
        av.FFmpegError: a packet can't be decoded, after others could.
    """
    container, stream = open_video(path, strict=strict)
    with closing(container):
        packets = (packet for packet in container.demux(stream) if packet.size)
        yield from decoded(islice(packets, most_packets))
        yield from stream.codec_context.decode(None)  # frames that the decoder held back for their order


def decoded(packets: Iterable[Packet]) -> Iterator[VideoFrame]:
    """Decode packets one by one, in their order.

    Packets before the first frame may fail: a recording that joins a broadcast midway begins with such packets.
    """
    began = False
    for packet in packets:
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            if began:
                raise
            continue
        began = began or bool(frames)
        yield from frames


def has_instant_refresh(packet: bytes, extradata: bytes | None) -> bool:
    """Whether an H.264 packet holds a picture that needs no other and that no later one looks behind (IDR).

    Args:
        extradata: of the stream. Containers that keep headers apart write there how long the lengths of units are.
    """
    # A packet is a row of units (NAL), separated by a start code or each behind its length.
    if packet.startswith((b"\0\0\1", b"\0\0\0\1")):
        return any(unit and _is_instant_refresh(unit[0]) for unit in packet.split(b"\0\0\1"))
    length_bytes = (extradata[4] & 3) + 1 if extradata and len(extradata) > 4 else 4
    at = 0
    while at + length_bytes < len(packet):
        if _is_instant_refresh(packet[at + length_bytes]):
            return True
        at += length_bytes + int.from_bytes(packet[at : at + length_bytes], "big")
    return False


def _is_instant_refresh(head: int) -> bool:
    """Whether a unit with this first byte is of type 5, which is IDR. The type is in the lower five bits."""
    return head & 0x1F == 5


def table_packets(container: InputContainer, stream: VideoStream, path: str) -> Packets | None:
    """The packets of a long MP4 or MOV clip by the tables in its header, which are read faster than the packets.

    FFmpeg keeps the decoding times, key frames and edit list of these files in memory, but it hands out presentation
    times with the packets alone. The difference between the two is in the table ``ctts`` of the header (ISO/IEC
    14496-12, 8.6.1.3).

    None where the packets have to be read: the file is of another kind, is short or fragmented, has an edit list that
    leaves frames out, or ends early, or its first packets do not bear the times found.

    Raises:
        BadMediaError: more than ``MAX_FRAMES``.
    """
    if not container.format.name.startswith("mov") or stream.frames < MIN_TABLE_FRAMES:
        return None
    entries = stream.index_entries
    if len(entries) != stream.frames:
        return None
    _check_number(len(entries), path)
    rows = [(entry.timestamp, entry.is_keyframe, entry.is_discard, entry.pos + entry.size) for entry in entries]
    decoding_times, keys, hidden, ends = np.array(rows, np.int64).T
    with open(path, "rb") as file:
        offsets = _composition_offsets(file, stream.id)
        if offsets is None or len(offsets) not in (0, len(decoding_times)):
            return None
        file_size = file.seek(0, os.SEEK_END)
        if ends.max() > file_size:
            return None
    times = decoding_times
    if len(offsets):
        # FFmpeg adds the size of the most negative offset to all times, so that none is before its decoding.
        times = decoding_times + offsets - min(0, offsets.min())
    for packet, time in zip(container.demux(stream), times[:CHECKED_PACKETS].tolist(), strict=False):
        if packet.pts != time:
            container.seek(entries[0].timestamp, stream=stream)
            return None
    return Packets(pts=times.tolist(), keys=(keys != 0).tolist(), hidden=(hidden != 0).tolist())


def _composition_offsets(file: BinaryIO, track_id: int) -> np.ndarray | None:
    """Presentation minus decoding time of each sample. Empty where all are equal, None without such a track."""
    whole = (0, file.seek(0, os.SEEK_END))
    for track in _boxes_at(file, [whole], b"moov", b"trak"):
        headers = _boxes_at(file, [track], b"tkhd")
        if not headers or _track_id(file, headers[0]) != track_id:
            continue
        samples = _boxes_at(file, [track], b"mdia", b"minf", b"stbl")
        tables = _boxes_at(file, samples, b"ctts")
        if not tables:
            return np.empty(0, np.int64) if samples else None
        start, _ = tables[0]
        file.seek(start + 4)  # behind version and flags
        (runs,) = struct.unpack(">I", file.read(4))
        pairs = np.frombuffer(file.read(8 * runs), ">u4").reshape(-1, 2)  # a number of samples, and the offset of each
        # Version 0 has unsigned offsets, but writers put negative ones there too, and are read so.
        offsets = pairs[:, 1].astype(np.int32).astype(np.int64)
        return offsets.repeat(pairs[:, 0])
    return None


def _boxes_at(file: BinaryIO, spans: list[tuple[int, int]], *kinds: bytes) -> list[tuple[int, int]]:
    """The spans of the contents of boxes at a path of kinds, within some spans of an MP4."""
    for wanted in kinds:
        found: list[tuple[int, int]] = []
        for start, end in spans:
            for kind, at, stop in boxes(file, start, end):
                if kind == wanted:
                    found.append((at, min(stop, end)))
        spans = found
    return spans


def _track_id(file: BinaryIO, header: tuple[int, int]) -> int:
    """The number of the track whose header box has this content."""
    start, _ = header
    file.seek(start)
    version = file.read(4)[0]
    # Behind version and flags stand the times of creation and change, of 8 bytes each in version 1 and else of 4.
    file.seek(16 if version == 1 else 8, os.SEEK_CUR)
    (number,) = struct.unpack(">I", file.read(4))
    return number


def boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The boxes in a part of an MP4: kind, and where the content begins and ends by its header, maybe after ``end``.

    A size of 1 means that 8 bytes with the size follow, and 0 that the box reaches to the end (ISO/IEC 14496-12, 4.2).
    """
    while start + 8 <= end:
        file.seek(start)
        size, kind = struct.unpack(">I4s", file.read(8))
        head = 8
        if size == 1:
            (size,) = struct.unpack(">Q", file.read(8))
            head = 16
        elif size == 0:
            size = end - start
        if size < head:  # padding
            return
        yield kind, start + head, start + size
        start += size
