"""The structure of Matroska and WebM files: elements that hold elements, each with its kind and its length (RFC 8794).

FFmpeg looks for the next cluster where it meets what is no element, and says nothing of the frames that it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

SEGMENT = 0x18538067
TRACKS = 0x1654AE6B
TRACK = 0xAE
TRACK_NUMBER = 0xD7
CLUSTER = 0x1F43B675
SIMPLE_BLOCK = 0xA3
BLOCK_GROUP = 0xA0
BLOCK = 0xA1
CLUSTER_BEGINS_WITH = (0xE7, 0xAB, 0xA7, 0xBF, 0xEC)  # its time, the last one's size, its place, a checksum, nothing
LONGEST_HEAD = 12  # bytes of a kind and a length
CHUNK = 2**20


@dataclass(frozen=True)
class Element:
    """An element of a file.

    Attributes:
        start, inside: the first bytes of the element and of its content.
        end: None where its length was left open, as in files that were written while they were sent.
    """

    kind: int
    start: int
    inside: int
    end: int | None


def element_at(file: BinaryIO, start: int) -> Element | None:
    """The element that begins at a byte, or None where no element does.

    Kind and length are numbers of variable size: zero bits in front of the first one bit say how many bytes follow (RFC
    8794, 4). The kind keeps that bit, and the length does without. A length of only one bits is open.
    """
    file.seek(start)
    data = file.read(LONGEST_HEAD)
    if not data or not data[0]:
        return None
    id_length = 9 - data[0].bit_length()
    if id_length > 4 or len(data) <= id_length or not data[id_length]:
        return None
    length = 9 - data[id_length].bit_length()
    inside = id_length + length
    if inside > len(data):
        return None
    all_ones = (1 << 7 * length) - 1
    value = int.from_bytes(data[id_length:inside], "big") & all_ones
    return Element(
        kind=int.from_bytes(data[:id_length], "big"),
        start=start,
        inside=start + inside,
        end=None if value == all_ones else start + inside + value,
    )


def segment_of(file: BinaryIO) -> Element | None:
    """The element that holds all others but the header of the file."""
    header = element_at(file, 0)
    if header is None or header.end is None:
        return None
    segment = element_at(file, header.end)
    return segment if segment is not None and segment.kind == SEGMENT else None


def break_in(file: BinaryIO, size: int) -> int | None:
    """The first byte at which a file has no element where one must be, so that frames are left out.

    None for a whole file, and for one that only ends early.

    Args:
        size: of the file, in bytes.
    """
    segment = segment_of(file)
    if segment is None:
        return None
    end = size if segment.end is None else min(segment.end, size)
    broken = _first_break(file, segment.inside, end)
    if broken is None:
        return None
    ends_early = segment.end is None or segment.end > size
    if ends_early and not _has_cluster_behind(file, broken, end):
        return None
    return broken


def _first_break(file: BinaryIO, start: int, end: int) -> int | None:
    """The first byte where the elements of a segment do not follow each other, or a block belongs to no track."""
    tracks: set[int] = set()
    at = start
    while at < end:
        element = element_at(file, at)
        if element is None:
            return at
        if element.end is None:
            if element.kind != CLUSTER:
                return at
            at = element.inside  # its blocks follow in the list of the segment's elements
            continue
        if element.end > end:
            return at
        if element.kind == TRACKS:
            tracks = set(_track_numbers(file, element))
        if element.kind == CLUSTER:
            blocks = _children(file, element.inside, element.end)
        else:
            blocks = iter([element])
        for block in blocks:
            if isinstance(block, int):
                return block
            if tracks and not _is_of_a_track(file, block, tracks):
                return block.start
        at = element.end
    return None


def _children(file: BinaryIO, start: int, end: int) -> Iterator[Element | int]:
    """The elements in a part of a file, and at last the byte at which none begins, if there is such a byte."""
    at = start
    while at < end:
        element = element_at(file, at)
        if element is None or element.end is None or element.end > end:
            yield at
            return
        yield element
        at = element.end


def _track_numbers(file: BinaryIO, tracks: Element) -> Iterator[int]:
    """The numbers by which blocks name the tracks."""
    for track in _children(file, tracks.inside, tracks.end or 0):
        if isinstance(track, Element) and track.kind == TRACK:
            for entry in _children(file, track.inside, track.end or 0):
                if isinstance(entry, Element) and entry.kind == TRACK_NUMBER:
                    file.seek(entry.inside)
                    yield int.from_bytes(file.read((entry.end or 0) - entry.inside), "big")


def _is_of_a_track(file: BinaryIO, element: Element, tracks: set[int]) -> bool:
    """Whether a block names a track of the file. True of elements that are no blocks."""
    if element.kind == BLOCK_GROUP:
        block = _block_of(file, element)
        if block is None:
            return False
    elif element.kind == SIMPLE_BLOCK:
        block = element
    else:
        return True
    file.seek(block.inside)
    data = file.read(8)
    length = 9 - data[0].bit_length() if data and data[0] else 9
    number = int.from_bytes(data[:length], "big") & ((1 << 7 * length) - 1)
    return length <= 8 and number in tracks


def _block_of(file: BinaryIO, group: Element) -> Element | None:
    """The first block of a group."""
    for each in _children(file, group.inside, group.end or 0):
        if isinstance(each, Element) and each.kind == BLOCK:
            return each
    return None


def _has_cluster_behind(file: BinaryIO, start: int, end: int) -> bool:
    """Whether a cluster begins behind a byte. The same four bytes within a picture are none."""
    mark = CLUSTER.to_bytes(4, "big")
    at = start + 1
    while at < end:
        file.seek(at)
        data = file.read(CHUNK)
        place = data.find(mark)
        if place < 0:
            if len(data) < CHUNK:
                return False
            at += len(data) - len(mark) + 1  # the mark may lie across the end of the chunk
            continue
        cluster = element_at(file, at + place)
        first = None if cluster is None else element_at(file, cluster.inside)
        if first is not None and first.kind in CLUSTER_BEGINS_WITH:
            return True
        at += place + 1
    return False
