"""Records to samples: decode the media when asked, choose the frames by (run seed, epoch, record)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import Tensor
from torch.utils.data import Dataset, Sampler

from qwenvl.data.catalog import resolve_datasets
from qwenvl.data.decode import open_clip, resolve_backend
from qwenvl.data.frames import FrameOptions, FramePlanError, plan_frames
from qwenvl.data.images import load_image
from qwenvl.data.mediafile import BadMediaError
from qwenvl.data.prompts import chat_messages
from qwenvl.data.records import RecordError, SolutionCheck, read_records
from qwenvl.data.seeds import stable_random
from qwenvl.types import BadSample, FrameInfo, Record, Sample, VideoClip

MAX_ASPECT_RATIO = 200  # of the model authors' resizing rule

OnBadSample = Literal["error", "skip"]


class GRPODataset(Dataset):
    """Samples of a list of records; media are decoded when a sample is asked for, in the process that asks.

    An item is asked for by (epoch, index), as ``EpochSampler`` yields them, or by index alone (epoch 0).

    Args:
        records: as ``read_records`` gives them.
        base_interval: seconds between the frames of clips without ``meta``.
        video_fps: frames per second, in place of ``base_interval``.
        video_min_frames, video_max_frames: bounds on the frames of a clip.
        video_backend: ``auto``, ``torchcodec``, ``pyav`` or ``decord``; see ``qwenvl.data.decode``.
        decode_timeout: seconds after which the decoder of a clip is killed; 0 decodes without bounds, in this process.
        decode_memory_gb: what the decoder may take for one clip, in GB.
        on_bad_sample: media that can't be used stop the run (``error``) or give a ``BadSample`` (``skip``).
        seed: of the frames drawn in training.
        training: draw the frames of ``dynamic_sample`` clips anew each epoch; else take them uniformly.

    Example:
        >>> dataset = load_dataset("example")
        >>> dataset[2].videos[0].info.indices
        (0, 8, 16, 24)
    """

    def __init__(
        self,
        records: list[Record],
        *,
        base_interval: float = 2.0,
        video_fps: float | None = None,
        video_min_frames: int = 4,
        video_max_frames: int = 8,
        video_backend: str = "auto",
        decode_timeout: float = 60.0,
        decode_memory_gb: float = 8.0,
        on_bad_sample: OnBadSample = "error",
        seed: int = 0,
        training: bool = True,
    ) -> None:
        if on_bad_sample not in ("error", "skip"):
            raise ValueError(f'on_bad_sample: expected "error" or "skip", got {on_bad_sample!r}')
        if decode_timeout < 0 or decode_memory_gb <= 0:
            raise ValueError(
                f"expected decode_timeout >= 0 and decode_memory_gb > 0, got {decode_timeout} and {decode_memory_gb}"
            )
        resolve_backend(video_backend)  # an unusable one is an error now and not in a worker
        self.records = records
        self.frame_options = FrameOptions(base_interval, video_fps, video_min_frames, video_max_frames)
        self.video_backend = video_backend
        self.decode_bounds = {"timeout": decode_timeout, "memory_gb": decode_memory_gb}
        self.on_bad_sample = on_bad_sample
        self.seed = seed
        self.training = training

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int]) -> Sample | BadSample:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        record = self.records[index]
        try:
            videos = tuple(self._load_clip(record, number, epoch) for number in range(len(record.videos)))
            images = tuple(_load_image(path) for path in record.images)
        except (BadMediaError, FramePlanError) as error:
            message = f"{record.where} (id {record.id}): {error}"
            if self.on_bad_sample == "skip":
                return BadSample(record, message)
            raise BadMediaError(f"{message}. Mend the file or the record, or pass --on_bad_sample skip") from error
        return Sample(record, chat_messages(record), videos, images, epoch)

    def _load_clip(self, record: Record, number: int, epoch: int) -> VideoClip:
        path, meta = record.videos[number], record.clip_meta[number]
        with open_clip(path, self.video_backend, **self.decode_bounds) as clip:
            draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
            try:
                plan = plan_frames(clip.frame_count, clip.duration, self.frame_options, meta, draw)
            except FramePlanError as error:
                raise FramePlanError(f"{path}: {error}") from None
            frames = clip.read(plan.indices)
            _check_shape(path, frames)
            times = tuple(clip.frame_times[index] for index in plan.indices)
            info = FrameInfo(
                path=path,
                indices=plan.indices,
                times=times,
                segments=plan.segments,
                seconds_per_frame=_seconds_per_frame(times, clip.duration),
                rescaled=plan.rescaled,
                fell_back=clip.fell_back,
            )
        return VideoClip(frames, info)


def _load_image(path: str) -> Tensor:
    image = load_image(path)
    _check_shape(path, image)
    return image


def _check_shape(path: str, pixels: Tensor) -> None:
    height, width = pixels.shape[-2:]
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise BadMediaError(path, f"{width} x {height} pixels; Qwen-VL takes sides of at most {MAX_ASPECT_RATIO} : 1")


def _seconds_per_frame(times: tuple[float, ...], duration: float) -> float:
    """Mean distance of the distinct frames; for a single one the length of its clip, or one second for a still."""
    distinct = len(set(times))
    if distinct > 1:
        return (times[-1] - times[0]) / (distinct - 1)
    return duration or 1.0


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, index) over a data set, shuffled by (seed, epoch) or in order; every process the same.

    Example:
        >>> sampler = EpochSampler(2, seed=0, shuffle=False)
        >>> sampler.set_epoch(3)
        >>> list(sampler)
        [(3, 0), (3, 1)]
    """

    def __init__(self, length: int, seed: int = 0, shuffle: bool = True) -> None:
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = list(range(self.length))
        if self.shuffle:
            stable_random(self.seed, "order", self.epoch).shuffle(order)
        return ((self.epoch, index) for index in order)


def load_dataset(
    dataset_use: str,
    *,
    catalog_path: str | Path | None = None,
    allow_outside_media: bool = False,
    check_solution: SolutionCheck | None = None,
    **options: object,
) -> GRPODataset:
    """Resolve, read and validate one or more data sets, and join them in the order given.

    Args:
        dataset_use: as for ``resolve_datasets``.
        check_solution: as for ``read_records``.
        options: of ``GRPODataset``; its ``seed`` also chooses the rows of ``name%NN``.

    Raises:
        RecordError, ValueError, FileNotFoundError: as its parts do; with ``on_bad_sample`` "error" also for media
            files that do not exist, before anything is decoded.
    """
    seed = options.get("seed", 0)
    records = [
        record
        for source in resolve_datasets(dataset_use, catalog_path)
        for record in read_records(
            source, seed=seed, allow_outside_media=allow_outside_media, check_solution=check_solution
        )
    ]
    dataset = GRPODataset(records, **options)
    if dataset.on_bad_sample == "error":
        _check_media_exist(records)
    return dataset


def _check_media_exist(records: list[Record]) -> None:
    missing = [
        f"{record.where}: no such file: {path}"
        for record in records
        for path in (*record.videos, *record.images)
        if not os.path.exists(path)
    ]
    if missing:
        shown = missing[:5] + ["..."] * (len(missing) > 5)
        raise RecordError(
            f"{len(missing)} media files are missing; put them under the media root, or pass --on_bad_sample skip:"
            + "".join(f"\n  {line}" for line in shown)
        )
