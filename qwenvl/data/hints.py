"""Hints about what the model sees: media that are shrunk a lot, and clips with few, black, equal or blurred frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from qwenvl.data.frames import FRAMES_PER_PATCH
from qwenvl.data.library_rules import frame_limit, frame_size_by_library
from qwenvl.data.media.shape import Size
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import MediaSizes, factor_of
from qwenvl.types import ClipMeta, FrameInfo, Hint, LibrarySize, VideoClip

DEFAULT_FACTOR = 28
"""Pixels of a side that a vision token covers, with Qwen2-VL and Qwen2.5-VL. 32 from Qwen3-VL on."""
SHRUNK = 4  # times fewer pixels than in the file
MORE = 4  # times the pixels that the hint suggests: twice as much of each side


class MediumKind(NamedTuple):
    """The words of a hint about clips or about images.

    Attributes:
        flag: bounds their pixels from above.
        unit: the picture that the hint gives a number of tokens for.
    """

    name: str
    flag: str
    unit: str


def size_hints(media: MediaSizes, options: PromptOptions, processor: Any = None) -> list[Hint]:
    """Name media that the default bounds shrink below a quarter of their pixels, with the flag that shows more.

    Explicit bounds on pixels, of the flags or of a record, are not questioned.

    Args:
        processor: of the model. None: that of Qwen2.5-VL.
    """
    factor = factor_of(processor.video_processor) if processor else DEFAULT_FACTOR
    found: list[Hint | None] = []
    if options.video_max_frame_pixels == PromptOptions.video_max_frame_pixels:
        clips = MediumKind("clips", flag="--video_max_frame_pixels", unit="a pair of frames")
        bounds = (options.video_min_frame_pixels, options.video_max_frame_pixels)
        for size, meta in zip(media.clips, media.metas, strict=True):
            if meta is None or not (meta.max_pixels or meta.size):
                found.append(_size_hint(size, factor, bounds, clips))
    if options.max_pixels == PromptOptions.max_pixels:
        images = MediumKind("images", flag="--max_pixels", unit="an image")
        bounds = (options.min_pixels, options.max_pixels)
        stated = media.image_sizes or (None,) * len(media.images)
        for size, own in zip(media.images, stated, strict=True):
            if own is None:
                found.append(_size_hint(size, factor, bounds, images))
    return list(dict.fromkeys(hint for hint in found if hint))


def setting_hints(media: MediaSizes, processor: Any = None) -> list[Hint]:
    """Name settings of rows that ``qwen_vl_utils`` changes, or that look like notes about the file.

    Args:
        processor: of the model. None: that of Qwen2.5-VL.
    """
    factor = factor_of(processor.video_processor) if processor else DEFAULT_FACTOR
    wanted: list[tuple[LibrarySize, int]] = []
    for meta, info in zip(media.metas, media.infos, strict=False):  # sizes alone come without infos
        if meta is not None and meta.size is not None:
            wanted.append((meta.size, len(info.indices)))
    found = [_limit_hint(size, factor, frames) for size, frames in wanted]
    found += [_fixed_size_hint(size, factor) for size, _ in wanted]
    found += [_fixed_size_hint(size, factor) for size in media.image_sizes if size is not None]
    found += [_note_hint(meta, info) for meta, info in zip(media.metas, media.infos, strict=False)]
    return list(dict.fromkeys(hint for hint in found if hint is not None))


def _fixed_size_hint(size: LibrarySize, factor: int) -> Hint | None:
    """A hint where ``resized_height`` and ``resized_width`` are no whole vision tokens."""
    if not size.resized_height or not size.resized_width:
        return None
    # With both sides given, neither the size of the file nor the bounds of the flags count.
    height, width = frame_size_by_library((1, 1), size, factor, (1, 1), FRAMES_PER_PATCH)
    if (height, width) == (size.resized_height, size.resized_width):
        return None
    return Hint(
        "frame settings",
        f"resized_height {size.resized_height} and resized_width {size.resized_width} become {height} and {width}: "
        f"sides are multiples of {factor}, and a picture has at least 4 vision tokens",
    )


def _note_hint(meta: ClipMeta | None, info: FrameInfo) -> Hint | None:
    """A hint where ``nframes`` of a row was taken for a note about its file, see ``without_note``."""
    count = meta.count if meta is not None else None
    if count is None or not count.beside_turns or count.nframes is None:
        return None
    if len(info.indices) >= count.nframes - 1:  # one less: the package makes an odd number even
        return None
    return Hint(
        "frame settings",
        "nframes beside the turns is the number of all frames of the clip: it is taken for a note about the file and "
        "changes nothing; in a typed part it takes all frames; --columns nframes=NAME renames it",
    )


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


def _size_hint(size: Size, factor: int, bounds: tuple[int, int], kind: MediumKind) -> Hint | None:
    """A hint where the bounds on pixels shrink a medium below a quarter of its pixels."""
    height, width = size
    low, high = bounds
    seen_height, seen_width = smart_resize(height, width, factor, low, high)
    if seen_height * seen_width * SHRUNK >= height * width:
        return None
    larger_height, larger_width = smart_resize(height, width, factor, low, MORE * high)
    tokens = seen_height * seen_width // factor**2
    more = larger_height * larger_width // factor**2
    return Hint(
        "seen small",
        f"{kind.name} of {width} x {height} pixels are seen at {seen_width} x {seen_height}; {kind.flag} "
        f"{MORE * high} shows {larger_width} x {larger_height}, for {more} tokens {kind.unit} in place of {tokens}",
    )


BLACK = 16
"""The mean of a frame, of 255, below which it is black. Video decodes black to 0 or a little above."""
STILL = 0.5
"""The mean difference of two frames, of 255, below which they are the same but for the noise of compression."""
BLURRED = 0.002
"""The share of a frame's variance that half its size loses, below which it is blurred.

Seen at 112 to 448 pixels, sharp frames of a workplace lose 0.03 to 0.13, and 0.0003 to 0.001 behind a Gaussian blur of
2 pixels.
"""
PLAIN = 8.0
"""The standard deviation of a frame, of 255, below which it shows too little to say whether it is sharp."""


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
    """The largest mean difference between two neighbouring frames, F x 3 x H x W."""
    shown = frames.float()
    return float((shown[1:] - shown[:-1]).abs().mean((1, 2, 3)).max())


def _is_blurred(frames: Tensor) -> bool:
    """Whether F x 3 x H x W frames would all lose nothing at half their size."""
    grey = frames.float().mean(1, keepdim=True)  # F x 1 x H x W
    even = grey[..., : grey.shape[-2] // 2 * 2, : grey.shape[-1] // 2 * 2]
    spread = even.std((1, 2, 3))
    if even.numel() == 0 or bool((spread < PLAIN).any()):
        return False
    halved = F.interpolate(F.avg_pool2d(even, 2), scale_factor=2, mode="bilinear", align_corners=False)
    lost = (even - halved).square().mean((1, 2, 3)) / spread.square()
    return bool((lost < BLURRED).all())


def clip_lengths(infos: Iterable[FrameInfo], metas: Iterable[ClipMeta | None]) -> list[tuple[float, int]]:
    """Seconds and frames of each clip whose record does not say how many are shown, for ``few_frames``."""
    lengths: list[tuple[float, int]] = []
    for info, meta in zip(infos, metas, strict=True):
        if meta is None or not (meta.min_frames or meta.max_frames or meta.video_fps or meta.count):
            seconds = info.times[-1] - info.times[0]
            lengths.append((seconds, info.indices[-1] - info.indices[0] + 1))
    return lengths


def few_frames(clips: Sequence[tuple[float, int]], options: FrameOptions) -> list[Hint]:
    """Name --video_fps where at least half of the clips are so short that --video_min_frames decides on their frames.

    Args:
        clips: seconds and frames of each.
    """
    rate = options.video_fps or 1 / options.base_interval
    low, high = options.frame_bounds
    short = sorted((seconds, frames) for seconds, frames in clips if seconds > 0 and round(seconds * rate) < low)
    if options.counts or not short or 2 * len(short) < len(clips):
        return []
    seconds, frames = short[len(short) // 2]  # the clip of median length is the example of the hint
    # The rate that fills the upper bound, and no more frames than the clip has.
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
