"""Records to samples: decode the media when asked, choose the frames by (run seed, epoch, record)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import Dataset, Sampler

from qwenvl.data.catalog import resolve_datasets
from qwenvl.data.decode import open_clip, resolve_backend
from qwenvl.data.errors import BadMediaError, FramePlanError, RecordError
from qwenvl.data.frames import FrameOptions, frames_between, plan_frames
from qwenvl.data.images import load_image
from qwenvl.data.media_source import fetch
from qwenvl.data.prompts import chat_messages
from qwenvl.data.record_file import JoinedRecords, RecordFile, is_large
from qwenvl.data.records import ReadOptions, RecordCheck, read_records
from qwenvl.data.seeds import stable_random
from qwenvl.types import BadSample, ClipMeta, FrameInfo, Record, Sample, VideoClip

MAX_ASPECT_RATIO = 200  # of the model authors' resizing rule

OnBadSample = Literal["error", "skip"]


class GRPODataset(Dataset):
    """Samples of records; media are decoded when a sample is asked for, in the process that asks.

    An item is asked for by (epoch, index), as ``EpochSampler`` yields them, or by index alone (epoch 0).

    Args:
        records: as ``read_records`` gives them, or a ``RecordFile``.
        base_interval: seconds between the frames of clips without ``meta``.
        video_fps: frames per second, in place of ``base_interval``.
        video_min_frames, video_max_frames: bounds on the frames of a clip.
        video_backend: ``auto``, ``torchcodec``, ``pyav`` or ``decord``; see ``qwenvl.data.decode``.
        decode_timeout: seconds after which the decoder of a clip is killed; 0 decodes without bounds, in this process.
        decode_memory_gb: what the decoder may take for one clip, in GB.
        on_bad_sample: media that can't be used stop the run (``error``) or give a ``BadSample`` (``skip``).
        seed: of the frames drawn in training.
        training: draw the frames of ``dynamic_sample`` clips anew each epoch; else take them uniformly.

    Attributes:
        decoder: the backend behind ``video_backend`` on this machine, for logs and checkpoints.

    Example:
        >>> dataset = load_dataset("example")
        >>> dataset[2].videos[0].info.indices
        (0, 8, 16, 24)
    """

    def __init__(
        self,
        records: Sequence[Record],
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
        self.records = records
        self.frame_options = FrameOptions(base_interval, video_fps, video_min_frames, video_max_frames)
        self.video_backend = video_backend
        self.decoder = resolve_backend(video_backend)  # an unusable one is an error now and not in a worker
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
            return self.load(record, epoch)
        except (BadMediaError, FramePlanError) as error:
            message = f"{record.where} (id {record.id}): {error}"
            if self.on_bad_sample == "skip":
                return BadSample(record, message)
            raise BadMediaError(f"{message}. Mend the file or the record, or pass --on_bad_sample skip") from error

    def load(self, record: Record, epoch: int = 0) -> Sample:
        """The sample of a record.

        Raises:
            BadMediaError, FramePlanError: whatever ``on_bad_sample`` says.
        """
        videos = tuple(self._load_clip(record, number, epoch) for number in range(len(record.videos)))
        images = tuple(_load_image(path) for path in record.images)
        return Sample(record, chat_messages(record), videos, images, epoch)

    def _load_clip(self, record: Record, number: int, epoch: int) -> VideoClip:
        path, meta = record.videos[number], record.clip_meta[number] or ClipMeta()
        draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
        with open_clip(_local(path), self.video_backend, frames_fps=meta.frames_fps, **self.decode_bounds) as clip:
            try:
                first, stop = frames_between(clip.frame_times, meta.video_start, meta.video_end)
                duration = clip.duration * (stop - first) / clip.frame_count
                plan = plan_frames(stop - first, duration, self.frame_options, meta, draw)
            except FramePlanError as error:
                raise FramePlanError(f"{path}: {error}") from None
            indices = tuple(first + index for index in plan.indices)
            frames = clip.read(indices)
            _check_shape(path, frames)
            times = tuple(clip.frame_times[index] for index in indices)
            info = FrameInfo(
                path=path,
                indices=indices,
                times=times,
                segments=plan.segments,
                seconds_per_frame=_seconds_per_frame(times, clip.duration),
                rescaled=plan.rescaled,
                fell_back=clip.fell_back,
            )
        return VideoClip(frames, info)


def _local(path: str) -> str:
    return fetch(path) if path.startswith(("http://", "https://")) else path


def _load_image(path: str) -> Tensor:
    image = load_image(_local(path))
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
    allow_remote_media: bool = False,
    columns: dict[str, str] | None = None,
    prompt_template: str | None = None,
    system: str | None = None,
    check_record: RecordCheck | None = None,
    stream: bool | None = None,
    **options: Any,
) -> GRPODataset:
    """Resolve, read and validate one or more data sets, and join them in the order given.

    Args:
        dataset_use: as for ``resolve_datasets``.
        allow_outside_media, allow_remote_media, columns, prompt_template, system: as ``ReadOptions`` has them.
        check_record: as for ``read_records``.
        stream: read rows of JSON lines files when they are asked for, not at the start; None: those above 512 MiB.
        options: of ``GRPODataset``; its ``seed`` also chooses the rows of ``name%NN``.

    Raises:
        RecordError, ValueError, FileNotFoundError: as its parts do; with ``on_bad_sample`` "error" also for media
            files that do not exist, before anything is decoded.
    """
    seed = options.get("seed", 0)
    read_options = ReadOptions(allow_outside_media, allow_remote_media, columns or {}, prompt_template, system)
    parts: list[Sequence[Record]] = []
    for source in resolve_datasets(dataset_use, catalog_path):
        lazily = is_large(source.annotation_path) if stream is None else stream
        read = RecordFile if lazily else read_records
        parts.append(read(source, seed=seed, options=read_options, check_record=check_record))
        if not lazily and options.get("on_bad_sample", "error") == "error":
            _check_media_exist(parts[-1])
    return GRPODataset(parts[0] if len(parts) == 1 else JoinedRecords(parts), **options)


def _check_media_exist(records: Sequence[Record]) -> None:
    missing = [
        f"{record.where}: no such file: {path}"
        for record in records
        for path in (*record.videos, *record.images)
        if not path.startswith(("http://", "https://")) and not os.path.exists(path)
    ]
    if missing:
        shown = missing[:5] + ["..."] * (len(missing) > 5)
        raise RecordError(
            f"{len(missing)} media files are missing; put them under the media root, or pass --on_bad_sample skip:"
            + "".join(f"\n  {line}" for line in shown)
        )
