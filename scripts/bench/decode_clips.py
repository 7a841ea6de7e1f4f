"""Clips for the decoding benchmark: over a moving texture each frame bears its number, which survives resizing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from random import Random

import av
import numpy as np

COLUMNS, ROWS = 10, 2  # a bit each: the top of the picture holds numbers up to a million


@dataclass(frozen=True)
class BenchClip:
    """A clip and what it should give: frame i of ``frame_count`` bears the number ``first + i``."""

    path: Path
    frame_count: int
    first: int = 0


def make_clips(folder: Path) -> dict[str, BenchClip]:
    """The clips by name. Those that are in ``folder`` already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    vp9 = {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}}
    makers: dict[str, tuple[str, int, int, Callable[[Path], None]]] = {
        "h264 640x360, 5 s": ("short.mp4", 125, 0, lambda path: encode(path, 125)),
        "h264 640x360, 2 min": ("long.mp4", 3000, 0, lambda path: encode(path, 3000)),
        "720p, 30 s, key frame every 250": ("gop250.mp4", 750, 0, lambda path: encode(path, 750, (1280, 720), gop=250)),
        "variable frame rate": ("variable.mp4", 250, 0, lambda path: encode(path, 250, times=uneven_times(250))),
        "rotated by 90 degrees": ("rotated.mp4", 125, 0, encode_rotated),
        "webm, vp9": ("vp9.webm", 250, 0, lambda path: encode(path, 250, **vp9)),
        "cut without re-encoding": ("cut.mp4", 250 - 67, 67, encode_cut),
        "1 h at 160x120": ("hour.mp4", 90_000, 0, lambda path: encode(path, 90_000, (160, 120), gop=250)),
    }
    clips = {}
    for name, (file, frame_count, first, make) in makers.items():
        path = folder / file
        if not path.exists():
            unfinished = path.with_stem(path.stem + ".part")
            make(unfinished)
            unfinished.replace(path)
        clips[name] = BenchClip(path, frame_count, first)
    return clips


def encode(
    path: Path,
    frame_count: int,
    size: tuple[int, int] = (640, 360),
    *,
    gop: int = 50,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    times: list[float] | None = None,
    turn: int = 0,
) -> None:
    """Encode numbered frames at 25 per second or at ``times``, each turned ``turn`` times 90 degrees to the left."""
    pictures = numbered_pictures(frame_count, *size)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options or {"preset": "veryfast", "bf": "2"})
        stream.width, stream.height = size if turn % 2 == 0 else size[::-1]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        if times is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.rot90(picture, turn)), format="rgb24")
            frame.pts = number if times is None else round(times[number] * 1000)
            if times is not None:
                frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def encode_rotated(path: Path) -> None:
    """Store pictures turned to the left, and in the header the matrix that turns them back."""
    encode(path, 125, turn=1)
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40  # after version, times, id, duration, layer, volume
    height = struct.unpack(">I", data[matrix + 40 : matrix + 44])[0]
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, height, 0, 1 << 30)
    path.write_bytes(data)


def encode_cut(path: Path, first: int = 67) -> None:
    """Encode a longer clip, and keep what comes from frame ``first`` on."""
    source = path.with_stem("source")
    encode(source, 250)
    copy_from(source, path, first / 25)
    source.unlink()


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


def uneven_times(frame_count: int) -> list[float]:
    """Seconds, with gaps of 5 to 120 milliseconds."""
    draw = Random(0)
    return [gap / 1000 for gap in accumulate(draw.randrange(5, 120) for _ in range(frame_count))]


def numbered_pictures(frame_count: int, width: int, height: int) -> Iterator[np.ndarray]:
    """H x W x 3 each: a window that pans over a texture, and the number's bits as black and white blocks on top."""
    coarse = np.random.default_rng(0).integers(40, 215, (height // 8 + 9, width // 8 + 9, 3))
    texture = coarse.repeat(8, 0).repeat(8, 1).astype(np.uint8)
    texture += np.random.default_rng(1).integers(0, 12, texture.shape, dtype=np.uint8)
    block = width // COLUMNS
    for number in range(frame_count):
        y, x = abs(number * 2 % 128 - 64), abs(number * 3 % 128 - 64)
        picture = texture[y : y + height, x : x + width].copy()
        for bit in range(COLUMNS * ROWS):
            row, column = divmod(bit, COLUMNS)
            value = 235 if number >> bit & 1 else 16
            picture[row * block : (row + 1) * block, column * block : (column + 1) * block] = value
        yield picture


def number_in(picture: np.ndarray) -> int:
    """The number in a picture, H x W x 3, of any size."""
    block = picture.shape[1] / COLUMNS
    number = 0
    for bit in range(COLUMNS * ROWS):
        row, column = divmod(bit, COLUMNS)
        y, x = int((row + 0.5) * block), int((column + 0.5) * block)
        if y >= picture.shape[0]:
            return -1
        number |= int(picture[y, x].mean() > 126) << bit
    return number


def wanted_frames(clip: BenchClip, n: int) -> list[int]:
    """``n`` frame numbers, evenly spaced from the first frame to the last, as all tools compared here choose them."""
    return [round(i * (clip.frame_count - 1) / (n - 1)) for i in range(n)]


def right_frames(clip: BenchClip, wanted: list[int], pictures: Iterable[np.ndarray]) -> int:
    """How many of the pictures are the wanted frames, in their order."""
    numbers = [number_in(picture) for picture in pictures]
    return sum(number == clip.first + index for number, index in zip(numbers, wanted, strict=False))
