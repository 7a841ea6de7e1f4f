"""Features of the vision tower kept on disk from epoch to epoch, for clips whose frames are the same each time.

One entry of a ``DiskStore`` per image or video, under a hash of its pixels, its grid and the tower.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.disk_store import DiskStore

Compute = Callable[[Tensor, Tensor], Tensor]
"""Runs the tower: patches and grids (media x 3) -> features, in the rows of the patches."""


class VisionCache:
    """Features by content.

    Attributes:
        hits, misses: media found and computed so far.
        hit_seconds, compute_seconds: spent on finding (hashing and reading) and on running the tower. Where a hit costs
            no less than a computed one, the cache is not worth having.
    """

    def __init__(self, folder: str | Path, max_bytes: int):
        """
        Args:
            folder: made if it is not there.
            max_bytes: bound on the files in it together.
        """
        self.hits = self.misses = 0
        self.hit_seconds = self.compute_seconds = 0.0
        self._store = DiskStore(folder, max_bytes, ".features")
        self._tower: str | None = None

    def features(self, compute: Compute, patches: Tensor, grids: Tensor, scale: str = "") -> Tensor:
        """Features of every image or video of ``patches``, from disk where they are. The others are computed together.

        Args:
            compute: the tower, the same in every call.
            patches: patches x patch values, normalised, or bytes that ``compute`` normalises.
            grids: media x 3.
            scale: says how it normalises them.
        """
        start = time.perf_counter()
        media = patches.split(grids.prod(-1).tolist())
        keys = [self._key(compute, pixels, grid, scale) for pixels, grid in zip(media, grids, strict=True)]
        kept = {i: value for i, key in enumerate(keys) if (value := self._store.get(key)) is not None}
        found = {i: load(value)["features"].to(patches.device) for i, value in kept.items()}
        self.hits += len(found)
        self.hit_seconds += time.perf_counter() - start
        missing = [i for i in range(len(media)) if i not in found]
        if missing:
            found |= self._compute(compute, {i: media[i] for i in missing}, grids[missing], keys)
        return torch.cat([found[i] for i in range(len(media))])

    def mean_seconds(self) -> tuple[float, float]:
        """Seconds per hit, and per medium that was computed, 0.0 where there were none."""
        return self.hit_seconds / max(1, self.hits), self.compute_seconds / max(1, self.misses)

    def _compute(self, compute: Compute, media: dict[int, Tensor], grids: Tensor, keys: list[str]) -> dict[int, Tensor]:
        start = time.perf_counter()
        features = compute(torch.cat(list(media.values())), grids).split([len(pixels) for pixels in media.values()])
        if features[0].is_cuda:
            torch.cuda.synchronize()
        self.misses += len(media)
        self.compute_seconds += time.perf_counter() - start
        made = dict(zip(media, features, strict=True))
        for i, kept in made.items():
            self._store.put(keys[i], save({"features": kept.cpu().contiguous()}))
        return made

    def _key(self, compute: Compute, pixels: Tensor, grid: Tensor, scale: str) -> str:
        if self._tower is None:
            self._tower = _fingerprint(compute, pixels)
        return _digest(pixels, grid, self._tower + scale)


def _digest(pixels: Tensor, grid: Tensor, tower: str) -> str:
    digest = hashlib.sha256(tower.encode())
    digest.update(repr((grid.tolist(), str(pixels.dtype))).encode())
    digest.update(pixels.contiguous().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _fingerprint(compute: Compute, like: Tensor) -> str:
    """A hash of what the tower makes of a fixed picture: of its weights, type and way of computing.

    It needs no whole weights, so it works where they are split among processes.
    """
    grid = torch.tensor([[2, 8, 8]], device=like.device)
    ramp = torch.arange(128 * like.shape[1], dtype=torch.float32, device=like.device)
    picture = ramp.mul(0.37).sin().view(128, -1).to(like.dtype if like.is_floating_point() else torch.float32)
    features = compute(picture, grid)
    return _digest(features.float(), grid[0], str((features.dtype, features.shape)))
