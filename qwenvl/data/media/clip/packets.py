"""The packets of a clip, which hold its encoded frames, without decoding them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress

from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from qwenvl.data.media.clip.mp4_times import table_times

# In these a file may be made of several, one after the other, each with times of its own.
JOINABLE = ("mpegts", "mpeg")
MAX_GAP_SECONDS = 10.0  # players take a longer jump in such a file for the beginning of another one
MAX_BACK_SECONDS = 0.1  # and so a jump back by more than this


@dataclass
class Packets:
    """The packets of a clip in decoding order.

    Attributes:
        pts: presentation times in the stream's units, None where the file does not say it.
        dts: decoding times, as ``pts``. Empty for an MP4 whose times stand in its header.
        keys: whether decoding can start at the packet.
        hidden: whether an edit list hides its frame, as it does when players show the file.
        beginnings: how often times begin anew.
        first: the bytes of the first one, empty for such an MP4.
    """

    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)
    hidden: list[bool] = field(default_factory=list)
    beginnings: int = 0
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


class Clock:
    """Notices where the times of a file begin anew, as they do where several files were joined.

    Attributes:
        offset: units to add to the times of the packets from here on, so that they go on without a gap.
    """

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self.offset = 0
        self._joinable = container.format.name in JOINABLE
        seconds = 1 / stream.time_base if stream.time_base else 0
        self._most, self._least = MAX_GAP_SECONDS * seconds, -MAX_BACK_SECONDS * seconds
        self._frame = round(seconds / stream.average_rate) if stream.average_rate else 1
        self._next: int | None = None

    def begins_anew(self, packet: Packet) -> bool:
        """Whether the packet begins another file."""
        if not self._joinable or packet.dts is None:
            return False
        jump = packet.dts - self._next if self._next is not None else 0
        self._next = packet.dts + (packet.duration or self._frame)
        if self._least <= jump <= self._most:
            return False
        self.offset -= jump
        return True


def read_packets(container: InputContainer, stream: VideoStream, path: str) -> Packets:
    """Read the packets of a clip, or the tables in the header of a long MP4. The container's position changes."""
    table = table_times(container, stream, path)
    if table is not None:
        pts, keys, hidden = table
        return Packets([*pts], [], keys, hidden)
    packets, clock = Packets(), Clock(container, stream)
    for packet in container.demux(stream):
        if packet.size == 0:  # the flush at the end, or an AVI's "repeat the last frame"
            continue
        if not packets.pts:
            packets.first = bytes(packet)
        packets.beginnings += clock.begins_anew(packet)
        packets.pts.append(packet.pts)
        packets.dts.append(packet.dts)
        packets.keys.append(packet.is_keyframe)
        packets.hidden.append(packet.is_discard)
    return packets


def has_instant_refresh(packet: bytes, extradata: bytes | None) -> bool:
    """Whether an H.264 packet holds a picture that needs no other and that no later one looks behind (IDR).

    Args:
        extradata: of the stream. Containers that keep headers apart write there how long the lengths of units are.
    """
    if packet.startswith((b"\0\0\1", b"\0\0\0\1")):
        return any(unit[:1] and unit[0] & 0x1F == 5 for unit in packet.split(b"\0\0\1"))
    width = (extradata[4] & 3) + 1 if extradata and len(extradata) > 4 else 4
    at = 0
    while at + width < len(packet):
        if packet[at + width] & 0x1F == 5:
            return True
        at += width + int.from_bytes(packet[at : at + width], "big")
    return False
