"""The size of a picture, and the shapes that the models take.

It does without torch, which processes that decode have not loaded.
"""

from __future__ import annotations

from qwenvl.data.errors import BadMediaError

Size = tuple[int, int]
"""Height and width in pixels."""

MAX_ASPECT_RATIO = 200  # of the model authors' resizing rule


def is_too_thin(size: Size) -> bool:
    """Whether one side is more than 200 times as long as the other."""
    return max(size) > MAX_ASPECT_RATIO * min(size)


def check_shape(path: str, size: Size) -> None:
    """Check the height and width of a picture.

    Raises:
        BadMediaError: one side is more than 200 times as long as the other.
    """
    if is_too_thin(size):
        height, width = size
        raise BadMediaError(path, f"{width} x {height} pixels; Qwen-VL takes sides of at most {MAX_ASPECT_RATIO} : 1")
