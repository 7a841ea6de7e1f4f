"""Pictures that the model sees much smaller than they are, with the flag that shows more and its cost in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from qwenvl.data.options import PromptOptions
from qwenvl.data.prompt_length import MediaSizes, Size
from qwenvl.hint import Hint

FACTOR = 28
"""Pixels of a side that a vision token stands for, with Qwen2-VL and Qwen2.5-VL. 32 from Qwen3-VL on."""
TOO_SMALL = 4  # of so many pixels one is left
MORE = 4  # times the pixels: twice as much of each side


@dataclass(frozen=True)
class SeenSizes:
    """Says which media are shrunk by the default bounds. Bounds that somebody has set are taken as meant.

    Attributes:
        options: with the bounds on pixels.
        factor: pixels of a side that a token stands for.
    """

    options: PromptOptions
    factor: int = FACTOR

    @classmethod
    def of(cls, options: PromptOptions, processor: Any = None) -> SeenSizes:
        """Those of a processor, or of Qwen2.5-VL without one."""
        if processor is None:
            return cls(options)
        return cls(options, processor.video_processor.patch_size * processor.video_processor.merge_size)

    def hints(self, media: MediaSizes) -> list[Hint]:
        """What is shrunk to less than a quarter of its pixels."""
        options, found = self.options, []
        if options.video_max_frame_pixels == PromptOptions.video_max_frame_pixels:
            bounds = options.video_min_frame_pixels, options.video_max_frame_pixels
            named = "clips", "--video_max_frame_pixels", "a pair of frames"
            clips = zip(media.clips, media.metas, strict=True)
            found += [self._hint(size, bounds, *named) for size, meta in clips if not (meta and meta.max_pixels)]
        if options.max_pixels == PromptOptions.max_pixels:
            bounds = options.min_pixels, options.max_pixels
            found += [self._hint(size, bounds, "images", "--max_pixels", "an image") for size in media.images]
        return list(dict.fromkeys(hint for hint in found if hint))

    def _hint(self, size: Size, bounds: tuple[int, int], what: str, flag: str, unit: str) -> Hint | None:
        height, width = smart_resize(*size, self.factor, *bounds)
        if height * width * TOO_SMALL >= size[0] * size[1]:
            return None
        larger = smart_resize(*size, self.factor, bounds[0], MORE * bounds[1])
        tokens, more = height * width // self.factor**2, larger[0] * larger[1] // self.factor**2
        return Hint(
            "seen small",
            f"{what} of {size[1]} x {size[0]} pixels are seen at {width} x {height}; {flag} {MORE * bounds[1]} shows "
            f"{larger[1]} x {larger[0]}, for {more} tokens {unit} in place of {tokens}",
        )
