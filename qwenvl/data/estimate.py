"""How long a prompt will be, from its text and the headers of its media: nothing is decoded.

The estimate only orders prompts, so it may be off: headers round durations, pictures may be turned, and media that
cannot be opened, or lie on another machine, count as their upper bounds. What is shown is decided when a clip is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import av

from qwenvl.data.chat import chat_messages
from qwenvl.data.dataset import GRPODataset, Timeline
from qwenvl.data.errors import BadMediaError, FramePlanError
from qwenvl.data.lengths import Ruler, Size
from qwenvl.data.media.clip_index import video_stream
from qwenvl.data.media.frame_folder import FrameFolder
from qwenvl.data.media.images import image_size
from qwenvl.data.media.mediafile import video_format
from qwenvl.data.media.source import frame_list
from qwenvl.types import ClipMeta, Record

HEADER_SECONDS = 5.0


class ClipHeader(NamedTuple):
    """What the header of a clip says: frames, seconds, and the size of a frame as stored."""

    frame_count: int
    duration: float
    size: Size


def read_header(path: str, frames_fps: float | None = None) -> ClipHeader:
    """The header of a file or of a folder or list of images.

    Raises:
        BadMediaError: there is none, or it does not say how long the clip is.
    """
    if os.path.isdir(path) or frame_list(path) is not None:
        folder = FrameFolder(path, frames_fps)
        return ClipHeader(folder.frame_count, folder.duration, image_size(folder.files[0]))
    try:
        with av.open(path, format=video_format(path), timeout=HEADER_SECONDS) as container:
            stream = video_stream(container, path)
            whole = Fraction(container.duration or 0, av.time_base)
            seconds = stream.duration * stream.time_base if stream.duration else whole
            count = stream.frames or round(seconds * (stream.average_rate or 0))
            size = stream.height, stream.width
    except (av.FFmpegError, OSError) as error:
        raise BadMediaError(path, f"its header can't be read: {error}") from None
    if count < 1 or seconds <= 0:
        raise BadMediaError(path, "its header does not say how long it is")
    return ClipHeader(count, float(seconds), size)


class EvenTimes(Sequence[float]):
    """``count`` times from 0 on, ``gap`` seconds apart, without a list of them."""

    def __init__(self, count: int, gap: float) -> None:
        self._numbers = range(count)
        self._gap = gap

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> float:
        return self._numbers[index] * self._gap


@dataclass(frozen=True)
class LengthEstimate:
    """Tokens of the prompt that a (pass, index) of a data set will have.

    Attributes:
        dataset: its records, and the rule by which frames are chosen.
        most: in tokens, where longer prompts are made to fit; else None.
    """

    dataset: GRPODataset
    ruler: Ruler
    most: int | None = None

    def __call__(self, key: tuple[int, int]) -> int:
        turn, index = key
        record = self.dataset.records[index]
        clips = [self._clip(record, number, turn) for number in range(len(record.videos))]
        images = [_image_size(path) or _square(self.ruler.image_bounds[1]) for path in record.images]
        length = self.ruler.length(chat_messages(record), clips, [self.ruler.image_size(size) for size in images])
        return length if self.most is None else min(length, self.most)

    def _clip(self, record: Record, number: int, turn: int) -> tuple[Sequence[float], Size]:
        """Times and size of the frames that will be shown."""
        meta = record.clip_meta[number]
        try:
            count, duration, size = read_header(record.videos[number], (meta or ClipMeta()).frames_fps)
            timeline = Timeline(EvenTimes(count, duration / count), duration)
            plan = self.dataset.plan(record, number, turn, timeline)
        except (BadMediaError, FramePlanError):
            most = self.dataset.options.video_max_frames
            return EvenTimes(most + most % 2, 1.0), self.ruler.frame_size(_square(self.ruler.frame_bounds[1]), meta)
        return [timeline.times[i] for i in plan.indices], self.ruler.frame_size(size, meta)


def _image_size(path: str) -> Size | None:
    try:
        return image_size(path)
    except BadMediaError:
        return None


def _square(pixels: int) -> Size:
    return round(pixels**0.5), round(pixels**0.5)
