"""Resizes pixels to the size that the model sees."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchvision.transforms.v2 import functional as tvf
from transformers.image_utils import pil_torch_interpolation_mapping

from qwenvl.data.errors import BadMediaError

MAX_ASPECT_RATIO = 200  # of the model authors' resizing rule


def resize(pixels: Tensor, size: tuple[int, int], processor: Any) -> Tensor:
    """Resize frames or an image, ... x 3 x H x W uint8. Pixels of the right size stay as they are.

    Args:
        size: height and width.
        processor: the image or video processor, whose ``resample`` names the interpolation.
    """
    interpolation = pil_torch_interpolation_mapping[processor.resample]
    return tvf.resize(pixels, list(size), interpolation=interpolation, antialias=True)


def check_size(path: str, size: tuple[int, int]) -> None:
    """Check the height and width of a picture.

    Raises:
        BadMediaError: one side is more than 200 times as long as the other.
    """
    height, width = size
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise BadMediaError(path, f"{width} x {height} pixels; Qwen-VL takes sides of at most {MAX_ASPECT_RATIO} : 1")
