"""Still images, upright and in RGB, and clips that are stored as such: a folder of frames, or a list of their paths."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.frame_order import in_order
from qwenvl.data.media.reader import PART_BYTES, Clip
from qwenvl.data.media.shape import check_shape
from qwenvl.data.media.source import FRAME_SUFFIXES, check_regular_file, is_frame

if TYPE_CHECKING:
    from torch import Tensor

MAX_IMAGE_PIXELS = 50_000_000  # a small file may unfold to gigabytes; cameras stay below this
DEFAULT_FRAMES_FPS = 2.0  # what the model authors' own tools assume
ANIMATED = ("GIF", "WEBP", "PNG")  # formats of pictures that may move
# What Pillow raises for a damaged file: its parsers fail as they may.
_DAMAGED = (OSError, SyntaxError, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError, struct.error)
# Pillow knows many more, and opens some by other programs: of an EPS it would start Ghostscript on the file's bytes.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", *(["AVIF"] if features.check("avif") else []))


def load_image(path: str) -> Tensor:
    """Read an image: 3 x H x W, uint8.

    It is turned as its EXIF data says. Transparent parts show white. Of several pages it is the first.

    Raises:
        BadMediaError: the file is not an image, is damaged or cut short, is an animation, has more than 50 million
            pixels, or one side that is more than 200 times as long as the other.
    """
    import torch

    return torch.from_numpy(np.array(upright_image(path))).permute(2, 0, 1).contiguous()


def upright_image(path: str, most_pixels: int = MAX_IMAGE_PIXELS) -> Image.Image:
    """Read an image as ``load_image`` does, as a picture of Pillow.

    Raises:
        BadMediaError: as ``load_image`` raises it, with ``most_pixels`` as the bound.
    """
    check_regular_file(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > most_pixels:
                raise BadMediaError(
                    path, f"{width} x {height} pixels; expected at most {most_pixels:,}: make the image smaller"
                )
            # Before it is decoded: Pillow takes minutes for a BMP of one row of fifty million pixels.
            check_shape(path, (height, width))
            # The further pictures of a photo (MPO) or of a scan (TIFF) are no frames that follow each other.
            count = getattr(image, "n_frames", 1) if image.format in ANIMATED else 1
            if count > 1:
                advice = "name it as a clip, under `video`" if image.format == "GIF" else "make a clip of it"
                raise BadMediaError(path, f"an animation of {count} frames in the place of a picture: {advice}")
            if image.mode in ("I", "F"):
                reason = "its numbers do not say what is black and what is white: save it with 8 or 16 bits, unsigned"
                raise BadMediaError(path, reason)
            return _to_rgb(_upright(image))
    except UnidentifiedImageError:
        raise BadMediaError(path, f"not an image of a known format ({', '.join(FORMATS)})") from None
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        if isinstance(error, BadMediaError):
            raise
        raise BadMediaError(path, f"damaged image: {error}") from None


def image_size(path: str) -> tuple[int, int]:
    """The height and width of an image as it is stored, from its header alone.

    Raises:
        BadMediaError: the file is not an image of a known format.
    """
    check_regular_file(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width
    except UnidentifiedImageError:  # whose text names the path once more
        raise BadMediaError(path, f"not an image of a known format ({', '.join(FORMATS)})") from None
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise BadMediaError(path, f"not an image of a known format: {error}") from None


def _upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF data says."""
    image.load()  # a PNG may have its EXIF data behind its pixels
    image.getexif()
    # Pillow has read the data now. It would write them anew for the turned picture, and fails at tags of odd types.
    for name in ("exif", "Raw profile type exif"):
        image.info.pop(name, None)
    return ImageOps.exif_transpose(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    """The picture in RGB with eight bits a channel, transparent parts on white."""
    if image.mode.startswith("I;16"):  # conversion to RGB would clip everything above 255 to white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


class FrameFolder(Clip):
    """A clip made of image files: frame i is shown at i / ``fps`` seconds, or at the i-th of ``times``.

    The frames of a folder are ordered by the numbers in their names, 2 before 10, see ``in_order``. Those of a list
    keep its order.

    Args:
        path: the folder, or the name of the list.
        listed: the files of a list, see ``frame_list``.

    Attributes:
        files: the path of each frame.

    Raises:
        BadMediaError: there are no images, or they can't be listed or ordered, or ``times`` has another length.
            ``parts`` raises it for a bad image, and where sizes differ.
    """

    def __init__(
        self,
        path: str,
        fps: float | None = None,
        times: Sequence[float] | None = None,
        listed: list[str] | None = None,
    ) -> None:
        self.path = path
        self.files = _images_of(Path(path)) if listed is None else listed
        if not self.files:
            raise BadMediaError(path, f"a folder without images ({', '.join(FRAME_SUFFIXES)})")
        fps = fps or DEFAULT_FRAMES_FPS
        self.frame_times = tuple(i / fps for i in range(len(self.files)))
        self.duration = len(self.files) / fps
        if times is not None:
            if len(times) != len(self.files):
                message = f"frame_times has {len(times)} times for {len(self.files)} frames; expected one for each"
                raise BadMediaError(path, message, "meta and clip disagree")
            self.frame_times = tuple(times)
            if len(times) > 1:  # the last frame lasts as long as the mean one, as in a file
                self.duration = (times[-1] - times[0]) * len(times) / (len(times) - 1)

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        """Height and width of the first frame as its header says them."""
        return image_size(self.files[0])

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES, memory: Any = b"") -> Iterator[np.ndarray]:
        """Decode as ``Clip.parts`` says: one frame at a time, in memory of its own."""
        first = None
        for index in indices:
            picture = np.array(upright_image(self.files[index]))
            first = first or picture.shape
            if picture.shape != first:
                height, width, _ = picture.shape
                reason = f"{width} x {height} pixels in a clip whose first frame has {first[1]} x {first[0]}"
                raise BadMediaError(self.files[index], reason)
            yield picture[None]


def _images_of(folder: Path) -> list[str]:
    """The images of a folder in the order of their frames."""
    try:
        names = [file.name for file in folder.iterdir() if is_frame(file.name)]
    except OSError as error:  # it is gone by now, or may not be read
        raise BadMediaError(str(folder), f"a folder that can't be read: {error.strerror}") from None
    try:
        return [str(folder / name) for name in in_order(names)]
    except ValueError as error:
        raise BadMediaError(str(folder), str(error)) from None
