"""A cache on disk of decoded frames, over epochs and runs, at the size that the model sees.

The key of an entry is made of the file's content, the numbers of the frames, their size, and the versions of what
decodes and resizes them. A clip whose frames are found is not opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import av
import torch
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.data.media.reader import Clip
from qwenvl.data.media.resize import Size, read_resized
from qwenvl.data.media.source import check_regular_file, frame_list
from qwenvl.data.prompt_length import Ruler
from qwenvl.disk_store import DiskStore
from qwenvl.types import ClipMeta

FORMAT = 3  # goes up when this library makes other pixels, times or changes of the same file


class FrameCache:
    """The cache of the frames of a data set's clips.

    Args:
        folder: it is made if it is not there. Several processes and runs may share it.
        max_bytes: bound on the size of all entries.
        ruler: the collator's, which says how large frames become.
    """

    def __init__(self, folder: str | Path, max_bytes: int, ruler: Ruler) -> None:
        self.ruler = ruler
        self.store = DiskStore(folder, max_bytes, ".frames")

    def content(self, path: str) -> str:
        """The hash of a file's content. The file is read once, and then known by its path, size and times.

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
    """A clip whose times and frames are looked up in the cache first, and a context manager.

    Args:
        open_clip: opens the clip where the cache lacks something.
        decoder: the backend that ``open_clip`` uses. Each backend has its own entries.
        meta: of the clip, for its pixel bounds.
        keep: whether to look frames up and keep them. False is for frames that are drawn anew each time.

    Attributes:
        hit: whether the frames of the last read were found.
        decoded_size: height and width of the frames in the file, or None until they are known.
        frame_times, duration, notes: as of ``Clip``.

    Raises:
        BadMediaError: the file can't be read, or ``open_clip`` finds something wrong with it.
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
        self._timeline_key = _digest("timeline", *self._base)
        known = cache.store.get(self._timeline_key)
        if known is None:
            self.frame_times, self.duration = self._opened.frame_times, self._opened.duration
            self.notes = self._opened.notes
        else:
            timeline = load(known)
            self.frame_times, self.duration = tuple(timeline["times"].tolist()), timeline["duration"].item()
            self.decoded_size = tuple(timeline["size"].tolist())
            self.notes = tuple(json.loads(bytes(timeline["notes"].tolist())))

    def __enter__(self) -> CachedClip:
        return self

    def __exit__(self, *error: object) -> None:
        if self._clip is not None:
            self._clip.__exit__(*error)

    @property
    def size(self) -> Size:
        """Height and width in the file, from its header where no frame was decoded yet."""
        return self.decoded_size or self._opened.size

    def read(self, indices: Sequence[int], share: float = 1.0) -> Tensor:
        """Frames by number, F x 3 x H x W uint8, resized.

        Args:
            share: of the pixels that the ruler gives a frame, how many are kept at most.

        Raises:
            BadMediaError: as ``Clip.read`` raises it, or the frames have a shape that the models refuse.
        """
        store, ruler = self._cache.store, self._cache.ruler
        size_of = lambda size: ruler.frame_size(size, self._meta, share)
        key_of = lambda size: _digest("frames", *self._base, tuple(indices), tuple(size_of(size)), int(ruler.resample))
        found = store.get(key_of(self.decoded_size)) if self._keep and self.decoded_size else None
        self.hit = found is not None
        if found is not None:
            return load(found)["frames"].permute(0, 3, 1, 2)
        frames, size = read_resized(self._opened, indices, size_of, ruler)
        if self.decoded_size is None:
            self.decoded_size = size
            timeline = {
                "times": torch.tensor(self.frame_times, dtype=torch.float64),
                "duration": torch.tensor(self.duration, dtype=torch.float64),
                "size": torch.tensor(size),
                "notes": torch.tensor(list(json.dumps(self.notes).encode()), dtype=torch.uint8),
            }
            store.put(self._timeline_key, save(timeline))
        if self._keep:
            self._put(key_of(self.decoded_size), {"frames": frames.permute(0, 2, 3, 1).contiguous()})
        return frames

    def look(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return how much the picture changes up to each frame, as ``Clip.look`` does. It is always cached."""
        key = _digest("looks", *self._base, tuple(indices))
        known = self._cache.store.get(key)
        if known is not None:
            return tuple(load(known)["change"].tolist())
        change = self._opened.look(indices)
        self._put(key, {"change": torch.tensor(change)})
        return change

    def _put(self, key: str, tensors: dict[str, Tensor]) -> None:
        if self._cache.content(self.path) == self._content:  # the file may have been replaced meanwhile
            self._cache.store.put(key, save(tensors))

    @property
    def _opened(self) -> Clip:
        if self._clip is None:
            self._clip = self._open_clip()
        return self._clip


@cache
def _software(decoder: str) -> tuple[str, ...]:
    """The names and versions of what makes the pixels."""
    package = {"pyav": "av"}.get(decoder, decoder)
    return decoder, repr(av.library_versions), *map(version, (package, "pillow", "torch", "torchvision"))


def _identity(path: str | Path) -> tuple[str, int, int, int, int]:
    """What changes when the file does. ``ctime`` changes even where a copy keeps the time of the original."""
    status = os.stat(path)
    return os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
