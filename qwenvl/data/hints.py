"""Hints about what the model sees: media that are shrunk a lot, and clips with few, black, equal or blurred frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from qwenvl.data.frames import FRAMES_PER_PATCH
from qwenvl.data.library_rules import frame_limit, frame_size_by_library
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import MediaSizes, Size, factor_of
from qwenvl.types import ClipMeta, FrameInfo, Hint, LibrarySize, VideoClip

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
        by_flags = [size for size, meta in clips if meta is None or not (meta.max_pixels or meta.size)]
        found += [_size_hint(size, factor, bounds, *named) for size in by_flags]
    if options.max_pixels == PromptOptions.max_pixels:
        bounds = options.min_pixels, options.max_pixels
        stated = media.image_sizes or (None,) * len(media.images)
        images = [size for size, own in zip(media.images, stated, strict=True) if own is None]
        found += [_size_hint(size, factor, bounds, "images", "--max_pixels", "an image") for size in images]
    return list(dict.fromkeys(hint for hint in found if hint))


def setting_hints(media: MediaSizes, processor: Any = None) -> list[Hint]:
    """Name sizes that rows ask for and ``qwen_vl_utils`` makes something else of.

    Args:
        processor: of the model. None: that of Qwen2.5-VL.
    """
    factor = factor_of(processor.video_processor) if processor else DEFAULT_FACTOR
    wanted: list[tuple[LibrarySize, int]] = []
    for meta, info in zip(media.metas, media.infos, strict=False):  # sizes alone come without infos
        if meta is not None and meta.size is not None:
            wanted.append((meta.size, len(info.indices)))
    found = [hint for size, frames in wanted if (hint := _limit_hint(size, factor, frames)) is not None]
    for size in (*(size for size, _ in wanted), *filter(None, media.image_sizes)):
        asked = size.resized_height, size.resized_width
        made = frame_size_by_library((1, 1), size, factor, (1, 1), FRAMES_PER_PATCH) if all(asked) else asked
        if made != asked:
            found.append(
                Hint(
                    "frame settings",
                    f"resized_height {asked[0]} and resized_width {asked[1]} become {made[0]} and {made[1]}: sides are "
                    f"multiples of {factor}, and a picture has at least 4 vision tokens",
                )
            )
    for meta, info in zip(media.metas, media.infos, strict=False):
        count = meta and meta.count
        if count and count.beside_turns and count.nframes is not None and len(info.indices) < count.nframes - 1:
            found.append(
                Hint(
                    "frame settings",
                    "nframes beside the turns is the number of all frames of the clip: it is taken for a note about "
                    "the file and changes nothing; in a typed part it takes all frames; --columns nframes=NAME renames "
                    "it",
                )
            )
    return list(dict.fromkeys(found))


def _limit_hint(size: LibrarySize, factor: int, frames: int) -> Hint | None:
    """A hint where ``max_pixels`` is above what the package allows a frame of a clip with so many frames."""
    if size.max_pixels is None or size.resized_height is not None:
        return None
    limit = frame_limit(size, size.min_pixels or 1, factor, frames)
    if size.max_pixels <= limit:
        return None
    return Hint(
        "frame settings",
        f"max_pixels {size.max_pixels} of a frame is lowered to {limit:.0f}, as in qwen_vl_utils: the most for "
        f"{frames} frames of a clip; meta.max_pixels has no such limit",
    )


def _size_hint(size: Size, factor: int, bounds: tuple[int, int], what: str, flag: str, unit: str) -> Hint | None:
    height, width = smart_resize(*size, factor, *bounds)
    if height * width * SHRUNK >= size[0] * size[1]:
        return None
    larger = smart_resize(*size, factor, bounds[0], MORE * bounds[1])
    tokens = height * width // factor**2
    more = larger[0] * larger[1] // factor**2
    return Hint(
        "seen small",
        f"{what} of {size[1]} x {size[0]} pixels are seen at {width} x {height}; {flag} {MORE * bounds[1]} shows "
        f"{larger[1]} x {larger[0]}, for {more} tokens {unit} in place of {tokens}",
    )


BLACK = 16
"""Of 255: the mean of a frame below which it is black. Video decodes black to 0 or a little above."""
STILL = 0.5
"""Of 255: the mean difference of two frames below which they are the same but for the noise of compression."""
BLURRED = 0.002
"""The share of a frame's variance that half its size loses, below which it is blurred.

Seen at 112 to 448 pixels, sharp frames of a workplace lose 0.03 to 0.13, and 0.0003 to 0.001 behind a Gaussian blur of
2 pixels.
"""
PLAIN = 8.0
"""Of 255: the standard deviation of a frame below which it shows too little to say whether it is sharp."""


def picture_hints(clips: Iterable[VideoClip]) -> list[Hint]:
    """Name clips that show black frames, the same frame again and again, or nothing but blurred frames.

    Args:
        clips: of one record, decoded.
    """
    found = []
    for clip in clips:
        means = clip.frames.float().mean((1, 2, 3))
        spread = clip.frames.float().std((1, 2, 3))
        # A dark scene has something in it: a lamp, an edge.
        black = (means < BLACK) & (spread < BLACK / 2)
        if black.all():
            found.append(Hint("black frames", "clips are black from their first shown frame to their last"))
        elif black[-1] or black[0]:
            end = "end" if black[-1] else "begin"
            name = "video_end" if black[-1] else "video_start"
            found.append(Hint("black frames", f"clips {end} in a black frame: `{name}` in their `meta` leaves it out"))
        elif black.any():
            found.append(Hint("black frames", "clips have black frames between others"))
        elif len(set(clip.info.indices)) > 1 and _moves(clip.frames) < STILL:
            found.append(Hint("frozen", "clips show the same frame from beginning to end: did the recording hang?"))
        if not black.any() and _is_blurred(clip.frames):
            found.append(
                Hint(
                    "blurred",
                    "clips are blurred in every shown frame, which has no more detail than one of half its size: look "
                    "at them with `qwenvl preview`",
                )
            )
    return list(dict.fromkeys(found))


def _moves(frames: Tensor) -> float:
    """The largest mean difference of a frame and the one before it."""
    shown = frames.float()
    return float((shown[1:] - shown[:-1]).abs().mean((1, 2, 3)).max())


def _is_blurred(frames: Tensor) -> bool:
    """Whether F x 3 x H x W frames would all lose nothing at half their size."""
    grey = frames.float().mean(1, keepdim=True)
    even = grey[..., : grey.shape[-2] // 2 * 2, : grey.shape[-1] // 2 * 2]
    spread = even.std((1, 2, 3))
    if even.numel() == 0 or bool((spread < PLAIN).any()):
        return False
    halved = F.interpolate(F.avg_pool2d(even, 2), scale_factor=2, mode="bilinear", align_corners=False)
    lost = (even - halved).square().mean((1, 2, 3)) / spread.square()
    return bool((lost < BLURRED).all())


def clip_lengths(infos: Iterable[FrameInfo], metas: Iterable[ClipMeta | None]) -> list[tuple[float, int]]:
    """Seconds and frames of each clip whose record does not say how many are shown, for ``few_frames``."""
    return [
        (info.times[-1] - info.times[0], info.indices[-1] - info.indices[0] + 1)
        for info, meta in zip(infos, metas, strict=True)
        if meta is None or not (meta.min_frames or meta.max_frames or meta.video_fps or meta.count)
    ]


def few_frames(clips: Sequence[tuple[float, int]], options: FrameOptions) -> list[Hint]:
    """Name --video_fps where at least half of the clips are so short that --video_min_frames decides on their frames.

    Args:
        clips: seconds and frames of each.
    """
    rate, (low, high) = options.video_fps or 1 / options.base_interval, options.frame_bounds
    short = sorted(clip for clip in clips if clip[0] > 0 and round(clip[0] * rate) < low)
    if options.counts or not short or 2 * len(short) < len(clips):
        return []
    seconds, frames = short[len(short) // 2]
    fps = min(math.ceil(high / seconds), int(frames / seconds))
    shown = min(max(round(seconds * fps), low), high, frames)
    if shown - shown % 2 <= low:
        return []
    return [
        Hint(
            "few frames",
            f"{len(short):,} of {len(clips):,} clips are so short that they show {low} frames (--video_min_frames): "
            f"--base_interval and --video_max_frames change nothing there; --video_fps {fps} shows {shown - shown % 2} "
            f"of a clip of {seconds:.1f} s",
        )
    ]
