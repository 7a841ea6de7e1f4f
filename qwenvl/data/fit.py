"""``--fit_frames``: show less of a prompt that is too long, until it fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qwenvl.data.lengths import Ruler
from qwenvl.types import Fitted, Sample

PIXEL_STEPS = 64
Times = Sequence[Sequence[float]]
"""For each clip the times of its frames, in seconds."""


@dataclass(frozen=True)
class Fitter:
    """Finds how many frames, and then how many pixels, a prompt may have.

    First the frames: of every clip at most as many as the largest number with which the prompt fits, spread anew over
    the clip, never fewer than its lower bound. Where even that is too long, the pixels: of every frame and image at
    most the largest share, in 64ths, with which it fits, never fewer than their lower bounds.

    Attributes:
        max_prompt_length: in tokens, vision tokens included.
    """

    ruler: Ruler
    max_prompt_length: int

    def __call__(self, sample: Sample, times_with: Callable[[int], Times]) -> tuple[Fitted, int] | None:
        """What is lowered, and the most frames of a clip; None where nothing need or can be.

        What is left may still be too long: it is then the least that the bounds allow.

        Args:
            times_with: the times of the frames of each clip with at most so many of them.
        """
        times = [clip.info.times for clip in sample.videos]
        if not (sample.videos or sample.images) or self._length(sample, times) <= self.max_prompt_length:
            return None
        planned = [len(each) for each in times]
        most, share = max(planned, default=0), 1.0
        fitting = self._fitting(range(1, most + 1), lambda cap: self._length(sample, times_with(cap)))
        most = max(1, fitting)
        if sample.videos:
            times = times_with(most)
        if not fitting:
            steps = range(1, PIXEL_STEPS + 1)
            fitting = self._fitting(steps, lambda step: self._length(sample, times, step / PIXEL_STEPS))
            share = max(1, fitting) / PIXEL_STEPS
        return Fitted(tuple((before, len(after)) for before, after in zip(planned, times, strict=True)), share), most

    def _fitting(self, candidates: range, length: Callable[[int], int]) -> int:
        """How many of the rising candidates fit."""
        return bisect_right(candidates, self.max_prompt_length, key=length)

    def _length(self, sample: Sample, times: Times, share: float = 1.0) -> int:
        metas = sample.record.clip_meta
        sizes = [
            self.ruler.frame_size(clip.frames.shape[-2:], meta, share)
            for clip, meta in zip(sample.videos, metas, strict=True)
        ]
        images = [self.ruler.image_size(image.shape[-2:], share) for image in sample.images]
        return self.ruler.length(sample.chat, list(zip(times, sizes, strict=True)), images)
