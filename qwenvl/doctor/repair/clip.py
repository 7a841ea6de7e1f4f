"""Makes a new file of a clip whose own says something else than it shows: of its packets, or else of its pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip.container import open_video
from qwenvl.data.media.clip.reader import ClipReader

UNITS = 90_000  # in a second: of the times in encoded files
QUALITY = "10"  # constant rate factor of x264: hardly to be told from the original
MAX_TIME_ERROR = 1.5e-3  # seconds: some containers have milliseconds
MAX_DIFFERENCE = 4.0  # of 255, the mean over a frame: colours lose a little when they are encoded again


@dataclass(frozen=True)
class Repaired:
    """What became of a clip.

    Attributes:
        path: of the file to use: the new one, or the old one where nothing was wrong with it.
        how: in words. Empty where nothing was wrong.
    """

    path: str
    how: str = ""


def repair_clip(path: str, target: Path) -> Repaired:
    """Write a new file of a clip, unless it is right as it is.

    The new file has the frames that a player shows of the old one, at the same times. It is read back and compared,
    frame by frame.

    Args:
        target: of the new file, without its suffix.

    Raises:
        BadMediaError: the clip is damaged, or holds nothing that can be shown, or no file could be made of it.
    """
    try:
        with ClipReader(path, strict=True) as clip:
            clip.check_all()
            notes = clip.notes
    except BadMediaError as error:
        if error.kind != "cut short":
            raise
        notes = (str(error).removeprefix(f"{path}: "),)
    if not notes:
        return Repaired(path)
    with ClipReader(path, may_be_cut=True) as clip:
        count = _frames_until_damage(path, clip.frame_count)
        if not count:
            raise BadMediaError(path, f"{notes[0]}, and none of its frames can be decoded", "cut short")
        for how, write in (("copied", _copy), ("encoded again", _encode)):
            new = target.with_suffix(".mkv" if how == "copied" else ".mp4")
            with suppress(BadMediaError, av.FFmpegError, ValueError):
                write(clip, count, new)
                if _same(clip, count, str(new), exact=how == "copied"):
                    return Repaired(str(new), f"{how} with {count} frames: {'; '.join(notes)}")
            new.unlink(missing_ok=True)
    raise BadMediaError(path, f"{notes[0]}, and no file that shows the same could be made of it")


def _frames_until_damage(path: str, frame_count: int) -> int:
    """How many frames can be decoded from the beginning without an error, at most ``frame_count``."""
    count = 0
    with ClipReader(path, may_be_cut=True) as clip, suppress(BadMediaError):
        for _ in clip.pictures():
            count += 1
    return min(count, frame_count)


def _copy(clip: ClipReader, count: int, new: Path) -> None:
    """Copy the packets of the frames that are shown, from the first key frame on."""
    shown = set(clip.stream_times[:count])
    container, stream = open_video(clip.path)
    with closing(container), av.open(str(new), "w", format="matroska") as writer:
        copy = writer.add_stream_from_template(stream, opaque=True)
        began = False
        for packet in container.demux(stream):
            began = began or (packet.is_keyframe and packet.pts in shown)
            if began and packet.size and packet.pts in shown:
                packet.stream = copy
                writer.mux(packet)


def _encode(clip: ClipReader, count: int, new: Path) -> None:
    """Encode the pictures upright and in square pixels, at their own times."""
    with av.open(str(new), "w") as writer:
        stream = writer.add_stream("libx264", rate=25, options={"crf": QUALITY, "preset": "medium"})
        stream.codec_context.time_base = stream.time_base = Fraction(1, UNITS)
        stream.codec_context.thread_count = 1
        for number, picture in enumerate(_first(clip, count)):
            height, width = picture.shape[:2]
            if number == 0:
                stream.width, stream.height = width, height
                stream.pix_fmt = "yuv444p" if height % 2 or width % 2 else "yuv420p"
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = round(clip.frame_times[number] * UNITS), Fraction(1, UNITS)
            writer.mux(stream.encode(frame))
        writer.mux(stream.encode())


def _same(clip: ClipReader, count: int, new: str, exact: bool) -> bool:
    """Whether a new file shows the first frames of a clip at their times, and says nothing wrong."""
    with ClipReader(new, strict=True) as other:
        times = np.array(clip.frame_times[:count])
        if other.notes or other.frame_count != count:
            return False
        if not np.allclose(other.frame_times, times, rtol=0, atol=MAX_TIME_ERROR):
            return False
        most = 0.0 if exact else MAX_DIFFERENCE
        return all(_difference(*pair) <= most for pair in zip(_first(clip, count), other.pictures(), strict=True))


def _first(clip: ClipReader, count: int) -> Iterator[np.ndarray]:
    return islice(clip.pictures(), count)


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape:
        return 255.0
    return float(np.abs(one.astype(np.int16) - other).mean())
