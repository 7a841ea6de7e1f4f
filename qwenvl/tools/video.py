"""What a tool sees of a clip: frames of a span, single pictures, and parts of these."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from torch import Tensor

from qwenvl.data.dataset import GRPODataset
from qwenvl.data.frames import FramePlan, Timeline, made_even, uniform_indices
from qwenvl.data.media.resize import resize
from qwenvl.tools.options import ToolOptions
from qwenvl.types import ClipMeta, Record, VideoClip

THOUSANDTHS = 1000
"""What a box is written in: thousandths of the width and of the height, as Qwen-VL writes places in pictures."""


class ToolError(ValueError):
    """A call that cannot be answered. The model reads the message, and goes on."""


@dataclass(frozen=True)
class Still:
    """A picture that a tool shows.

    Attributes:
        pixels: 3 x H x W, uint8.
        resample: the interpolation by which it is enlarged, by its number in Pillow.
    """

    pixels: Tensor
    resample: int

    def crop(self, x1: float, y1: float, x2: float, y2: float) -> Still:
        """A part of the picture, enlarged until it has as many pixels as the whole.

        Args:
            x1, y1, x2, y2: the corners of the part, in thousandths of width and height.

        Raises:
            ToolError: they bound no part of the picture.
        """
        if not (0 <= x1 < x2 <= THOUSANDTHS and 0 <= y1 < y2 <= THOUSANDTHS):
            raise ToolError(f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} is empty or not within 0 to {THOUSANDTHS}")
        height, width = self.pixels.shape[1:]
        left, top = int(x1 * width / THOUSANDTHS), int(y1 * height / THOUSANDTHS)
        right, bottom = math.ceil(x2 * width / THOUSANDTHS), math.ceil(y2 * height / THOUSANDTHS)
        part = self.pixels[:, top:bottom, left:right]
        scale = math.sqrt(height * width / (part.shape[1] * part.shape[2]))
        size = max(1, round(part.shape[1] * scale)), max(1, round(part.shape[2] * scale))
        return replace(self, pixels=resize(part, size, self))


@dataclass(frozen=True)
class Video:
    """The first clip of a prompt, as tools see it. Times are those of the file, in seconds.

    Attributes:
        dataset: opens and decodes clips as those of prompts.
        record: whose clip it is.
        options: how many frames a look shows.
        elsewhere: show another span of the same length, for a control of an evaluation.
    """

    dataset: GRPODataset
    record: Record
    options: ToolOptions
    elsewhere: bool = False

    def frames(self, start: float, end: float) -> VideoClip:
        """The frames from ``start`` to ``end``, at the clip's size in prompts.

        Raises:
            ToolError: there is no such span in the clip.
            BadMediaError: the clip can't be read.
        """

        def plan(timeline: Timeline) -> FramePlan:
            first, stop = self._span(timeline, start, end)
            most, fps = self.options.look_frames, self.options.look_fps
            wanted = most if fps is None else min(max(round((end - start) * fps), 1), most)
            return FramePlan(tuple(made_even([first + index for index in uniform_indices(stop - first, wanted)])))

        return self.dataset.load_clip(self.record, 0, plan)

    def frame(self, time: float) -> Still:
        """The picture that is shown at a time, as it is in the file.

        Raises:
            ToolError: the clip is over by then.
            BadMediaError: the clip can't be read.
        """
        with self.dataset.open(self.record, 0) as clip:
            first, _ = self._span(Timeline(clip.frame_times, clip.duration), time, time)
            pixels = clip.read([first])[0]
        assert self.dataset.ruler is not None  # which sizes the clips of prompts
        return Still(pixels, self.dataset.ruler.resample)

    def _span(self, timeline: Timeline, start: float, end: float) -> tuple[int, int]:
        """The first frame shown in a span, and the one behind the last."""
        meta = self.record.clip_meta[0] or ClipMeta()
        times = timeline.times
        earliest = meta.video_start or 0.0
        latest = max(timeline.duration, times[-1]) if meta.video_end is None else meta.video_end
        if start > end:
            raise ToolError(f"start {start:g} is after end {end:g}")
        if end < earliest or start > latest:
            raise ToolError(f"{start:g} to {end:g} is not in the video, which goes from {earliest:g} to {latest:.3g}")
        if self.elsewhere:  # half of the clip away
            length, start = end - start, earliest + (start - earliest + (latest - earliest) / 2) % (latest - earliest)
            start = min(start, latest - length)
            end = start + length
        stop = bisect_right(times, min(end, latest))
        first = min(bisect_left(times, max(start, earliest)), max(stop - 1, 0))
        return first, max(stop, first + 1)
