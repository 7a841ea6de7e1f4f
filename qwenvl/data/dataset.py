"""Makes samples from records: media are decoded on access, and frames are chosen by (seed, epoch, record)."""

from __future__ import annotations

import base64
import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from qwenvl.data.chat import chat_messages
from qwenvl.data.errors import DATA_ERRORS, RecordError, full_memory_at, place_of
from qwenvl.data.fit import FrameFit, MeasuredPrompt
from qwenvl.data.frames import FramePlan, FrameRule, Timeline, uniform_indices
from qwenvl.data.media.open import open_clip, read_image, resolve_backend
from qwenvl.data.media.reader import Clip
from qwenvl.data.media.resize import BICUBIC, read_resized, resize, small
from qwenvl.data.media.shape import Size, check_shape
from qwenvl.data.media.source import check_media_exist
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import Part
from qwenvl.data.prompt_length import Ruler, image_sizes_of
from qwenvl.data.records.catalog import DatasetSource, resolve_datasets
from qwenvl.data.records.parse import ReadOptions, RecordCheck
from qwenvl.data.records.record_file import RecordFile, spot_checked
from qwenvl.data.records.sources import EXPECTED, given_rows
from qwenvl.data.views import seen_by
from qwenvl.failure import counted
from qwenvl.types import BadSample, ClipMeta, FrameInfo, Record, Sample, VideoClip


class GRPODataset(Dataset):
    """Samples of records. Their media are decoded on access, in the process that accesses them.

    A key is (pass, index), as ``EpochSampler`` yields them, or an index alone (pass 0). The key None gives None, an
    empty place (see ``RepeatedSteps``).

    Args:
        records: as ``RecordFile.load`` returns them.
        parts: the data sets that the records come from, in order, or None for one without a name.
        options: the choice and the decoding of frames, and the treatment of media that can't be used.
        seed: of the frames drawn in training.
        ruler: of the collator: clips come resized, a few of their frames at a time being in memory at full size. None
            leaves resizing to the collator.
        fit_to: tokens of a prompt, counted by the ``ruler``, above which fewer frames of its clips are taken, down to
            their lower bound. The collator refuses a prompt that is still too long.
        training: draw the frames of ``dynamic_sample`` clips anew each epoch, else take them uniformly.
        changes: single options by name, such as ``base_interval``, in place of those of ``options``.

    Attributes:
        rule: chooses frames.
        decoder: the backend behind ``video_backend`` on this machine, for logs and checkpoints.
        view: makes the record that a teacher sees from a record. None: samples have no ``teacher``.
        is_over: whether nobody wants the clips any more that are being decoded. None: they are always wanted.

    Example:
        >>> dataset = load_dataset("example")
        >>> dataset[2].videos[0].info.indices
        (0, 8, 16, 24)
    """

    is_over: Callable[[], bool] | None = None  # a server sets it, on a copy for each request

    def __init__(
        self,
        records: Sequence[Record],
        options: SampleOptions | None = None,
        *,
        parts: Sequence[Part] | None = None,
        seed: int = 0,
        training: bool = True,
        ruler: Ruler | None = None,
        fit_to: int | None = None,
        **changes: Any,
    ) -> None:
        self.records = records
        self.parts = tuple(parts or [Part("", len(records))])
        self._ends = list(accumulate(part.size for part in self.parts))
        self.options = SampleOptions.of(options, **changes)
        self.decoder = resolve_backend(self.options.video_backend)  # an unusable one is an error now, not in a worker
        self.rule = FrameRule(self.options, seed, training)
        self.ruler = ruler
        self.fit_to = fit_to
        self.view: Callable[[Record], Record] | None = None

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int] | None) -> Sample | BadSample | None:
        if key is None:
            return None
        epoch, index = key if isinstance(key, tuple) else (0, key)
        return self.sample(self.record(index), epoch)

    def record(self, index: int) -> Record:
        """The record of a number, with the name of its data set where there are several.

        Raises:
            IndexError: there are fewer records. ``for sample in dataset`` ends by it.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {counted(len(self), 'record')}")
        number = index % len(self)
        record = replace(self.records[index], index=number)
        if len(self.parts) > 1:
            record = replace(record, dataset=self.parts[bisect_right(self._ends, number)].name)
        return record

    def sample(self, record: Record, epoch: int = 0) -> Sample | BadSample:
        """The sample of a record, or why there is none where ``on_bad_sample`` allows it."""
        if record.problem:
            return BadSample(record, record.problem)
        try:
            sample = self.load(record, epoch)
            if self.view is None:
                return sample
            seen = seen_by(self.view, record)
            # A view that changes nothing costs no second decoding.
            teacher = sample if seen == record else self.load(seen, epoch)
            return replace(sample, teacher=teacher)
        except DATA_ERRORS as error:
            message = str(error) if isinstance(error, RecordError) else f"{place_of(record)}: {error}"
            if self.options.on_bad_sample == "skip":
                return BadSample(record, message)
            raise type(error)(f"{message}. Mend the file or the record, or pass --on_bad_sample skip") from error

    def narrowed(self, keep: Callable[[Record], bool]) -> GRPODataset:
        """A copy with the records for which ``keep`` is true. A part of the data set that keeps none is dropped."""
        parts: list[Part] = []
        records: list[Record] = []
        for part, (start, end) in zip(self.parts, pairwise([0, *self._ends]), strict=True):
            candidates = [self.records[i] for i in range(start, end)]
            # A bad row stays: it is counted when it is drawn.
            own = [record for record in candidates if record.problem or keep(record)]
            if own:
                parts.append(replace(part, size=len(own)))
                records += own
        narrowed = copy(self)
        narrowed.records = records
        narrowed.parts = tuple(parts)
        narrowed._ends = list(accumulate(part.size for part in parts))
        return narrowed

    def load(self, record: Record, epoch: int = 0) -> Sample:
        """Return the sample of a record.

        Raises:
            BadMediaError: the media can't be used, whatever ``on_bad_sample`` says.
            MemoryError: memory is full.
        """
        chat = chat_messages(record)
        clips: list[VideoClip] = []
        with full_memory_at(f"{place_of(record)}: {', '.join((*record.videos, *record.images))}"):
            images = tuple(map(self.load_image, record.images))
            fit = FrameFit()
            if self.fit_to is not None and record.videos:
                fit = self._measured(record, chat, images, epoch).fit(self.fit_to)
            for number in range(len(record.videos)):
                plan = partial(self.rule.plan, record, number, epoch, most=fit.most)
                clips.append(self.load_clip(record, number, plan))
        return Sample(record, chat, tuple(clips), images, epoch, fit.frames)

    def _measured(
        self, record: Record, chat: list[dict[str, Any]], images: tuple[Tensor, ...], epoch: int
    ) -> MeasuredPrompt:
        """The prompt of a record, to be measured with other numbers of frames. Its clips are opened, not decoded."""
        ruler = self.ruler
        assert ruler is not None  # it counts the tokens
        timelines: list[Timeline] = []
        sizes: list[Size] = []
        for number in range(len(record.videos)):
            with self.open(record, number) as clip:
                check_shape(record.videos[number], clip.size)
                timelines.append(Timeline(clip.frame_times, clip.duration))
                sizes.append(clip.size)
        stills: list[Size] = []
        for image, wanted in zip(images, image_sizes_of(record, len(images)), strict=True):
            stills.append(ruler.image_size((image.shape[-2], image.shape[-1]), wanted))
        return MeasuredPrompt(
            record=record,
            chat=chat,
            epoch=epoch,
            rule=self.rule,
            ruler=ruler,
            timelines=timelines,
            sizes=sizes,
            stills=stills,
        )

    def load_image(self, path: str) -> Tensor:
        """An image of a record: 3 x H x W, uint8."""
        options = self.options
        return read_image(path, timeout=options.decode_timeout, memory_gb=options.decode_memory_gb)

    def load_clip(self, record: Record, number: int, plan_of: Callable[[Timeline], FramePlan]) -> VideoClip:
        """The frames that ``plan_of`` chooses of the clip ``number`` of a record, resized by the ruler."""
        path = record.videos[number]
        meta = record.clip_meta[number]
        with self.open(record, number) as clip:
            plan = plan_of(Timeline(clip.frame_times, clip.duration))
            decoded_size = None
            if self.ruler is None:
                frames = clip.read(plan.indices)
                check_shape(path, frames.shape[-2:])
            else:
                size_of = partial(self.ruler.frame_size, meta=meta, frames=len(plan.indices))
                frames, decoded_size = read_resized(clip, plan.indices, size_of, self.ruler)
            times = tuple(clip.frame_times[index] for index in plan.indices)
            info = FrameInfo(
                path=path,
                indices=plan.indices,
                times=times,
                segments=plan.segments,
                seconds_per_frame=_seconds_per_frame(times, clip.duration),
                rescaled=plan.rescaled,
                duration=max(clip.duration, clip.frame_times[-1]),
            )
        return VideoClip(frames, info, decoded_size)

    def open(self, record: Record, number: int) -> Clip:
        """Open the clip ``number`` of a record as its sample does. It is a context manager."""
        meta = record.clip_meta[number] or ClipMeta()
        options = self.options
        return open_clip(
            record.videos[number],
            options.video_backend,
            timeout=options.decode_timeout,
            memory_gb=options.decode_memory_gb,
            strict=options.decode_check == "strict",
            frames_fps=meta.frames_fps,
            frame_times=meta.frame_times,
            is_over=self.is_over,
        )


@dataclass(frozen=True)
class Pictures:
    """The frames and images of a prompt, for rewards that see. They are read again when ``parts`` is called."""

    clips: tuple[FrameInfo, ...]
    images: tuple[str, ...]

    def __deepcopy__(self, memo: Any) -> Pictures:
        return self  # reward functions get copies of their columns

    def parts(self, most: int) -> list[dict[str, Any]]:
        """At most ``most`` frames, evenly spaced, and all images, as parts of a message of OpenAI's API.

        Several clips share the ``most`` frames, and each gives one at least. A text with the time, and of several clips
        with the number of the clip, comes before each picture.

        Raises:
            BadMediaError: a file cannot be read any more.
        """
        parts: list[dict[str, Any]] = []
        for number, clip in enumerate(self.clips, 1):
            place = f" of clip {number}" if len(self.clips) > 1 else ""
            time_of = dict(zip(clip.indices, clip.times, strict=True))  # the last frame may stand there twice
            shown = sorted(time_of)
            chosen = [shown[i] for i in uniform_indices(len(shown), max(1, most // len(self.clips)))]
            with open_clip(clip.path, timeout=SampleOptions.decode_timeout) as opened:
                frames, _ = read_resized(opened, chosen, small, BICUBIC)
            for index, frame in zip(chosen, frames, strict=True):
                parts += _titled_picture(f"The frame{place} at {time_of[index]:.2f} s:", frame)
        for path in self.images:
            image = read_image(path, timeout=SampleOptions.decode_timeout)
            size = small((image.shape[-2], image.shape[-1]))
            parts += _titled_picture("An image:", resize(image, size, BICUBIC))
        return parts


def _titled_picture(title: str, pixels: Tensor) -> list[dict[str, Any]]:
    """A text and a picture behind it, 3 x H x W uint8, as parts of a message of OpenAI's API."""
    data = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(data, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
    return [{"type": "text", "text": title}, {"type": "image_url", "image_url": {"url": url}}]


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
    catalog_path: str | Path | None = None,
    check_record: RecordCheck | None = None,
    seed: int = 0,
    **more: Any,
) -> GRPODataset:
    """Resolve, read and validate one or more data sets, and join them in the order given.

    Args:
        dataset_use: as for ``resolve_datasets``, or rows that ``given_rows`` takes, such as a list of dicts. Relative
            paths in rows start at the working folder.
        name: the name of given rows in errors.
        check_record: as for ``RecordFile``.
        seed: of the frames drawn in training, and of the rows of ``name%NN``.
        options: as for ``GRPODataset``.
        more: options of ``ReadOptions``, such as ``columns``, and further arguments of ``GRPODataset``.

    Raises:
        RecordError, ValueError, FileNotFoundError: as its parts do. With ``on_bad_sample`` "error" also for media
            files that do not exist, before anything is decoded. Of a large file a few records are looked at.
    """
    read_names = {each.name for each in fields(ReadOptions)}
    reading = ReadOptions(**{key: value for key, value in more.items() if key in read_names})
    more = {key: value for key, value in more.items() if key not in read_names}
    rows = None
    if isinstance(dataset_use, str | Path):
        sources = resolve_datasets(str(dataset_use), catalog_path)
    else:
        rows = given_rows(dataset_use, name)
        if rows is None:
            raise TypeError(f"{name}: {EXPECTED}, got {type(dataset_use).__name__}")
        sources = [DatasetSource(name, Path(name), Path.cwd())]
        # A script names the media itself: there is no folder of records that they could leave.
        reading = replace(reading, allow_outside_media=True)
    on_bad_sample = more.get("on_bad_sample", options.on_bad_sample if options else "error")
    read: list[Sequence[Record]] = []
    parts: list[Part] = []
    for source in sources:
        file = RecordFile(
            source,
            seed=seed,
            options=reading,
            check_record=check_record,
            rows=rows,
            skip=on_bad_sample == "skip",
        )
        records = file.load()
        read.append(records)
        parts.append(
            Part(
                name=source.name,
                size=len(records),
                weight=source.weight,
                read_as=file.read_as,
                first_number=file.first_number,
            )
        )
    joined = read[0] if len(read) == 1 else ConcatDataset(read)
    dataset = GRPODataset(joined, options, parts=parts, seed=seed, **more)
    if dataset.options.on_bad_sample == "error":
        for records in read:
            check_media_exist(records if isinstance(records, list) else spot_checked(records))
    return dataset
