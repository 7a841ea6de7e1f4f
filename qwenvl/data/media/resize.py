"""Resizes pixels to the size that the model sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf
from transformers.image_utils import pil_torch_interpolation_mapping

from qwenvl.data.media.shape import Size, check_shape

if TYPE_CHECKING:
    from qwenvl.data.media.reader import Clip

SizeOf = Callable[[Size], Size]
SMALL = 640  # pixels of the longer side of a picture for reports and judges
BICUBIC = SimpleNamespace(resample=Image.Resampling.BICUBIC)


def resize(pixels: Tensor, size: Size, processor: Any) -> Tensor:
    """Resize frames or an image, ... x 3 x H x W uint8. Pixels of the right size stay as they are.

    Args:
        size: height and width.
        processor: the image or video processor, or another with ``resample``, which names the interpolation.
    """
    interpolation = pil_torch_interpolation_mapping[processor.resample]
    return tvf.resize(pixels, list(size), interpolation=interpolation, antialias=True)


def read_resized(clip: Clip, indices: Sequence[int], size_of: SizeOf, processor: Any) -> tuple[Tensor, Size]:
    """The frames of an open clip with these rising numbers, resized: F x 3 x H x W uint8, and their size in the file.

    Only a few frames at a time are in memory at full size. The result is that of ``resize`` on all frames together, bit
    for bit, as each frame is resized by itself.

    Args:
        size_of: the height and width to resize to, given those in the file.
        processor: as for ``resize``.

    Raises:
        BadMediaError: as reading raises it, or the frames have a shape that the models refuse.
    """
    frames = torch.empty(0)
    size = (0, 0)
    decoded = (0, 0)
    done = 0
    for part in clip.parts(indices):
        if not done:
            decoded = part.shape[1], part.shape[2]
            check_shape(clip.path, decoded)
            size = size_of(decoded)
            # F x 3 x H x W, with the pixels in memory as decoders give them: F x H x W x 3.
            frames = torch.empty(len(indices), *size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        decoded_part = torch.from_numpy(part).permute(0, 3, 1, 2)
        frames[done : done + len(part)] = resize(decoded_part, size, processor)
        done += len(part)
    return frames, decoded


def small(size: Size) -> Size:
    """The height and width with the longer side within ``SMALL``."""
    scale = min(1.0, SMALL / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
