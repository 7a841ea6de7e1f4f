"""``--fit_frames``: show less of a prompt that is too long, until it fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.data.lengths import Ruler, Size
from qwenvl.types import Fitted, Sample

PIXEL_STEPS = 64  # a finer share would change few sizes: they are multiples of 28 or 32 pixels
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
        times: Sequence[Sequence[float]] = [clip.info.times for clip in sample.videos]
        sizes = self.ruler.sizes(sample)
        if not sizes or self._length(sample, times, sizes) <= self.max_prompt_length:
            return None
        planned = [len(each) for each in times]
        caps = range(1, max(planned, default=0) + 1)
        fitting = self._fitting(caps, lambda cap: self._length(sample, times_with(cap), sizes))
        most, lowered = max(1, fitting), sizes
        if planned:
            times = times_with(most)
        if not fitting:
            shrunk = [self.ruler.sizes(sample, step / PIXEL_STEPS) for step in range(1, PIXEL_STEPS + 1)]
            fitting = self._fitting(shrunk, lambda smaller: self._length(sample, times, smaller))
            lowered = shrunk[max(0, fitting - 1)]
        frames = zip(planned, map(len, times), strict=True)
        return Fitted(tuple(frames), tuple(zip(sizes, lowered, strict=True))), most

    def _fitting(self, candidates: Sequence[Any], length: Callable[[Any], int]) -> int:
        """How many of the candidates fit, the smallest being the first."""
        return bisect_right(candidates, self.max_prompt_length, key=length)

    def _length(self, sample: Sample, times: Times, sizes: Sequence[Size]) -> int:
        clips = list(zip(times, sizes, strict=False))  # the images' sizes come after the clips'
        return self.ruler.length(sample.chat, clips, sizes[len(clips) :])


def what_was_lowered(fitted: Fitted) -> str:
    """In words.

    Example:
        >>> what_was_lowered(Fitted(frames=((16, 10),), sizes=(((112, 168), (84, 168)),)))
        '10 of 16 frames, 168 x 84 pixels in place of 168 x 112'
    """
    frames = [f"{after} of {before} frames" for before, after in fitted.frames if after != before]
    sizes = ["{3} x {2} pixels in place of {1} x {0}".format(*b, *a) for b, a in fitted.sizes if a != b]
    return ", ".join(frames + sizes)
