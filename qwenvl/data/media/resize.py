"""Resizes pixels to the size that the model sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf
from transformers.image_utils import pil_torch_interpolation_mapping

from qwenvl.data.errors import BadMediaError

SizeOf = Callable[[tuple[int, int]], tuple[int, int]]
MAX_ASPECT_RATIO = 200  # of the model authors' resizing rule


def resize(pixels: Tensor, size: tuple[int, int], processor: Any) -> Tensor:
    """Resize frames or an image, ... x 3 x H x W uint8. Pixels of the right size stay as they are.

    Args:
        size: height and width.
        processor: the image or video processor, whose ``resample`` names the interpolation.
    """
    interpolation = pil_torch_interpolation_mapping[processor.resample]
    return tvf.resize(pixels, list(size), interpolation=interpolation, antialias=True)


def read_resized(clip: Any, indices: Sequence[int], size_of: SizeOf, processor: Any) -> tuple[Tensor, tuple[int, int]]:
    """The frames of an open clip with these rising numbers, resized, and their size in the file.

    A part of them at a time is in memory at full size. They are those that ``resize`` makes of all together, bit for
    bit: each frame is resized by itself.

    Args:
        clip: with ``parts``, as ``ClipReader`` has them.
        size_of: the height and width to resize to, given those in the file.

    Raises:
        BadMediaError: as reading raises it, or the frames have a shape that the models refuse.
    """
    resized: list[Tensor] = []
    decoded: tuple[int, int] = (0, 0)
    for part in clip.parts(indices):
        own = part.shape[-2], part.shape[-1]
        if not resized:
            decoded = own
            check_size(clip.path, own)
        if own != decoded:
            raise BadMediaError(clip.path, "the size of the picture changes within the clip")
        resized.append(resize(part, size_of(decoded), processor))
    return resized[0] if len(resized) == 1 else torch.cat(resized), decoded


def check_size(path: str, size: tuple[int, int]) -> None:
    """Check the height and width of a picture.

    Raises:
        BadMediaError: one side is more than 200 times as long as the other.
    """
    height, width = size
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise BadMediaError(path, f"{width} x {height} pixels; Qwen-VL takes sides of at most {MAX_ASPECT_RATIO} : 1")
