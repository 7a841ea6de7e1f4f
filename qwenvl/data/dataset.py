"""Records to samples: decode the media when asked, choose the frames by (run seed, epoch, record)."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from qwenvl.data.chat import chat_messages
from qwenvl.data.errors import BadMediaError, FramePlanError, RecordError
from qwenvl.data.fit import Fitter
from qwenvl.data.frames import FramePlan, frames_between, plan_frames
from qwenvl.data.lengths import Size
from qwenvl.data.media.frame_cache import CachedClip, FrameCache
from qwenvl.data.media.images import load_image
from qwenvl.data.media.open import Clip, open_clip, resolve_backend
from qwenvl.data.media.resize import check_shape
from qwenvl.data.media.source import fetch
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import Part
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.parse import ReadOptions, RecordCheck
from qwenvl.data.records.record_file import STREAM_ABOVE, JoinedRecords, open_records
from qwenvl.data.seeds import stable_random
from qwenvl.types import BadSample, ClipMeta, FrameInfo, Record, Sample, VideoClip


class Timeline(NamedTuple):
    """When the frames of a clip are shown, and how long it lasts, in seconds."""

    times: Sequence[float]
    duration: float


class GRPODataset(Dataset):
    """Samples of records; media are decoded when a sample is asked for, in the process that asks.

    An item is asked for by (pass, index), as ``EpochSampler`` yields them, or by index alone (pass 0); None gives None,
    an empty place (see ``RepeatedSteps``).

    Args:
        records: as ``open_records`` gives them.
        parts: the data sets that the records come from, in order; None for one without a name.
        options: how frames are chosen and decoded, and what becomes of media that can't be used.
        seed: of the frames drawn in training.
        fitter: lowers frames and pixels of prompts that are too long; None shows them as they are.
        frame_cache: keeps frames that are not drawn anew each epoch; they come out of it resized. None decodes all.
        training: draw the frames of ``dynamic_sample`` clips anew each epoch; else take them uniformly.
        changes: single options by name, such as ``base_interval``, in place of those of ``options``.

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
        options: SampleOptions | None = None,
        *,
        parts: Sequence[Part] | None = None,
        seed: int = 0,
        training: bool = True,
        fitter: Fitter | None = None,
        frame_cache: FrameCache | None = None,
        **changes: Any,
    ) -> None:
        self.records = records
        self.parts = tuple(parts or [Part("", len(records))])
        self._ends = list(accumulate(part.size for part in self.parts))
        self.options = SampleOptions.of(options, **changes)
        self.decoder = resolve_backend(self.options.video_backend)  # an unusable one is an error now, not in a worker
        self.seed = seed
        self.training = training
        self.fitter = fitter
        self.frame_cache = frame_cache

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int] | None) -> Sample | BadSample | None:
        if key is None:
            return None
        epoch, index = key if isinstance(key, tuple) else (0, key)
        record = self.records[index]
        if len(self.parts) > 1:
            record = replace(record, dataset=self.parts[bisect_right(self._ends, index % len(self))].name)
        try:
            return self.load(record, epoch)
        except (BadMediaError, FramePlanError) as error:
            message = f"{record.where} (id {record.id}): {error}"
            if self.options.on_bad_sample == "skip":
                return BadSample(record, message)
            raise BadMediaError(f"{message}. Mend the file or the record, or pass --on_bad_sample skip") from error

    def load(self, record: Record, epoch: int = 0) -> Sample:
        """The sample of a record.

        Raises:
            BadMediaError, FramePlanError: whatever ``on_bad_sample`` says.
        """
        clips = [self._load_clip(record, number, epoch) for number in range(len(record.videos))]
        images = tuple(_load_image(path) for path in record.images)
        sample = Sample(record, chat_messages(record), tuple(clip for clip, _ in clips), images, epoch)
        timelines = [timeline for _, timeline in clips]
        return sample if self.fitter is None else self._fitted(sample, timelines, self.fitter)

    def _fitted(self, sample: Sample, timelines: list[Timeline], fitter: Fitter) -> Sample:
        """The sample with fewer frames where it is too long; pixels are left to the collator."""
        record, epoch = sample.record, sample.epoch

        def times_with(most: int) -> list[list[float]]:
            plans = [self.plan(record, n, epoch, timeline, most) for n, timeline in enumerate(timelines)]
            return [[timeline.times[i] for i in plan.indices] for plan, timeline in zip(plans, timelines, strict=True)]

        found = fitter(sample, times_with)
        if found is None:
            return sample
        fitted, most = found
        videos = list(sample.videos)
        for number, (clip, frames, sizes) in enumerate(zip(videos, fitted.frames, fitted.sizes, strict=False)):
            resized_otherwise = clip.decoded_size is not None and sizes[0] != sizes[1]
            if frames[0] != frames[1] or resized_otherwise:
                videos[number], _ = self._load_clip(record, number, epoch, most, sizes[1])
        return replace(sample, videos=tuple(videos), fitted=fitted)

    def _load_clip(
        self, record: Record, number: int, epoch: int, most: int | None = None, size: Size | None = None
    ) -> tuple[VideoClip, Timeline]:
        """A clip with at most ``most`` frames, and where it is cached resized to ``size``."""
        path, meta = record.videos[number], record.clip_meta[number] or ClipMeta()
        with self._open(path, meta) as clip:
            timeline = Timeline(clip.frame_times, clip.duration)
            plan = self.plan(record, number, epoch, timeline, most)
            cached, decoded_size = False, None
            if isinstance(clip, CachedClip):
                frames = clip.read(plan.indices, size)
                cached, decoded_size = clip.hit, clip.decoded_size
            else:
                frames = clip.read(plan.indices)
                check_shape(path, frames)
            times = tuple(clip.frame_times[index] for index in plan.indices)
            info = FrameInfo(
                path=path,
                indices=plan.indices,
                times=times,
                segments=plan.segments,
                seconds_per_frame=_seconds_per_frame(times, clip.duration),
                rescaled=plan.rescaled,
                cached=cached,
            )
        return VideoClip(frames, info, decoded_size), timeline

    def _open(self, path: str, meta: ClipMeta) -> Clip | CachedClip:
        path = _local(path)
        options = self.options
        bounds = {"timeout": options.decode_timeout, "memory_gb": options.decode_memory_gb}
        opened = partial(open_clip, path, options.video_backend, frames_fps=meta.frames_fps, **bounds)
        if self.frame_cache is None:
            return opened()
        return self.frame_cache.open(path, opened, self.decoder, meta, keep=not (meta.dynamic_sample and self.training))

    def plan(self, record: Record, number: int, epoch: int, timeline: Timeline, most: int | None = None) -> FramePlan:
        """Which frames of the record's clip ``number`` are shown, at most ``most`` of them.

        Raises:
            FramePlanError: the clip and its ``meta`` contradict each other.
        """
        meta = record.clip_meta[number] or ClipMeta()
        draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
        try:
            first, stop = frames_between(timeline.times, meta.video_start, meta.video_end)
            duration = timeline.duration * (stop - first) / len(timeline.times)
            plan = plan_frames(stop - first, duration, self.options, meta, draw, most)
        except FramePlanError as error:
            raise FramePlanError(f"{record.videos[number]}: {error}") from None
        return replace(plan, indices=tuple(first + index for index in plan.indices))


def _local(path: str) -> str:
    return fetch(path) if path.startswith(("http://", "https://")) else path


def _load_image(path: str) -> Tensor:
    image = load_image(_local(path))
    check_shape(path, image)
    return image


def _seconds_per_frame(times: tuple[float, ...], duration: float) -> float:
    """Mean distance of the distinct frames; for a single one the length of its clip, or one second for a still."""
    distinct = len(set(times))
    if distinct > 1:
        return (times[-1] - times[0]) / (distinct - 1)
    return duration or 1.0


def load_dataset(
    dataset_use: str,
    options: SampleOptions | None = None,
    *,
    catalog_path: str | Path | None = None,
    allow_outside_media: bool = False,
    allow_remote_media: bool = False,
    columns: dict[str, str] | None = None,
    prompt_template: str | None = None,
    system: str | None = None,
    check_record: RecordCheck | None = None,
    stream_above: int = STREAM_ABOVE,
    seed: int = 0,
    **more: Any,
) -> GRPODataset:
    """Resolve, read and validate one or more data sets, and join them in the order given.

    Args:
        dataset_use: as for ``resolve_datasets``.
        allow_outside_media, allow_remote_media, columns, prompt_template, system: as ``ReadOptions`` has them.
        check_record, stream_above: as for ``open_records``.
        seed: of the frames drawn in training, and of the rows of ``name%NN``.
        options, more: of ``GRPODataset``.

    Raises:
        RecordError, ValueError, FileNotFoundError: as its parts do; with ``on_bad_sample`` "error" also for media
            files that do not exist, before anything is decoded.
    """
    read_options = ReadOptions(allow_outside_media, allow_remote_media, columns or {}, prompt_template, system)
    read: list[Sequence[Record]] = []
    sources = resolve_datasets(dataset_use, catalog_path)
    for source in sources:
        read.append(
            open_records(source, seed=seed, options=read_options, check_record=check_record, stream_above=stream_above)
        )
    parts = [Part(source.name, len(records), source.weight) for source, records in zip(sources, read, strict=True)]
    dataset = GRPODataset(read[0] if len(read) == 1 else JoinedRecords(read), options, parts=parts, seed=seed, **more)
    if dataset.options.on_bad_sample == "error":
        for records in read:
            if isinstance(records, list):
                _check_media_exist(records)
    return dataset


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
