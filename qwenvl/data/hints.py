"""Hints about what the model sees: media that are shrunk a lot, and frames whose uneven times it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import Qwen3VLVideoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from qwenvl.data.options import PromptOptions
from qwenvl.data.prompt_length import MediaSizes, Size
from qwenvl.hint import Hint
from qwenvl.types import Record

DEFAULT_FACTOR = 28
"""Pixels of a side that a vision token covers, with Qwen2-VL and Qwen2.5-VL. 32 from Qwen3-VL on."""
SHRUNK = 4  # times fewer pixels than in the file
MORE = 4  # times the pixels that the hint suggests: twice as much of each side


def size_hints(media: MediaSizes, options: PromptOptions, processor: Any = None) -> list[Hint]:
    """Name media that the default bounds shrink below a quarter of their pixels, with the flag that shows more.

    Explicit bounds on pixels, of the flags or of a record, are not questioned.

    Args:
        processor: of the model. None: that of Qwen2.5-VL.
    """
    video = processor and processor.video_processor
    factor = video.patch_size * video.merge_size if video else DEFAULT_FACTOR
    found = []
    if options.video_max_frame_pixels == PromptOptions.video_max_frame_pixels:
        bounds = options.video_min_frame_pixels, options.video_max_frame_pixels
        named = "clips", "--video_max_frame_pixels", "a pair of frames"
        clips = zip(media.clips, media.metas, strict=True)
        found += [_size_hint(size, factor, bounds, *named) for size, meta in clips if not (meta and meta.max_pixels)]
    if options.max_pixels == PromptOptions.max_pixels:
        bounds = options.min_pixels, options.max_pixels
        found += [_size_hint(size, factor, bounds, "images", "--max_pixels", "an image") for size in media.images]
    return list(dict.fromkeys(hint for hint in found if hint))


def _size_hint(size: Size, factor: int, bounds: tuple[int, int], what: str, flag: str, unit: str) -> Hint | None:
    height, width = smart_resize(*size, factor, *bounds)
    if height * width * SHRUNK >= size[0] * size[1]:
        return None
    larger = smart_resize(*size, factor, bounds[0], MORE * bounds[1])
    tokens, more = height * width // factor**2, larger[0] * larger[1] // factor**2
    return Hint(
        "seen small",
        f"{what} of {size[1]} x {size[0]} pixels are seen at {width} x {height}; {flag} {MORE * bounds[1]} shows "
        f"{larger[1]} x {larger[0]}, for {more} tokens {unit} in place of {tokens}",
    )


def uneven_hints(record: Record, sampler: str, processor: Any) -> Iterator[Hint]:
    """Warn if the frames of a record's clips are unevenly spaced and the model has no timestamps.

    Args:
        sampler: ``frame_sampler`` of the data set.
        processor: of the model, or None if unknown. That of Qwen3-VL and Qwen3.5 writes timestamps into the prompt.
    """
    if processor is None or isinstance(processor.video_processor, Qwen3VLVideoProcessor):
        return
    several = any(meta is not None and len(meta.spans or ()) > 1 for meta in record.clip_meta)
    if several or (record.videos and sampler == "change"):
        why = "several spans of a clip" if several else "--frame_sampler change"
        yield Hint(
            "times not told",
            f"{why}: frames do not lie evenly, and this model is not told when each is shown (Qwen2.5-VL is told their "
            "mean distance, Qwen2-VL their order); for questions about seconds take Qwen3-VL or Qwen3.5",
        )
