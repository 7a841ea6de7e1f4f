"""How much the picture of a clip changes from frame to frame, told by small grey pictures.

Small pictures were measured against the sizes of the encoded frames, which cost no decoding: sizes said little where
the camera has noise, the encoder holds a bit rate, or each frame is coded by itself (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from av.video.frame import VideoFrame

SIDE = 32  # fields across and down of a small picture
IGNORED = 4  # levels of 255 by which noise, flicker and coding change a field


def luma_of(frame: VideoFrame) -> np.ndarray:
    """The brightness of a frame, H x W uint8."""
    if frame.format.name.startswith("yuv") and frame.format.components[0].bits == 8 and frame.format.is_planar:
        plane = frame.planes[0]
        return np.ndarray((frame.height, frame.width), np.uint8, plane, strides=(plane.line_size, 1))
    return frame.to_ndarray(format="gray")


def small_picture(luma: np.ndarray) -> np.ndarray:
    """The means of ``SIDE`` x ``SIDE`` fields of a picture, H x W uint8, as int16. What is left at its edges is cut."""
    rows, columns = (min(SIDE, side) for side in luma.shape)
    height, width = luma.shape[0] // rows, luma.shape[1] // columns
    lines = luma[: rows * height, : columns * width].reshape(rows, height, -1).sum(1, dtype=np.uint32)
    return (lines.reshape(rows, columns, width).sum(2) // (height * width)).astype(np.int16)


def changes(pictures: Iterable[np.ndarray]) -> tuple[int, ...]:
    """How much each picture, H x W uint8, differs from the one before. 0 for the first.

    It is the sum over the fields of ``small_picture`` of the levels by which they differ beyond ``IGNORED``.

    Example:
        >>> black, white = np.zeros((64, 64), np.uint8), np.full((64, 64), 255, np.uint8)
        >>> changes([black, black + 4, black, white])  # 32 x 32 fields by 255 - 4
        (0, 0, 0, 257024)
    """
    found: list[int] = []
    before = None
    for picture in pictures:
        small = small_picture(picture)
        if before is None or before.shape != small.shape:
            found.append(0)
        else:
            found.append(int(np.maximum(np.abs(small - before) - IGNORED, 0).sum()))
        before = small
    return tuple(found)
