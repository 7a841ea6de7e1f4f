"""Decoded frames kept on disk from epoch to epoch and from run to run, at the size that the model sees.

Found by content: of the file, of which frames are asked for, of the size and of what decodes and resizes them. A clip
whose frames are found is not opened.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import av
import torch
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.data.lengths import Ruler, Size
from qwenvl.data.media.mediafile import check_regular_file
from qwenvl.data.media.open import Clip
from qwenvl.data.media.resize import check_shape, resize
from qwenvl.data.media.source import frame_list
from qwenvl.disk_store import DiskStore
from qwenvl.types import ClipMeta

FORMAT = 1  # goes up when this library makes other pixels or times of the same file


class FrameCache:
    """The frames of a data set's clips.

    Args:
        folder: made if it is not there; several processes and runs may share it.
        max_bytes: bound on what it holds.
        ruler: of the collator: how large frames become.
    """

    def __init__(self, folder: str | Path, max_bytes: int, ruler: Ruler) -> None:
        self.ruler = ruler
        self.store = DiskStore(folder, max_bytes, ".frames")

    def open(self, path: str, open_clip: Callable[[], Clip], decoder: str, meta: ClipMeta, keep: bool) -> CachedClip:
        """A clip with the face of ``open_clip()``, which is called where something is missing.

        Args:
            decoder: the backend that ``open_clip`` uses; another one has other entries.
            meta: of the clip, for its pixel bounds.
            keep: look frames up and keep them; False for frames that are drawn anew each time.

        Raises:
            BadMediaError: not a readable file, or what ``open_clip`` finds wrong with it.
        """
        return CachedClip(self, path, open_clip, decoder, meta, keep)

    def content(self, path: str) -> str:
        """A hash of what a file holds: read once, then known by the file's place, size and times.

        A clip stored as images is known by those of its files, which are not read.
        """
        files = sorted(map(str, Path(path).iterdir())) if os.path.isdir(path) else frame_list(path)
        if files is not None:
            return _digest("images", *(_identity(file) if os.path.exists(file) else file for file in files))
        check_regular_file(path)
        key = _digest("content", _identity(path))
        known = self.store.get(key)
        if known is None:
            digest = hashlib.sha256()
            with open(path, "rb") as file:
                while chunk := file.read(2**20):
                    digest.update(chunk)
            known = digest.hexdigest().encode()
            self.store.put(key, known)
        return known.decode()


class CachedClip:
    """A clip whose times and frames are looked up; a context manager.

    Attributes:
        hit: the frames last read were found.
        decoded_size: their height and width in the file; None until then.
    """

    def __init__(
        self, cache: FrameCache, path: str, open_clip: Callable[[], Clip], decoder: str, meta: ClipMeta, keep: bool
    ) -> None:
        self.path = path
        self.hit = False
        self.decoded_size: Size | None = None
        self._cache, self._open_clip, self._meta, self._keep = cache, open_clip, meta, keep
        self._clip: Clip | None = None
        self._content = cache.content(path)
        self._base = (FORMAT, self._content, meta.frames_fps, *_software(decoder))
        known = cache.store.get(self._timeline_key)
        if known is None:
            self.frame_times, self.duration = self._opened.frame_times, self._opened.duration
        else:
            timeline = load(known)
            self.frame_times, self.duration = tuple(timeline["times"].tolist()), timeline["duration"].item()
            self.decoded_size = tuple(timeline["size"].tolist())

    def __enter__(self) -> CachedClip:
        return self

    def __exit__(self, *error: object) -> None:
        if self._clip is not None:
            self._clip.__exit__(*error)

    def read(self, indices: Sequence[int], size: Size | None = None) -> Tensor:
        """Frames by number, F x 3 x H x W uint8, resized.

        Args:
            size: height and width; None for the ruler's.

        Raises:
            BadMediaError: as ``ClipReader.read``, or of a shape that the models refuse.
        """
        self.hit = False
        if self.decoded_size is None:
            return self._decode(indices, size)
        found = self._cache.store.get(self._frames_key(indices, size)) if self._keep else None
        if found is None:
            return self._decode(indices, size)
        self.hit = True
        return load(found)["frames"].permute(0, 3, 1, 2)

    def _decode(self, indices: Sequence[int], size: Size | None) -> Tensor:
        frames = self._opened.read(indices)
        check_shape(self.path, frames)
        if self.decoded_size is None:
            self.decoded_size = tuple(frames.shape[-2:])
            timeline = {
                "times": torch.tensor(self.frame_times, dtype=torch.float64),
                "duration": torch.tensor(self.duration, dtype=torch.float64),
                "size": torch.tensor(self.decoded_size),
            }
            self._cache.store.put(self._timeline_key, save(timeline))
        frames = resize(frames, self._final(size), self._cache.ruler.processor.video_processor)
        if self._keep and self._cache.content(self.path) == self._content:  # it may have been replaced meanwhile
            value = save({"frames": frames.permute(0, 2, 3, 1).contiguous()})
            self._cache.store.put(self._frames_key(indices, size), value)
        return frames

    @property
    def _opened(self) -> Clip:
        if self._clip is None:
            self._clip = self._open_clip()
        return self._clip

    @property
    def _timeline_key(self) -> str:
        return _digest("timeline", *self._base)

    def _final(self, size: Size | None) -> Size:
        return size or self._cache.ruler.frame_size(self.decoded_size, self._meta)  # type: ignore[arg-type]

    def _frames_key(self, indices: Sequence[int], size: Size | None) -> str:
        resample = int(self._cache.ruler.processor.video_processor.resample)
        return _digest("frames", *self._base, tuple(indices), tuple(self._final(size)), resample)


@cache
def _software(decoder: str) -> tuple[str, ...]:
    """What makes the pixels, with versions."""
    package = {"pyav": "av"}.get(decoder, decoder)
    return decoder, repr(av.library_versions), *map(version, (package, "pillow", "torch", "torchvision"))


def _identity(path: str | Path) -> tuple[str, int, int, int, int]:
    """Changes with the file: ``ctime`` even where a copy keeps the time of the original."""
    status = os.stat(path)
    return os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
