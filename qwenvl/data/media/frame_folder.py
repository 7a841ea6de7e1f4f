"""Clips stored as still images: a folder of frames, or a list of frame paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.images import load_image
from qwenvl.data.media.source import frame_list

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_FRAMES_FPS = 2.0  # what the model authors' own tools assume
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class FrameFolder:
    """The face of ``ClipReader`` over image files, which carry no times: frame i is shown at i / ``fps``.

    A folder's frames are its image files by the numbers in their names (2 before 10); a list keeps its order.

    Attributes:
        files: one for each frame.

    Raises:
        BadMediaError: no images; or, when read, a bad one or one of another size than the first.
    """

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
        return len(self.files)

    def read(self, indices: Sequence[int]) -> Tensor:
        """As ``ClipReader.read``."""
        import torch

        frames = [load_image(self.files[index]) for index in indices]
        for index, frame in zip(indices, frames, strict=True):
            if frame.shape != frames[0].shape:
                first, other = ("{2} x {1}".format(*f.shape) for f in (frames[0], frame))
                raise BadMediaError(self.files[index], f"{other} pixels in a clip whose first frame has {first}")
        return torch.stack(frames)


def _images_of(folder: Path) -> list[str]:
    files = [file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES]
    numbers = lambda file: [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", file.name)]
    return [str(file) for file in sorted(files, key=numbers)]
