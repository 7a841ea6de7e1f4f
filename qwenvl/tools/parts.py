"""The parts of an answer to a call: what a tool of a user may return, as texts, frames and pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from qwenvl.data.frames import FRAMES_PER_PATCH
from qwenvl.data.media.shape import MAX_ASPECT_RATIO, is_too_thin
from qwenvl.data.records.forms import text_problem
from qwenvl.tools.errors import ToolError
from qwenvl.tools.functions import Still
from qwenvl.types import VideoClip

Part: TypeAlias = str | VideoClip | Tensor
"""One part of an answer: text, frames, or a picture (3 x H x W, uint8)."""

DEEPEST_LIST = 8  # lists within lists that a tool may return; one that holds itself is deeper


def as_content(part: Part) -> dict[str, str]:
    """A part as chat templates take it."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "video" if isinstance(part, VideoClip) else "image"}


def parts_of(value: Any, depth: int = 0) -> list[Part]:
    """The parts of a turn that show what a tool has returned.

    Raises:
        TypeError: it is no frames, picture, text or list of these.
        ToolError: it is a number that is too long for a text.
    """
    if isinstance(value, list | tuple) and depth <= DEEPEST_LIST:
        parts: list[Part] = []
        for each in value:
            parts += parts_of(each, depth + 1)
        return parts
    if isinstance(value, VideoClip):
        return [value]
    if isinstance(value, Still):
        return [value.pixels.clone()]  # a tool may draw on its picture again
    if isinstance(value, Image):
        return [pil_to_tensor(value.convert("RGB"))]
    if isinstance(value, str | int | float):
        return [_as_text(value)]
    got = f"lists in {depth} lists" if isinstance(value, list | tuple) else type(value).__name__
    raise TypeError(f"it returned {got}; expected frames, a picture, text or a list of these")


def _as_text(value: str | float) -> str:
    """A text, or a number as one. A model may ask for numbers of any length, such as 9 ** 9999."""
    try:
        return str(value)
    except ValueError:  # Python writes no integer of more digits
        raise ToolError(f"the result has more than {sys.get_int_max_str_digits():,} digits") from None


def check_pixels(parts: Sequence[Part]) -> None:
    """Check the frames and pictures that a tool of a user gives.

    Raises:
        ValueError: pixels that are no picture of the model.
    """
    for part in parts:
        if isinstance(part, str):
            continue
        pixels = part.frames if isinstance(part, VideoClip) else part
        shape = tuple(pixels.shape)
        dimensions = 4 if isinstance(part, VideoClip) else 3
        if pixels.dtype != torch.uint8 or len(shape) != dimensions or shape[-3] != 3 or 0 in shape:
            wanted = "F x 3 x H x W" if isinstance(part, VideoClip) else "3 x H x W"
            raise ValueError(f"it returned pixels of {pixels.dtype}, {shape}; expected uint8, {wanted}")
        if is_too_thin((shape[-2], shape[-1])):
            size = f"{shape[-1]} x {shape[-2]}"
            raise ValueError(f"it returned {size} pixels; expected sides of at most {MAX_ASPECT_RATIO} : 1")
        if isinstance(part, VideoClip) and (len(part.info.times) != shape[0] or shape[0] % FRAMES_PER_PATCH):
            raise ValueError(f"it returned {shape[0]} frames at {len(part.info.times)} times; expected pairs of frames")


def joined_text_problem(parts: Sequence[Part]) -> str | None:
    """Why the texts of a tool would be read as the structure of a prompt, or None where they would not."""
    # Neighbouring texts are one text of the prompt, in which two halves of a token meet.
    return text_problem("".join(part if isinstance(part, str) else "\n" for part in parts))
