"""Records to samples: media are decoded on access, and frames are chosen by (seed, epoch, record)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from qwenvl.data.chat import chat_messages
from qwenvl.data.errors import BadMediaError, FramePlanError, LongPromptError, full_memory_at, place_of
from qwenvl.data.frames import FrameRule, Looks, Timeline
from qwenvl.data.media.frame_cache import CachedClip, FrameCache
from qwenvl.data.media.images import load_image
from qwenvl.data.media.open import open_clip, resolve_backend
from qwenvl.data.media.reader import Clip
from qwenvl.data.media.resize import FrameSizes, check_size, read_resized
from qwenvl.data.media.source import check_media_exist, fetch
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import Part
from qwenvl.data.prompt_length import Lowered, MediaSizes, PromptLimit
from qwenvl.data.records.parse import ReadOptions, RecordCheck
from qwenvl.data.records.record_file import (
    STREAM_ABOVE,
    STREAM_ABOVE_RECORDS,
    JoinedRecords,
    RecordFile,
    spot_checked,
)
from qwenvl.data.records.sources import is_stream, sources_of
from qwenvl.types import BadSample, ClipMeta, FrameInfo, Record, Sample, VideoClip


class GRPODataset(Dataset):
    """Samples of records. Their media are decoded on access, in the process that accesses them.

    A key is (pass, index), as ``EpochSampler`` yields them, or an index alone (pass 0). The key None gives None, an
    empty place (see ``RepeatedSteps``).

    Args:
        records: as ``RecordFile.load`` returns them.
        parts: the data sets that the records come from, in order, or None for one without a name.
        options: how frames are chosen and decoded, and what becomes of media that can't be used.
        seed: of the frames drawn in training.
        limit: of the collator: what becomes of prompts that are too long. None leaves them to the collator.
        frame_cache: keeps frames that are not drawn anew each epoch. They come out of it resized. None decodes all.
        ruler: of the collator, or ``Thumbnails``: clips come resized, a few of their frames at a time being in memory
            at full size. None leaves resizing to the collator, except where there is a frame cache.
        training: draw the frames of ``dynamic_sample`` clips anew each epoch, else take them uniformly.
        changes: single options by name, such as ``base_interval``, in place of those of ``options``.

    Attributes:
        rule: by which frames are chosen.
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
        limit: PromptLimit | None = None,
        frame_cache: FrameCache | None = None,
        ruler: FrameSizes | None = None,
        **changes: Any,
    ) -> None:
        self.records = records
        self.parts = tuple(parts or [Part("", len(records))])
        self._ends = list(accumulate(part.size for part in self.parts))
        self.options = SampleOptions.of(options, **changes)
        self.decoder = resolve_backend(self.options.video_backend)  # an unusable one is an error now, not in a worker
        self.rule = FrameRule(self.options, seed, training)
        self.limit = limit
        self.frame_cache = frame_cache
        self.ruler = ruler

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int] | None) -> Sample | BadSample | None:
        if key is None:
            return None
        epoch, index = key if isinstance(key, tuple) else (0, key)
        return self.sample(self.record(index), epoch)

    def record(self, index: int) -> Record:
        """The record of a number, with the name of its data set where there are several."""
        number = index % len(self)
        record = replace(self.records[index], index=number)
        if len(self.parts) > 1:
            record = replace(record, dataset=self.parts[bisect_right(self._ends, number)].name)
        return record

    def sample(self, record: Record, epoch: int = 0) -> Sample | BadSample:
        """The sample of a record, or why there is none where ``on_bad_sample`` or ``on_long_prompt`` allow it."""
        try:
            return self.load(record, epoch)
        except LongPromptError as error:
            return self.limit.left_out(record, str(error))
        except (BadMediaError, FramePlanError) as error:
            message = f"{place_of(record)}: {error}"
            if self.options.on_bad_sample == "skip":
                return BadSample(record, message)
            raise BadMediaError(f"{message}. Mend the file or the record, or pass --on_bad_sample skip") from error

    def narrowed(self, keep: Callable[[Record], bool]) -> GRPODataset:
        """The same data set of the records that ``keep`` says True of. A part that none are left of is left out."""
        starts = [0, *self._ends]
        kept = [[i for i in range(*bounds) if keep(self.records[i])] for bounds in pairwise(starts)]
        parts = [replace(part, size=len(own)) for part, own in zip(self.parts, kept, strict=True) if own]
        records = [self.records[i] for own in kept for i in own]
        more: dict[str, Any] = {"limit": self.limit, "frame_cache": self.frame_cache, "ruler": self.ruler}
        return GRPODataset(records, self.options, parts=parts, seed=self.rule.seed, training=self.rule.training, **more)

    def load(self, record: Record, epoch: int = 0) -> Sample:
        """Return the sample of a record.

        Raises:
            BadMediaError, FramePlanError: the media can't be used, whatever ``on_bad_sample`` says.
            LongPromptError: the prompt is too long by the sizes in the headers of its media, whatever
                ``on_long_prompt`` says. Its clips are then not decoded.
            MemoryError: memory is full.
        """
        chat = chat_messages(record)
        with full_memory_at(f"{place_of(record)}: {', '.join((*record.videos, *record.images))}"):
            if self.limit is not None and (record.videos or record.images):
                return self._load_within(self.limit, record, chat, epoch)
            clips = tuple(self._load_clip(record, number, epoch) for number in range(len(record.videos)))
            return Sample(record, chat, clips, _load_images(record), epoch)

    def _load_within(self, limit: PromptLimit, record: Record, chat: list[dict[str, Any]], epoch: int) -> Sample:
        """The sample of a record, with less of its media shown where the prompt would be too long.

        Clips are measured by their headers first, so that each is decoded once, as far as it is shown. Where decoding
        then gives another size than the header, what is shown is settled again.
        """
        numbers = range(len(record.videos))
        with ExitStack() as opened:
            timelines, sizes = [], []
            clip: Clip | CachedClip | None = None
            for number in numbers:
                clip = self.open(record, number)
                opened.callback(clip.__exit__, None, None, None)
                check_size(record.videos[number], clip.size)
                timelines.append(self._timeline(record, number, clip))
                sizes.append(clip.size)
                if len(numbers) > 1:  # the time limit of an open clip runs on while others are read
                    opened.close()
                    clip = None
            images = _load_images(record)
            media = MediaSizes(tuple(sizes), record.clip_meta, tuple(tuple(image.shape[-2:]) for image in images))

            def times_with(most: int | None) -> list[list[float]]:
                plans = [self.rule.plan(record, n, epoch, timelines[n], most) for n in numbers]
                return [[line.times[i] for i in plan.indices] for plan, line in zip(plans, timelines, strict=True)]

            def loaded(lowered: Lowered) -> Sample:
                clips = tuple(self._load_clip(record, n, epoch, lowered, clip, timelines[n]) for n in numbers)
                return Sample(record, chat, clips, images, epoch)

            lowered = limit.settle(record, chat, media, times_with)
            sample = loaded(lowered or Lowered())
            if (true := MediaSizes.of(sample)) != media:
                again = limit.settle(record, chat, true, times_with)
                if again != lowered:
                    lowered, sample = again, loaded(again or Lowered())
        if lowered is None:
            return sample
        return replace(sample, fitted=limit.fitted(true, times_with(None), times_with(lowered.frames), lowered))

    def _load_clip(
        self,
        record: Record,
        number: int,
        epoch: int,
        lowered: Lowered = Lowered(),  # noqa: B008 (immutable)
        opened: Clip | CachedClip | None = None,
        timeline: Timeline | None = None,
    ) -> VideoClip:
        """A clip with its frames. With a cache or a ruler they are resized, and bounded by ``lowered``.

        Args:
            opened: the clip, where it is open already. It stays open.
            timeline: of the clip, where it is known already.
        """
        path = record.videos[number]
        with nullcontext(opened) if opened is not None else self.open(record, number) as clip:
            timeline = timeline or self._timeline(record, number, clip)
            plan = self.rule.plan(record, number, epoch, timeline, lowered.frames)
            cached, decoded_size = False, None
            if isinstance(clip, CachedClip):
                frames = clip.read(plan.indices, lowered.share)
                cached, decoded_size = clip.hit, clip.decoded_size
            elif (ruler := self.ruler) is not None:
                size_of = lambda size: ruler.frame_size(size, record.clip_meta[number], lowered.share)
                frames, decoded_size = read_resized(clip, plan.indices, size_of, ruler)
            else:
                frames = clip.read(plan.indices)
                check_size(path, frames.shape[-2:])
            times = tuple(clip.frame_times[index] for index in plan.indices)
            info = FrameInfo(
                path=path,
                indices=plan.indices,
                times=times,
                segments=plan.segments,
                seconds_per_frame=_seconds_per_frame(times, clip.duration),
                rescaled=plan.rescaled,
                cached=cached,
                notes=clip.notes,
            )
        return VideoClip(frames, info, decoded_size)

    def _timeline(self, record: Record, number: int, clip: Clip | CachedClip) -> Timeline:
        """When the frames of an open clip are shown, and how much changes where their places depend on it."""
        timeline = Timeline(clip.frame_times, clip.duration)
        looked = self.rule.frames_to_look_at(record, number, timeline)
        return timeline._replace(looks=Looks(looked, clip.look(looked))) if looked else timeline

    def open(self, record: Record, number: int) -> Clip | CachedClip:
        """Open the clip ``number`` of a record as its sample does. It is a context manager."""
        path, meta, options = _local(record.videos[number]), record.clip_meta[number] or ClipMeta(), self.options
        bounds = {"timeout": options.decode_timeout, "memory_gb": options.decode_memory_gb}
        strict = options.decode_check == "strict"
        opened = partial(open_clip, path, options.video_backend, frames_fps=meta.frames_fps, strict=strict, **bounds)
        if self.frame_cache is None:
            return opened()
        keep = not (meta.dynamic_sample and self.rule.training)
        return CachedClip(self.frame_cache, path, opened, self.decoder, meta, keep)


def _local(path: str) -> str:
    return fetch(path) if path.startswith(("http://", "https://")) else path


def _load_images(record: Record) -> tuple[Tensor, ...]:
    images = tuple(load_image(_local(path)) for path in record.images)
    for path, image in zip(record.images, images, strict=True):
        check_size(path, image.shape[-2:])
    return images


def _seconds_per_frame(times: tuple[float, ...], duration: float) -> float:
    """Mean distance of the distinct frames. A single one has the length of its clip, and a still one second."""
    distinct = len(set(times))
    if distinct > 1:
        return (times[-1] - times[0]) / (distinct - 1)
    return duration or 1.0


def load_dataset(
    dataset_use: Any,
    options: SampleOptions | None = None,
    *,
    name: str = "rows",
    most_rows: int | None = None,
    catalog_path: str | Path | None = None,
    allow_outside_media: bool = False,
    allow_remote_media: bool = False,
    columns: dict[str, str] | None = None,
    prompt_template: str | None = None,
    system: str | None = None,
    format: str | None = None,
    check_record: RecordCheck | None = None,
    stream_above: int = STREAM_ABOVE,
    stream_above_records: int = STREAM_ABOVE_RECORDS,
    seed: int = 0,
    **more: Any,
) -> GRPODataset:
    """Resolve, read and validate one or more data sets, and join them in the order given.

    Args:
        dataset_use: as for ``resolve_datasets``, or rows that ``given_rows`` takes, such as a list of dicts. Paths in
            rows start at the working folder.
        name, most_rows: of rows that are given: what they are called, and how many are read of a stream.
        allow_outside_media, allow_remote_media, columns, prompt_template, system, format: as ``ReadOptions`` has them.
        check_record, stream_above, stream_above_records: as for ``RecordFile`` and its ``load``.
        seed: of the frames drawn in training, and of the rows of ``name%NN``.
        options, more: of ``GRPODataset``.

    Raises:
        RecordError, ValueError, FileNotFoundError: as its parts do. With ``on_bad_sample`` "error" also for media
            files that do not exist, before anything is decoded. Of a streamed file a few records are looked at.
    """
    reading = ReadOptions(allow_outside_media, allow_remote_media, columns or {}, prompt_template, system, format)
    read: list[Sequence[Record]] = []
    parts: list[Part] = []
    for source, rows in sources_of(dataset_use, catalog_path, name, most_rows):
        file = RecordFile(source, seed=seed, options=reading, check_record=check_record, rows=rows)
        read.append(file.load(stream_above, stream_above_records))
        parts.append(Part(source.name, len(read[-1]), source.weight, file.read_as, is_stream(dataset_use)))
    dataset = GRPODataset(read[0] if len(read) == 1 else JoinedRecords(read), options, parts=parts, seed=seed, **more)
    if dataset.options.on_bad_sample == "error":
        for records in read:
            check_media_exist(records if isinstance(records, list) else spot_checked(records))
    return dataset
