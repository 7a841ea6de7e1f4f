"""Clips of many kinds, each with what a player shows of it: containers, codecs, and the ways in which clips are cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from random import Random

from scripts.clips.copies import Copy, TimeOf, even, joined, patched
from scripts.clips.sources import FRAMES, HEADERS_APART, RATE, Piece, Source, encode_numbered

os.environ.setdefault("SVT_LOG", "0")
CUT_KEY = 2  # which key frame cuts begin at
MIDWAY = 16  # the packet, in decoding order, at which a recording begins that joins midway
REFRESH = 8  # frames from a "key frame" of an intra refresh to the first whole picture
LATE = 7.0  # seconds
HIDDEN = 19  # the frame at which a clip with an edit list begins
RAW = ("h264", "hevc", "m2v", "m1v", "obu", "mjpeg")  # containers by name that are none
_GAPS = [0.0, *accumulate(Random(0).choice((0.04, 0.04, 0.08, 0.12, 0.04, 0.2)) for _ in range(2 * FRAMES))]


def uneven(number: int) -> float:
    """Seconds of a clip of variable rate."""
    return _GAPS[number]


@dataclass(frozen=True)
class Shown:
    """The frames that a player shows: their numbers, and their seconds after the first."""

    numbers: Sequence[int]
    times: Sequence[float]

    @classmethod
    def of(cls, numbers: Sequence[int], time_of: TimeOf = even) -> Shown:
        numbers = list(numbers)
        return cls(numbers, [time_of(n) - time_of(numbers[0]) for n in numbers])


@dataclass(frozen=True)
class Kind:
    """A kind of clip.

    Attributes:
        cut: how it came to be, in a few words.
        make: writes the clip and says what is shown of it.
        refused: what the reader says of it, empty for a clip that it reads.
    """

    cut: str
    container: str
    codec: str
    make: Callable[[Workshop, Path], Shown] = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.cut}, {self.codec}.{self.container}".replace(" ", "_").replace(",_", "-")

    @property
    def refused(self) -> str:
        if self.container in RAW:
            return "not a video: it begins" if self.container == "mjpeg" else "a raw stream, which has no times"
        return "as where several files were joined" if self.cut.startswith("concatenated") else ""

    def write(self, workshop: Workshop, folder: Path) -> tuple[Path, Shown]:
        path = folder / self.name
        return path, self.make(workshop, path)


_OWN_CONTAINERS = {"vp8": "mkv", "vp9": "mkv", "av1": "mkv", "flv1": "flv", "wmv2": "wmv"}


class Workshop:
    """Sources by codec, each encoded once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sources: dict[Path, Source] = {}

    def source(self, codec: str, container: str) -> Source:
        apart = container in HEADERS_APART or codec in ("mpeg4", "mpeg4plain", "mjpeg")
        suffix = _OWN_CONTAINERS.get(codec, "mov" if apart else "ts")
        path = self.folder / f"source_{codec}.{suffix}"
        if path not in self._sources:
            self._sources[path] = Source(encode_numbered(path, codec))
        return self._sources[path]


def copied(cut: str, container: str, codec: str, choose: Callable[[Source], list[Piece]], copy: Copy = Copy()) -> Kind:  # noqa: B008 (immutable)
    """A copy of the packets that ``choose`` takes. Shown is what comes from the first key frame among them on."""

    def make(workshop: Workshop, path: Path) -> Shown:
        source = workshop.source(codec, container)
        pieces = choose(source)
        copy.write(source, pieces, path)
        first = next(piece.number for piece in pieces if piece.is_key)
        if codec == "h264refresh" and pieces[0].order:
            first += REFRESH
        return Shown.of([n for n in sorted(piece.number for piece in pieces) if n >= first], copy.time_of)

    return Kind(cut, container, codec, make)


def whole(source: Source) -> list[Piece]:
    return source.pieces


def from_key(source: Source) -> list[Piece]:
    return source.pieces[source.keys[CUT_KEY].order :]


def from_midway(source: Source) -> list[Piece]:
    return source.pieces[MIDWAY:]


def hidden(cut: str, container: str, codec: str, first: int) -> Kind:
    """Packets from the key frame before ``first`` on, hidden by an edit list up to it."""

    def make(workshop: Workshop, path: Path) -> Shown:
        source = workshop.source(codec, container)
        start = max(key.order for key in source.keys if key.number <= first)
        Copy(start=-even(first)).write(source, source.pieces[start:], path)
        return Shown.of(range(first, FRAMES))

    return Kind(cut, container, codec, make)


def concatenated(
    cut: str, container: str, codec: str, second: Callable[[Source], list[Piece]], second_start: float
) -> Kind:
    """Two files one after the other. The second begins with a time of its own and is shown right after the first."""

    def make(workshop: Workshop, path: Path) -> Shown:
        source = workshop.source(codec, container)
        parts = [path.with_name(f"{path.stem}.{n}.{container}") for n in (0, 1)]
        Copy(start=1.0).write(source, source.pieces, parts[0])
        pieces = second(source)
        Copy(start=second_start).write(source, pieces, parts[1])
        joined(path, parts)
        for part in parts:
            part.unlink()
        first = next(piece.number for piece in pieces if piece.is_key)
        late = [n for n in sorted(piece.number for piece in pieces) if n >= first]
        offset = FRAMES - pieces[0].order
        return Shown([*range(FRAMES), *late], [n / RATE for n in (*range(FRAMES), *(n + offset for n in late))])

    return Kind(cut, container, codec, make)


def encoded(
    cut: str, container: str, codec: str, count: int = FRAMES, change: Callable[[Path], object] | None = None, **options
) -> Kind:
    """Encoded straight into the container."""

    def make(workshop: Workshop, path: Path) -> Shown:
        encode_numbered(path, codec, count, **options)
        if change is not None:
            change(path)
        return Shown.of(range(count), even)

    return Kind(cut, container, codec, make)


def named(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of container and codec, from lines of a container and its codecs."""
    for line in text.strip().splitlines():
        container, *codecs = line.split()
        yield from ((container, codec) for codec in codecs)


WHOLE = """
    mp4 h264 h264open h264fields h264refresh hevc hevcopen hevc10 mpeg4 vp9 av1
    mov h264 hevcopen mpeg4plain mjpeg
    mkv h264 h264open h264fields hevcopen mpeg2 mpeg4 vp8 vp9 av1 mjpeg
    webm vp8 vp9 av1
    ts h264 h264open h264fields h264refresh hevc hevcopen hevc10 mpeg1 mpeg2
    mpg mpeg1 mpeg2 h264 h264open
    flv h264 h264open hevcopen flv1 av1
    avi h264 h264open mpeg4 mpeg4plain mpeg2 mjpeg
    wmv wmv2 h264
    h264 h264 h264open h264refresh
    hevc hevc hevcopen
    m2v mpeg2
    m1v mpeg1
    ivf vp8 vp9 av1
    obu av1
    mjpeg mjpeg
"""
EDITED = """
    mp4 h264 h264open hevc hevcopen mpeg4 vp9 av1
    mov h264 h264open hevc hevcopen
"""
CUT = """
    mp4 h264open hevcopen mpeg4
    mov h264open
    mkv h264open hevcopen mpeg2 mpeg4 vp9 av1
    ts h264open hevcopen mpeg2 mpeg1 h264refresh
    mpg mpeg1 mpeg2 h264open
    flv h264open hevcopen
    avi h264open mpeg4 mpeg2
    h264 h264open
    hevc hevcopen
    m2v mpeg2
"""
JOINED = """
    mp4 h264
    mkv h264open mpeg2
    ts h264 h264open hevcopen mpeg2
    mpg mpeg2 h264open
    flv h264open
    avi h264
    h264 h264open
"""
LATE_STARTS = """
    mp4 h264 hevcopen av1
    mov h264
    mkv h264 h264open hevcopen vp9 av1
    webm vp9 vp8
    ts h264open mpeg2
    mpg mpeg2
    flv h264
"""
VARIABLE = """
    mp4 h264 hevcopen vp9 av1
    mov h264
    mkv h264open hevc vp9 mpeg4
    webm vp9
    ts h264open mpeg2
    flv h264
    avi mpeg4plain h264
"""
CONCATENATED = """
    ts h264 h264open hevcopen mpeg2
    mpg mpeg2
"""
FORMS = {"obu": "obu", "wmv": "asf"}
PARTLY = {"mpg": "vob"}  # FFmpeg's name of MPEG-PS that need not begin at 0


def kinds() -> Iterator[Kind]:
    """All kinds."""
    for container, codec in named(WHOLE):
        yield copied("whole", container, codec, whole, Copy(format=FORMS.get(container)))
    for container, codec in named("gif gif\nm4v mpeg4plain mpeg4"):
        yield encoded("whole", container, codec)
    for container, codec in named(EDITED):
        yield hidden("edit list", container, codec, HIDDEN)
    yield hidden("edit list that hides one", "mp4", "h264", 1)
    yield hidden("edit list up to a key frame", "mp4", "h264open", 24)
    for container, codec in named(CUT):
        editless = {"use_editlist": "0"} if container in ("mp4", "mov") else None
        copy = Copy(options=editless, format=PARTLY.get(container), start=-0.4)
        yield copied("cut at a key frame", container, codec, from_key, copy)
    for codec in ("h264open", "hevcopen", "mpeg4"):
        yield copied("cut at a key frame with an edit list", "mp4", codec, from_key, Copy(start=-0.4))
    for container, codec in named(JOINED):
        copy = Copy(format=PARTLY.get(container), start=-0.4)
        yield copied("joined midway", container, codec, from_midway, copy)
    for container, codec in named(LATE_STARTS):
        copy = Copy(start=LATE, options={"avoid_negative_ts": "disabled"}, format=PARTLY.get(container))
        yield copied("late start", container, codec, whole, copy)
    for codec in ("h264open", "h264"):
        yield copied("late start and cut", "mkv", codec, from_key, Copy(start=LATE))
    for container, codec in named(VARIABLE):
        yield copied("variable rate", container, codec, whole, Copy(uneven))
    pieces = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    for codec in ("h264", "h264open", "hevcopen", "vp9", "av1"):
        yield copied("fragmented", "mp4", codec, whole, Copy(options=pieces))
    yield copied("fragmented and cut", "mp4", "h264open", from_key, Copy(options=pieces, start=-0.4))
    for container, codec in named(CONCATENATED):
        yield concatenated("concatenated with repeating times", container, codec, whole, 1.0)
        yield concatenated("concatenated with an earlier time", container, codec, from_key, 0.0)
        yield concatenated("concatenated with a later time", container, codec, whole, 3600.0)
    for codec in ("h264", "mpeg2"):
        hole = [n for n in range(FRAMES) if n % 3]
        yield copied("missing times", "ts", codec, whole, Copy(without_times=hole))
    yield encoded("anamorphic", "mp4", "h264", shape=Fraction(16, 11))
    yield encoded("anamorphic", "mkv", "h264", shape=Fraction(4, 3))
    yield encoded("anamorphic", "mpg", "mpeg2", shape=Fraction(64, 45))
    yield encoded("anamorphic", "avi", "mpeg4plain", shape=Fraction(12, 11))
    for container, codec in named("mp4 h264\nts mpeg2\nmkv vp9"):
        yield encoded("one frame", container, codec, 1)
    yield encoded("two frames", "ts", "h264", 2)
    frames = (10**6).to_bytes(4, "little")
    yield encoded("promises more", "avi", "mpeg4plain", change=lambda path: patched(path, b"strh", 40, frames))
    yield encoded("promises more", "mkv", "h264", change=lambda p: patched(p, b"00:00:02.4", 0, b"00:10:02.4"))
    yield encoded("promises less", "mkv", "h264", change=lambda p: patched(p, b"00:00:02.4", 0, b"00:00:00.4"))
