"""Encoded streams whose frames carry their number, which clips are cut and copied from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import av
import numpy as np

RATE = 25
FRAMES = 60
SIZE = (160, 96)
GOP = 12
COLUMNS, ROWS = 10, 2  # of blocks, a bit each: the top of a picture holds numbers up to a million

# encoder, its options, pixel format. Two frames of three are B-frames where the codec has them, and groups of pictures
# are open where it can: pictures shown before a key frame may need the group before it.
_X264 = "no-scenecut=1:repeat-headers=1:bframes=2:b-adapt=0"
_X265 = "log-level=none:scenecut=0:repeat-headers=1:bframes=2:b-adapt=0"
ENCODERS: dict[str, tuple[str, dict[str, str], str]] = {
    "h264": ("libx264", {"preset": "veryfast", "x264-params": f"{_X264}:open-gop=0"}, "yuv420p"),
    "h264open": ("libx264", {"preset": "veryfast", "x264-params": f"{_X264}:open-gop=1"}, "yuv420p"),
    "h264fields": ("libx264", {"preset": "veryfast", "x264-params": f"{_X264}:tff=1"}, "yuv420p"),
    "h264refresh": ("libx264", {"preset": "veryfast", "x264-params": "intra-refresh=1:bframes=0"}, "yuv420p"),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": f"{_X265}:open-gop=0"}, "yuv420p"),
    "hevcopen": ("libx265", {"preset": "ultrafast", "x265-params": f"{_X265}:open-gop=1"}, "yuv420p"),
    "hevc10": ("libx265", {"preset": "ultrafast", "x265-params": f"{_X265}:open-gop=1"}, "yuv420p10le"),
    "mpeg1": ("mpeg1video", {"bf": "2", "qscale": "3"}, "yuv420p"),
    "mpeg2": ("mpeg2video", {"bf": "2", "qscale": "3"}, "yuv420p"),
    "mpeg4": ("mpeg4", {"bf": "2", "qscale": "3"}, "yuv420p"),
    "mpeg4plain": ("mpeg4", {"bf": "0", "qscale": "3"}, "yuv420p"),
    "vp8": ("libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "16", "b": "500k"}, "yuv420p"),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "1"}, "yuv420p"),
    "av1": ("libsvtav1", {"preset": "12", "svtav1-params": "keyint=12"}, "yuv420p"),
    "mjpeg": ("mjpeg", {"qscale": "3"}, "yuvj420p"),
    "flv1": ("flv", {"qscale": "3"}, "yuv420p"),
    "wmv2": ("wmv2", {"qscale": "3"}, "yuv420p"),
    "gif": ("gif", {}, "rgb8"),
}
# Containers that keep headers apart from the pictures. The others have them in the stream, before each key frame.
HEADERS_APART = ("mp4", "mov", "mkv", "webm", "flv", "wmv")


@dataclass(frozen=True)
class Piece:
    """A packet of a source.

    Attributes:
        number: of the frame in it.
        order: its place in decoding order.
    """

    number: int
    order: int
    is_key: bool
    data: bytes


@dataclass(frozen=True)
class Source:
    """A stream as encoded.

    Attributes:
        path: of the file that holds it. Copies take its stream as their template.
    """

    path: Path

    @cached_property
    def pieces(self) -> list[Piece]:
        """The packets in decoding order. A number is that of the picture, frame n being shown at n / 25 s."""
        with av.open(str(self.path)) as container:
            stream = container.streams.video[0]
            packets = [packet for packet in container.demux(stream) if packet.size]
            first = min(packet.pts for packet in packets)
            return [
                Piece(round((packet.pts - first) * stream.time_base * RATE), order, packet.is_keyframe, bytes(packet))
                for order, packet in enumerate(packets)
            ]

    @property
    def keys(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.is_key]


def encode_numbered(
    path: Path,
    codec: str,
    frame_count: int = FRAMES,
    *,
    times: Sequence[float] | None = None,
    shape: Fraction | None = None,
    size: tuple[int, int] = SIZE,
    gop: int = GOP,
    turns: int = 0,
    options: dict[str, str] | None = None,
) -> Path:
    """Encode frames 0, 1, ... at 25 a second, or at ``times`` in seconds.

    Args:
        codec: of ``ENCODERS``.
        turns: of each picture by 90 degrees to the left.
        shape: of a pixel, its width by its height.
        options: of the container.
    """
    encoder, codec_options, pix_fmt = ENCODERS[codec]
    unit = Fraction(1, RATE) if times is None else Fraction(1, 1000)
    with _scheduling_kept(), av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(encoder, rate=RATE, options=codec_options)
        stream.width, stream.height = size[::-1] if turns % 2 else size
        stream.pix_fmt, stream.codec_context.gop_size = pix_fmt, gop
        if shape is not None:
            stream.codec_context.sample_aspect_ratio = shape
        if times is not None:
            stream.codec_context.time_base = stream.time_base = unit
        for number, picture in enumerate(numbered_pictures(frame_count, *size)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.rot90(picture, turns)), format="rgb24")
            frame.pts = number if times is None else round(times[number] * 1000)
            frame.time_base = unit
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


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


@contextmanager
def _scheduling_kept() -> Iterator[None]:
    """Leave this process scheduled as it was.

    SVT-AV1 makes the thread that calls it a real-time one, where it runs as root. So would be all processes that this
    one starts later, and nothing else on the machine would run beside them.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)
