"""The presentation times of a long MP4 or MOV clip, from the tables in its header instead of from its packets.

FFmpeg keeps the decoding times, key frames and edit list of these files in memory, but it hands out presentation times
with the packets alone. The difference between the two times is in one table, ``ctts`` (ISO/IEC 14496-12, 8.6.1.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

MIN_FRAMES = 2000  # reading the packets of shorter clips takes a few milliseconds
CHECKED_PACKETS = 64


def table_times(
    container: InputContainer, stream: VideoStream, path: str
) -> tuple[list[int], list[bool], list[bool]] | None:
    """The presentation time of each packet, whether it is a key frame, and whether an edit list hides it.

    Times are in the stream's units, packets in decoding order.

    None where the packets have to be read: the file is of another kind, is short or fragmented, has an edit list that
    leaves frames out, or ends early, or its first packets do not bear the times found.
    """
    if not container.format.name.startswith("mov") or stream.frames < MIN_FRAMES:
        return None
    entries = stream.index_entries
    if len(entries) != stream.frames:
        return None
    rows = [(e.timestamp, e.is_keyframe, e.is_discard, e.pos + e.size) for e in entries]
    decoded, keys, hidden, ends = np.array(rows, np.int64).T
    with open(path, "rb") as file:
        offsets = _composition_offsets(file, stream.id)
        if offsets is None or len(offsets) not in (0, len(decoded)) or ends.max() > file.seek(0, 2):
            return None
    times = decoded + offsets - min(0, offsets.min()) if len(offsets) else decoded
    if not _agrees(container, stream, times):
        return None
    return times.tolist(), (keys != 0).tolist(), (hidden != 0).tolist()


def _agrees(container: InputContainer, stream: VideoStream, times: np.ndarray) -> bool:
    """Whether the first packets bear these times. If not, the container is left at its start."""
    for packet, time in zip(container.demux(stream), times[:CHECKED_PACKETS].tolist(), strict=False):
        if packet.pts != time:
            container.seek(stream.index_entries[0].timestamp, stream=stream)
            return False
    return True


def _composition_offsets(file: BinaryIO, track_id: int) -> np.ndarray | None:
    """Presentation minus decoding time of each sample. Empty where all are equal, None without such a track."""
    size = file.seek(0, 2)
    moov = _find(file, 0, size, b"moov")
    if not moov:
        return None
    for trak in _boxes(file, *moov, b"trak"):
        header = _find(file, *trak, b"tkhd")
        if not header or _track_id(file, header[0]) != track_id:
            continue
        span = trak
        for kind in (b"mdia", b"minf", b"stbl"):
            inner = _find(file, *span, kind)
            if not inner:
                return None
            span = inner
        table = _find(file, *span, b"ctts")
        if not table:
            return np.empty(0, np.int64)
        file.seek(table[0] + 4)  # after version and flags
        (runs,) = struct.unpack(">I", file.read(4))
        pairs = np.frombuffer(file.read(8 * runs), ">u4").reshape(-1, 2)
        # Version 0 has unsigned offsets, but writers put negative ones there too, and readers take them as such.
        return pairs[:, 1].astype(np.int32).astype(np.int64).repeat(pairs[:, 0])
    return None


def _track_id(file: BinaryIO, start: int) -> int:
    file.seek(start)
    version = file.read(4)[0]
    file.seek(16 if version == 1 else 8, 1)  # times of creation and change
    return struct.unpack(">I", file.read(4))[0]


def _find(file: BinaryIO, start: int, end: int, kind: bytes) -> tuple[int, int] | None:
    return next(_boxes(file, start, end, kind), None)


def _boxes(file: BinaryIO, start: int, end: int, kind: bytes) -> Iterator[tuple[int, int]]:
    """Where the contents of the boxes of a kind begin and end."""
    while start + 8 <= end:
        file.seek(start)
        size, found = struct.unpack(">I4s", file.read(8))
        head = 8
        if size == 1:
            (size,) = struct.unpack(">Q", file.read(8))
            head = 16
        elif size == 0:
            size = end - start
        if size < head:
            return
        if found == kind:
            yield start + head, min(start + size, end)
        start += size
