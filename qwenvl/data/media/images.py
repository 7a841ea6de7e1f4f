"""Still images, upright and in RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.mediafile import check_regular_file

if TYPE_CHECKING:
    from torch import Tensor

MAX_IMAGE_PIXELS = 50_000_000  # a small file may unfold to gigabytes; cameras stay below this


def load_image(path: str) -> Tensor:
    """Read an image: 3 x H x W, uint8.

    It is turned as its EXIF data says. Transparent parts show white. Of several frames it is the first.

    Raises:
        BadMediaError: the file is not an image, is damaged or cut short, or has more than 50 million pixels.
    """
    import torch

    check_regular_file(path)
    try:
        with Image.open(path) as image:
            width, height = image.size
            if width * height > MAX_IMAGE_PIXELS:
                raise BadMediaError(
                    path, f"{width} x {height} pixels; expected at most {MAX_IMAGE_PIXELS:,}: make the image smaller"
                )
            upright = _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise BadMediaError(path, "not an image of a known format") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, BadMediaError):
            raise
        raise BadMediaError(path, f"damaged image: {error}") from None
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous()


def image_size(path: str) -> tuple[int, int]:
    """The height and width of an image as it is stored, from its header alone.

    Raises:
        BadMediaError: the file is not an image of a known format.
    """
    check_regular_file(path)
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadMediaError(path, f"not an image of a known format: {error}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # conversion to RGB would clip everything above 255 to white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")
