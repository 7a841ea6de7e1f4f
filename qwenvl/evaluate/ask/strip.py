"""The frames and images of a prompt as one picture, in the pixels that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from qwenvl.data.media.resize import resize
from qwenvl.files import written_whole
from qwenvl.types import Sample

COLUMNS = 8  # frames side by side
_LEAST, _MOST = 120, 320  # width of a frame in the picture
_GAP, _LINE = 4, 14


def save_strip(path: str | Path, sample: Sample, sizes: Sequence[tuple[int, int]], processor: Any) -> None:
    """Write a PNG with a block for each clip and then each image, the time of each frame below it.

    Args:
        sizes: height and width at which the model sees each clip and then each image.
        processor: whose interpolation the frames are resized by, as they are for the model.
    """
    font = ImageFont.load_default(size=11)
    clips = sizes[: len(sample.videos)]
    blocks = [
        _block(resize(clip.frames, size, processor.video_processor), [f"{t:.2f} s" for t in clip.info.times], font)
        for clip, size in zip(sample.videos, clips, strict=True)
    ]
    blocks += [
        _block(resize(image, size, processor.image_processor)[None], ["image"], font)
        for image, size in zip(sample.images, sizes[len(clips) :], strict=True)
    ]
    sheet = Image.new("RGB", (max(b.width for b in blocks), sum(b.height for b in blocks)), "white")
    top = 0
    for block in blocks:
        sheet.paste(block, (0, top))
        top += block.height
    with written_whole(path) as partial:
        sheet.save(partial, "PNG")


def _block(frames: Tensor, captions: Sequence[str], font: Any) -> Image.Image:
    """Frames, F x 3 x H x W, row by row. Small ones are enlarged by whole pixels, so that each pixel is seen."""
    height, width = frames.shape[-2:]
    factor = max(1, -(-_LEAST // width))
    share = min(1.0, _MOST / width)
    shown = (round(width * factor * share), max(1, round(height * factor * share)))
    columns = min(COLUMNS, len(frames))
    cell = shown[0] + _GAP, shown[1] + _LINE + _GAP
    block = Image.new("RGB", (columns * cell[0] + _GAP, -(-len(frames) // columns) * cell[1] + _GAP), "white")
    draw = ImageDraw.Draw(block)
    for n, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC
        picture = Image.fromarray(frame.permute(1, 2, 0).numpy()).resize(shown, how)
        left, top = _GAP + n % columns * cell[0], _GAP + n // columns * cell[1]
        block.paste(picture, (left, top))
        draw.text((left, top + shown[1]), caption, fill="black", font=font)
    return block
