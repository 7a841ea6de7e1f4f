"""The bound on the length of prompts, and what is shown less to keep it (``--fit_frames``)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from qwenvl.data.errors import LongPromptError, place_of
from qwenvl.data.prompt_length import MediaSizes, PromptLength, Ruler, Size
from qwenvl.types import BadSample, Fitted, Record

PIXEL_STEPS = 64  # a finer share would change few sizes: they are multiples of 28 or 32 pixels
Times = Sequence[Sequence[float]]
"""For each clip the times of its frames, in seconds."""


@dataclass(frozen=True)
class Lowered:
    """What is shown less of a prompt.

    Attributes:
        frames: at most so many frames of each clip, or None for as many as are planned.
        share: of the pixels of each frame and image, how many are kept at most.
    """

    frames: int | None = None
    share: float = 1.0


@dataclass(frozen=True)
class PromptLimit:
    """Finds out whether a prompt is too long, and how many frames and pixels it may have.

    With ``fit_frames`` the frames are lowered first. Every clip has at most the largest number of frames with which the
    prompt fits, spread anew over the clip, and never fewer than its lower bound. Where even that is too long, the
    pixels are lowered too. Every frame and image keeps at most the largest share of its pixels, in 64ths, with which
    the prompt fits, and never fewer than its lower bound.

    Attributes:
        max_prompt_length: in tokens, vision tokens included.
        on_long_prompt: what becomes of a prompt that stays too long, an error or a ``BadSample``.
        fit_frames: lower frames and pixels of prompts that are too long.
        lock: held while tokens are counted, where several threads share the tokenizer.
    """

    ruler: Ruler
    max_prompt_length: int
    on_long_prompt: Literal["error", "skip"] = "error"
    fit_frames: bool = False
    lock: AbstractContextManager = field(default_factory=nullcontext)

    def settle(
        self, record: Record, chat: list[dict[str, Any]], media: MediaSizes, times_with: Callable[[int | None], Times]
    ) -> Lowered | None:
        """Return what has to be lowered, or None where the prompt fits as it is.

        Args:
            times_with: the times of the frames of each clip, with at most so many of them.

        Raises:
            LongPromptError: the prompt is too long, and nothing may be lowered, or not enough.
        """
        with self.lock:
            times, sizes = times_with(None), self.ruler.sizes(media)
            length = self._length(chat, times, sizes)
            if length.tokens <= self.max_prompt_length:
                return None
            if not self.fit_frames or not sizes:
                raise LongPromptError(self.problem(record, length))
            caps = range(1, max(map(len, times), default=0) + 1)
            fitting = self._fitting(caps, lambda cap: self._length(chat, times_with(cap), sizes))
            lowered = Lowered(max(1, fitting))
            if fitting:
                return lowered
            times = times_with(lowered.frames)
            shares = [step / PIXEL_STEPS for step in range(1, PIXEL_STEPS + 1)]
            fitting = self._fitting(shares, lambda share: self._length(chat, times, self.ruler.sizes(media, share)))
            if not fitting:
                least = self._length(chat, times, self.ruler.sizes(media, shares[0]))
                raise LongPromptError(self.problem(record, least, lowered=True))
            return Lowered(lowered.frames, shares[fitting - 1])

    def fitted(self, media: MediaSizes, planned: Times, shown: Times, lowered: Lowered) -> Fitted:
        """Return what was lowered as rollouts record it: numbers of frames, and sizes, before and after."""
        sizes = zip(self.ruler.sizes(media), self.ruler.sizes(media, lowered.share), strict=True)
        return Fitted(tuple(zip(map(len, planned), map(len, shown), strict=True)), tuple(sizes))

    def problem(self, record: Record, length: PromptLength, lowered: bool = False) -> str:
        """Return what is wrong with a prompt of so many tokens, for people."""
        least = " even with the fewest frames and pixels," if lowered else ""
        return (
            f"{place_of(record)}: the prompt has {length.tokens} tokens, {length.vision} of them vision,"
            f"{least} but max_prompt_length is {self.max_prompt_length}"
        )

    def left_out(self, record: Record, problem: str) -> BadSample:
        """Return the sample that stands for a prompt that is too long.

        Raises:
            LongPromptError: with ``on_long_prompt`` "error", saying what to do.
        """
        if self.on_long_prompt == "error":
            raise LongPromptError(
                f"{problem}; raise it, show less (--video_max_frames, --video_max_frame_pixels, --max_pixels, or the "
                "bounds in `meta`), or pass --on_long_prompt skip"
            )
        return BadSample(record, problem)

    def _fitting(self, candidates: Sequence[Any], length: Callable[[Any], PromptLength]) -> int:
        """How many of the candidates fit, the smallest being the first."""
        return bisect_right(candidates, self.max_prompt_length, key=lambda candidate: length(candidate).tokens)

    def _length(self, chat: list[dict[str, Any]], times: Times, sizes: Sequence[Size]) -> PromptLength:
        clips = list(zip(times, sizes, strict=False))  # the images' sizes come after the clips'
        return self.ruler.length(chat, clips, sizes[len(clips) :])


def what_was_lowered(fitted: Fitted) -> str:
    """Return what was lowered in words.

    Example:
        >>> what_was_lowered(Fitted(frames=((16, 10),), sizes=(((112, 168), (84, 168)),)))
        '10 of 16 frames, 168 x 84 pixels in place of 168 x 112'
    """
    frames = [f"{after} of {before} frames" for before, after in fitted.frames if after != before]
    sizes = ["{3} x {2} pixels in place of {1} x {0}".format(*b, *a) for b, a in fitted.sizes if a != b]
    return ", ".join(frames + sizes)
