"""Finds the largest number of frames with which a prompt fits a bound on its tokens (``--fit_frames``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from qwenvl.data.frames import FrameRule, Timeline
from qwenvl.data.media.shape import Size
from qwenvl.data.prompt_length import Ruler
from qwenvl.types import Record


class FrameFit(NamedTuple):
    """The bound on the frames of a prompt that makes it fit, and its effect.

    Attributes:
        most: the bound on the frames of each clip, None for no bound.
        frames: see ``Sample.fitted``.
    """

    most: int | None = None
    frames: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt whose tokens are counted for any bound on the frames of its clips, by the headers of its media.

    Attributes:
        epoch: the epoch, by which frames are drawn.
        timelines, sizes: for each clip its times, and its height and width in the file.
        stills: for each image the size that it is resized to.
    """

    record: Record
    chat: list[dict[str, Any]]
    epoch: int
    rule: FrameRule
    ruler: Ruler
    timelines: list[Timeline]
    sizes: list[Size]
    stills: list[Size]

    def times(self, most: int | None) -> list[list[float]]:
        """The times of the frames of each clip, at most ``most`` of a clip."""
        times = []
        for number, timeline in enumerate(self.timelines):
            plan = self.rule.plan(self.record, number, self.epoch, timeline, most)
            times.append([timeline.times[i] for i in plan.indices])
        return times

    def tokens(self, most: int | None) -> int:
        """The length of the prompt with at most ``most`` frames of each clip."""
        clips: list[tuple[list[float], Size]] = []
        for times, size, meta in zip(self.times(most), self.sizes, self.record.clip_meta, strict=True):
            # The size depends on the number of frames where they share the row's total_pixels.
            clips.append((times, self.ruler.frame_size(size, meta, len(times))))
        return self.ruler.length(self.chat, clips, self.stills).tokens

    def fit(self, longest: int) -> FrameFit:
        """The largest bound on the frames with which the prompt has at most ``longest`` tokens.

        No bound where the prompt fits as it is. The bound 1 also where it does not fit at all.
        """
        if self.tokens(None) <= longest:
            return FrameFit()
        free = [len(times) for times in self.times(None)]  # frames of each clip without a bound
        if self._shares_pixels:
            most = self._largest_by_trying(max(free), longest)
        else:
            most = self._largest_by_halves(max(free), longest)
        taken = [len(times) for times in self.times(most)]
        return FrameFit(most, tuple(zip(free, taken, strict=True)))

    @property
    def _shares_pixels(self) -> bool:
        """Whether the frames of a clip share ``total_pixels``, so that fewer of them are larger."""
        for meta in self.record.clip_meta:
            if meta is not None and meta.size is not None and meta.size.total_pixels is not None:
                return True
        return False

    def _largest_by_trying(self, frames: int, longest: int) -> int:
        """The largest fitting bound. Where frames share pixels, a prompt of more frames may be the shorter one."""
        for most in range(frames, 0, -1):
            if self.tokens(most) <= longest:
                return most
        return 1

    def _largest_by_halves(self, frames: int, longest: int) -> int:
        """A fitting bound of a prompt that grows with its frames: the largest one, but for segments drawn at random.

        There another bound draws other frames, and a larger one may happen to fit.
        """
        # Each probe renders and tokenizes the prompt, so search by halves.
        low = 0
        high = frames
        while low < high:
            middle = (low + high) // 2 + 1
            if self.tokens(middle) <= longest:
                low = middle
            else:
                high = middle - 1
        return max(1, low)
