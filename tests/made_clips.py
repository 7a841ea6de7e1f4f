"""Clips whose frames carry their own number, so that a wrong frame is seen and not guessed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

BITS, BLOCK = 8, 16
SOUND_RATE = 16_000  # samples per second
SOUND_FRAME = 1024  # samples that AAC encodes together


def paint_number(number: int, width: int, height: int) -> np.ndarray:
    """H x W x 3: the lowest 8 bits of ``number`` as two rows of four white or black blocks in the top left corner."""
    picture = np.full((height, width, 3), 90, np.uint8)
    for bit in range(BITS):
        row, column = divmod(bit, 4)
        value = 235 if number >> bit & 1 else 16
        picture[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK] = value
    return picture


def painted_number(frame) -> int:
    """The number in a frame, 3 x H x W or H x W x 3."""
    picture = np.asarray(frame)
    if picture.shape[0] == 3:
        picture = picture.transpose(1, 2, 0)
    centres = [divmod(bit, 4) for bit in range(BITS)]
    bits = [picture[r * BLOCK + BLOCK // 2, c * BLOCK + BLOCK // 2].mean() > 126 for r, c in centres]
    return sum(int(value) << bit for bit, value in enumerate(bits))


def write_clip(
    path: Path,
    frame_count: int = 25,
    *,
    fps: int = 10,
    codec: str = "libx264",
    size: tuple[int, int] = (64, 64),
    times: Sequence[float] | None = None,
    gop: int = 12,
    pix_fmt: str = "yuv420p",
    container_options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
    sound_seconds: float = 0.0,
) -> Path:
    """Encode frames 0, 1, ... at ``fps``, or at ``times`` in seconds (to the millisecond).

    Args:
        sound_seconds: of silence from the beginning of the file. 0: it has no sound.
    """
    import av  # here, so that tests without clips run where it is missing

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=fps, options=codec_options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.gop_size = gop
        sound = container.add_stream("aac", rate=SOUND_RATE, layout="mono") if sound_seconds else None
        if times is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for number in range(frame_count):
            frame = av.VideoFrame.from_ndarray(paint_number(number, *size), format="rgb24")
            frame.pts = number if times is None else round(times[number] * 1000)
            if times is not None:
                frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            silence = np.zeros((1, SOUND_FRAME), np.float32)
            for start in range(0, round(sound_seconds * SOUND_RATE), SOUND_FRAME):
                part = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                part.sample_rate = SOUND_RATE
                part.pts = start
                container.mux(sound.encode(part))
            container.mux(sound.encode())
    return path


def slow_gif(path: Path, blocks: int = 10_000_000) -> Path:
    """Write a picture behind a comment in pieces of a byte, of which Pillow reads some two millions in a second.

    Before release 13 it copied the whole comment for each of them.
    """
    from PIL import Image

    Image.new("P", (16, 16)).save(path)
    data = path.read_bytes()
    at = data.index(b",")  # where the picture begins
    path.write_bytes(data[:at] + b"!\xfe" + b"\x01a" * blocks + b"\0" + data[at:])
    return path


@pytest.fixture
def make_clip(tmp_path) -> Callable[..., Path]:
    """``make_clip("a.mp4", 25, fps=10, ...)`` -> path of a clip with painted frame numbers under ``tmp_path``."""
    return lambda name="clip.mp4", *args, **options: write_clip(tmp_path / name, *args, **options)


@pytest.fixture
def cut_clip() -> Callable[..., Path]:
    """``cut_clip(path, first)`` -> path of a stream copy that begins with frame ``first``."""

    def cut(source: Path, first: int, fps: int = 10) -> Path:
        from scripts.clips.copies import copy_from

        copy_from(source, source.with_name("cut.mp4"), first / fps)
        return source.with_name("cut.mp4")

    return cut


@pytest.fixture
def number_of() -> Callable[..., int]:
    """Reads the number that is painted on a frame."""
    return painted_number


@pytest.fixture
def make_row() -> Callable[..., dict]:
    """``make_row(prompt="Which?", solution="<answer>(1) a</answer>", **keys)`` -> a row of the conversations format."""

    def make(prompt="Which steps?", solution="<answer>(1) take</answer>", system=None, **keys) -> dict:
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": solution}]
        if system is not None:
            turns.insert(0, {"from": "system", "value": system})
        return {"conversations": turns, **keys}

    return make


@pytest.fixture
def write_rows(tmp_path) -> Callable[..., Path]:
    """``write_rows([row, ...], "data.json")`` -> path of an annotation file under ``tmp_path``."""

    def write(rows: list, name: str = "data.json") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            path.write_text(json.dumps(rows), encoding="utf-8")
        return path

    return write
