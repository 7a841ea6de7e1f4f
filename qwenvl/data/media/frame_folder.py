"""Clips stored as still images: a folder of frames, or a list of frame paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip.look import changes
from qwenvl.data.media.clip.reader import PART_BYTES
from qwenvl.data.media.images import image_size, load_image
from qwenvl.data.media.source import frame_list

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_FRAMES_FPS = 2.0  # what the model authors' own tools assume
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class FrameFolder:
    """A clip with the methods of ``ClipReader``, made of image files: frame i is shown at i / ``fps`` seconds.

    The frames of a folder are ordered by the numbers in their names, 2 before 10. Those of a list keep its order.

    Attributes:
        files: the path of each frame.
        notes: empty: images say nothing wrong of a clip.

    Raises:
        BadMediaError: there are no images. ``read`` raises it for a bad image, and where sizes differ.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, path: str, fps: float | None = None) -> None:
        self.path = path
        listed = frame_list(path)
        self.files = listed if listed is not None else _images_of(Path(path))
        if not self.files:
            raise BadMediaError(path, f"a folder without images ({', '.join(FRAME_SUFFIXES)})")
        fps = fps or DEFAULT_FRAMES_FPS
        self.frame_times = tuple(i / fps for i in range(len(self.files)))
        self.duration = len(self.files) / fps

    def __enter__(self) -> FrameFolder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def frame_count(self) -> int:
        """How many frames the clip has."""
        return len(self.files)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the first frame as its header says them."""
        return image_size(self.files[0])

    def read(self, indices: Sequence[int]) -> Tensor:
        """Load frames by number, as ``ClipReader.read`` decodes them."""
        import torch

        frames = [load_image(self.files[index]) for index in indices]
        for index, frame in zip(indices, frames, strict=True):
            if frame.shape != frames[0].shape:
                first, other = ("{2} x {1}".format(*f.shape) for f in (frames[0], frame))
                raise BadMediaError(self.files[index], f"{other} pixels in a clip whose first frame has {first}")
        return torch.stack(frames)

    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return how much the picture changes up to each frame, as ``ClipReader.look`` does, by the images' green."""
        return changes(load_image(self.files[index])[1].numpy() for index in indices)

    def check_all(self) -> None:
        """Load all images and keep none. It raises BadMediaError for a bad one."""
        for file in self.files:
            load_image(file)

    def parts(self, indices: Sequence[int], most_bytes: int = PART_BYTES) -> Iterator[Tensor]:
        """Load frames a few at a time, as ``ClipReader.parts`` decodes them."""
        height, width = self.size
        step = max(1, most_bytes // (3 * height * width))
        for start in range(0, len(indices), step):
            yield self.read(indices[start : start + step])


def _images_of(folder: Path) -> list[str]:
    files = [file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES]
    numbers = lambda file: [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", file.name)]
    return [str(file) for file in sorted(files, key=numbers)]
