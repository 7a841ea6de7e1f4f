"""Copies of a source's packets into other containers: whole, cut, with other times or with some left out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av

from scripts.clips.sources import RATE, Piece, Source

UNITS = 90_000  # in a second: of the times given to muxers
TimeOf = Callable[[int], float]
"""The number of a frame to the second at which it is shown."""


def even(number: int) -> float:
    return number / RATE


def decoding_delay(pieces: Sequence[Piece]) -> int:
    """The most places by which a frame is shown earlier than it is decoded."""
    rank = {piece.number: place for place, piece in enumerate(sorted(pieces, key=lambda piece: piece.number))}
    return max(place - rank[piece.number] for place, piece in enumerate(pieces))


@dataclass(frozen=True)
class Copy:
    """A way of copying packets.

    Attributes:
        time_of: when each frame is shown.
        start: seconds added to all times.
        without_times: numbers of frames whose packets get no presentation time.
        options: of the muxer.
        format: FFmpeg's name of the container, or None for that of the file's suffix.
    """

    time_of: TimeOf = even
    start: float = 0.0
    without_times: Collection[int] = ()
    options: dict[str, str] | None = None
    format: str | None = None

    def write(self, source: Source, pieces: Sequence[Piece], path: Path) -> Path:
        """Copy some packets of a source, in their order."""
        delay = decoding_delay(source.pieces)
        ranks = sorted(piece.number for piece in source.pieces)
        with (
            av.open(str(source.path)) as reader,
            av.open(str(path), "w", format=self.format, options=self.options or {}) as writer,
        ):
            stream = writer.add_stream_from_template(reader.streams.video[0], opaque=True)
            for piece in pieces:
                packet = av.Packet(piece.data)
                packet.stream, packet.is_keyframe = stream, piece.is_key
                packet.time_base = Fraction(1, UNITS)
                place = piece.order - delay
                decoded = self.time_of(ranks[place]) if place >= 0 else self.time_of(ranks[0]) + even(place)
                packet.dts = self._units(decoded)
                packet.pts = None if piece.number in self.without_times else self._units(self.time_of(piece.number))
                packet.duration = UNITS // RATE
                writer.mux(packet)
        return path

    def _units(self, seconds: float) -> int:
        return round((seconds + self.start) * UNITS)


def copy_from(source: Path, target: Path, seconds: float) -> None:
    """``ffmpeg -ss X -c copy``: packets from the key frame before that second on, hidden by an edit list up to it."""
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        stream = reader.streams.video[0]
        start = int(seconds / stream.time_base)
        copy = writer.add_stream_from_template(stream)
        reader.seek(start, stream=stream, backward=True)
        for packet in reader.demux(stream):
            if packet.dts is not None:
                packet.pts, packet.dts = packet.pts - start, packet.dts - start
                packet.stream = copy
                writer.mux(packet)


def joined(path: Path, parts: Sequence[Path]) -> Path:
    """Write the bytes of files one after the other."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def patched(path: Path, mark: bytes, offset: int, value: bytes) -> Path:
    """Write ``value`` at ``offset`` bytes after the first ``mark``."""
    data = bytearray(path.read_bytes())
    at = data.index(mark) + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


def rotated(path: Path, height: int) -> Path:
    """Say in an MP4's header that its pictures lie on their left side."""
    matrix = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, height << 16, 0, 1 << 30)
    return patched(path, b"tkhd", 4 + 40, matrix)
