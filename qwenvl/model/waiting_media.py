"""Media of prompts that wait for their turn, in files of the temporary folder instead of in memory.

All micro-batches of an optimizer step are drawn, and have completions sampled, before the first one is trained on. In
memory the media of long video would take that many times their size. A tensor in a file is one on the CPU like any
other, and has the same values: the file is mapped, so that its pages are read when they are used, and ``let_go`` gives
them back. The files have no name: nothing is left of them when their tensors are gone, or the process.
"""

from __future__ import annotations

import errno
import logging
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

LARGE = 64 * 2**20
"""Bytes of a micro-batch's media above which they wait in files. For Qwen2.5-VL these are the pixels of 14,000 prompt
tokens. A step on so many takes seconds, and writing them a twentieth of one."""
MEDIA = ("pixel_values", "pixel_values_videos")
_AT_ONCE = 2**30  # bytes of a call: Linux writes no more than 2 GiB
_maps: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by where they begin, while a tensor lies in them


class HasMedia(Protocol):
    """A ``PromptBatch`` or ``PromptInputs``."""

    pixel_values: Tensor | None
    pixel_values_videos: Tensor | None


Holder = TypeVar("Holder", bound=HasMedia)


def media_bytes(holder: HasMedia) -> int:
    """What the patches or features of prompts take."""
    return sum(value.nbytes for name in MEDIA if (value := getattr(holder, name)) is not None)


def is_large(holder: HasMedia) -> bool:
    """Whether its media wait in files where there are several of them."""
    return media_bytes(holder) > LARGE


def put_aside(holder: Holder) -> Holder:
    """The same object, with its media in a file where these are large.

    It is changed in place: loaders go on holding what they gave last, and would keep its pixels in memory.
    """
    if is_large(holder):
        (moved,) = in_files([holder])
        for name in MEDIA:
            setattr(holder, name, getattr(moved, name))
    return holder


def in_files(holders: Iterable[Holder]) -> list[Holder]:
    """The same prompts with their media in files. Each of ``holders`` is asked for when the last one is written.

    Where the temporary folder has no room left, media stay where they are, which is warned of.
    """
    shelves = [_Shelf() for _ in MEDIA]
    light = []
    for holder in holders:
        for name, shelf in zip(MEDIA, shelves, strict=True):
            shelf.put(getattr(holder, name))
        light.append(_with_media(holder, [None] * len(MEDIA)))
        del holder
    columns = zip(*(shelf.tensors() for shelf in shelves), strict=True)
    return [_with_media(*pair) for pair in zip(light, columns, strict=True)]


def let_go(*holders: HasMedia) -> None:
    """The media of prompts that lie in files take no memory until they are used again."""
    for holder in holders:
        for name in MEDIA:
            _let_go(getattr(holder, name))


def rows_of(values: Sequence[Tensor]) -> Tensor:
    """The rows of all ``values`` as one tensor, which is no copy of a single one, or where they lie end to end in a
    file."""
    first = values[0]
    if len(values) == 1:
        return first
    if _map_of(first) is not None and all(_follows(*pair) for pair in pairwise(values)):
        return first.as_strided((sum(map(len, values)), *first.shape[1:]), first.stride())
    return torch.cat([value.to(first.device) for value in values])


class _Shelf:
    """Tensors that are written to one file, end to end."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="qwenvl-", buffering=0)  # noqa: SIM115 (the map outlives it)
        self._end = 0
        self._put: list[Tensor | tuple[int, Tensor] | None] = []  # with the place in the file, and none of its values

    def put(self, value: Tensor | None) -> None:
        """Takes one more tensor. One that lies in a file, or has no values, stays as it is."""
        if value is None or not value.numel() or _map_of(value) is not None:
            self._put.append(value)
            return
        start = self._end + -self._end % value.element_size()
        try:
            self._write(value, start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(self._file.fileno(), self._end)  # what was written of it would keep the disk full
            _tell_of_full_disk(tempfile.gettempdir(), f"{value.nbytes / 1e9:.1f} GB")
            self._put.append(value)
            return
        self._put.append((start, torch.empty(value.shape, dtype=value.dtype, device="meta")))
        self._end = start + value.nbytes

    def tensors(self) -> list[Tensor | None]:
        """All that was put, in order."""
        with self._file:
            if not self._end:
                return [each for each in self._put if not isinstance(each, tuple)]
            pages = mmap.mmap(self._file.fileno(), self._end)
        whole = torch.frombuffer(pages, dtype=torch.uint8)
        _maps[whole.data_ptr()] = pages
        return [_part(whole, *each) if isinstance(each, tuple) else each for each in self._put]

    def _write(self, value: Tensor, start: int) -> None:
        left = memoryview(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy())
        while left:
            written = os.pwrite(self._file.fileno(), left[:_AT_ONCE], start)
            left, start = left[written:], start + written


@cache
def _tell_of_full_disk(folder: str, size: str) -> None:
    """Warns, once for media of a size: a full disk stays full for many steps."""
    logger.warning(
        f"no space left in {folder} for the media of micro-batches that wait for their turn, {size}: they stay in "
        "memory. Set TMPDIR to a folder with more room"
    )


def _part(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole[start : start + math.prod(like.shape) * like.element_size()].view(like.dtype).view(like.shape)


def _map_of(value: Tensor) -> mmap.mmap | None:
    return _maps.get(value.untyped_storage().data_ptr()) if value.device.type == "cpu" else None


def _let_go(value: Tensor | None) -> None:
    pages = None if value is None else _map_of(value)
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _follows(before: Tensor, after: Tensor) -> bool:
    same = before.dtype == after.dtype and before.shape[1:] == after.shape[1:]
    return same and _map_of(before) is _map_of(after) and before.data_ptr() + before.nbytes == after.data_ptr()


def _with_media(holder: Any, media: Iterable[Tensor | None]) -> Any:
    return replace(holder, **dict(zip(MEDIA, media, strict=True)))
