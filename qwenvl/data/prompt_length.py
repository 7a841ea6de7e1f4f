"""How long a prompt is in tokens, from its text and the sizes of its media, and what is lowered to keep a bound on it.

The sizes come from decoded media, where a prompt is built, or from headers, where it is planned or only put in order.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import av
import torch
from transformers import ProcessorMixin
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.video_utils import VideoMetadata

from qwenvl.data.chat import chat_messages, check_template_arguments, render_prompt
from qwenvl.data.errors import BadMediaError, FramePlanError, LongPromptError, place_of
from qwenvl.data.frames import FrameRule, Timeline
from qwenvl.data.media.container import frame_size, open_video
from qwenvl.data.media.images import FrameFolder, image_size
from qwenvl.data.media.resize import Size
from qwenvl.data.media.source import frame_list
from qwenvl.types import BadSample, ClipMeta, Fitted, Record, Sample

HEADER_SECONDS = 5.0
PIXEL_STEPS = 64  # a finer share would change few sizes: they are multiples of 28 or 32 pixels
Times = Sequence[Sequence[float]]
"""For each clip the times of its frames, in seconds."""


class PromptLength(NamedTuple):
    """The tokens of a prompt, and how many of them stand for vision."""

    tokens: int
    vision: int


class MediaSizes(NamedTuple):
    """The media of a prompt: the size of each clip's frames and of each image as they are, before any resizing.

    Attributes:
        metas: for each clip what its record says of it.
    """

    clips: tuple[Size, ...]
    metas: tuple[ClipMeta | None, ...]
    images: tuple[Size, ...]

    @classmethod
    def of(cls, sample: Sample) -> MediaSizes:
        """Take the sizes from decoded media."""
        clips = tuple(tuple(clip.decoded_size or clip.frames.shape[-2:]) for clip in sample.videos)
        return cls(clips, sample.record.clip_meta, tuple(tuple(image.shape[-2:]) for image in sample.images))


@dataclass(frozen=True)
class Ruler:
    """Measures prompts in the tokens of a processor.

    Attributes:
        processor: of Qwen2-VL, Qwen2.5-VL or Qwen3-VL, which Qwen3.5 has too.
        frame_bounds, image_bounds: least and most pixels of a video frame and of an image.
        template_arguments: of the chat template, as for ``render_prompt``.
    """

    processor: ProcessorMixin
    frame_bounds: tuple[int, int]
    image_bounds: tuple[int, int]
    template_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_template_arguments(self.processor, self.template_arguments)

    def text(self, chat: list[dict[str, Any]]) -> str:
        """Return the text of a prompt, with one token for each image and clip."""
        return render_prompt(self.processor, chat, self.template_arguments)

    @property
    def resample(self) -> int:
        """The interpolation of frames, by its number in Pillow."""
        return self.processor.video_processor.resample

    def frame_size(self, size: Size, meta: ClipMeta | None, share: float = 1.0) -> Size:
        """Return what frames of ``size`` are resized to. ``share`` is that of ``image_size``."""
        return _resized(size, self.processor.video_processor, _own_bounds(self.frame_bounds, meta), share)

    def image_size(self, size: Size, share: float = 1.0) -> Size:
        """Return what an image of ``size`` is resized to, by the rule of the model's authors.

        Args:
            share: of the pixels that it would have, how many it may have at most. The lower bound holds.
        """
        return _resized(size, self.processor.image_processor, self.image_bounds, share)

    def sizes(self, media: MediaSizes, share: float = 1.0) -> list[Size]:
        """Return what the frames of each clip, then each image, are resized to. ``share`` is that of ``image_size``."""
        clips = zip(media.clips, media.metas, strict=True)
        return [self.frame_size(size, meta, share) for size, meta in clips] + [
            self.image_size(size, share) for size in media.images
        ]

    def length(
        self, chat: list[dict[str, Any]], clips: Sequence[tuple[Sequence[float], Size]], images: Sequence[Size]
    ) -> PromptLength:
        """Return how many tokens a prompt has.

        Args:
            clips: for each the times of its frames, an even number, and their size when resized.
            images: sizes when resized.
        """
        video, image = self.processor.video_processor, self.processor.image_processor
        vision, replaced, pieces = 0, len(images), []
        for times, (height, width) in clips:
            pairs = len(times) // video.temporal_patch_size
            vision += pairs * _tokens(height, width, video)
            replaced += pairs
            pieces.append(self._clip_text(times, pairs))
        vision += sum(_tokens(height, width, image) for height, width in images)
        text, *rest = self.text(chat).split(self.processor.video_token)
        text += "".join(piece + after for piece, after in zip(pieces, rest, strict=True))
        return PromptLength(len(self.processor.tokenizer(text)["input_ids"]) + vision - replaced, vision)

    def _clip_text(self, times: Sequence[float], pairs: int) -> str:
        """What the processor writes for a clip, with one token for each pair of frames."""
        merge = self.processor.video_processor.merge_size
        inputs = {
            "video_grid_thw": torch.tensor([[pairs, merge, merge]]),
            "video_metadata": [timed_metadata(times)],
        }
        return self.processor.replace_video_token(inputs, 0)


def timed_metadata(times: Sequence[float]) -> VideoMetadata:
    """Return metadata whose frame numbers are seconds. At 1 frame per second, number / rate is the true time."""
    return VideoMetadata(total_num_frames=len(times), fps=1.0, frames_indices=list(times))


def _own_bounds(bounds: tuple[int, int], meta: ClipMeta | None) -> tuple[int, int]:
    """The record's pixel bounds where it has them. Where only one is its own, the other gives way."""
    low, high = (meta.min_pixels, meta.max_pixels) if meta else (None, None)
    if low is None:
        return (bounds[0], bounds[1]) if high is None else (min(bounds[0], high), high)
    return low, max(bounds[1], low) if high is None else high


def _resized(size: Size, processor: Any, bounds: tuple[int, int], share: float) -> Size:
    """By the rule of the model's authors, here because processors disagree on what the bounds count: Qwen3-VL's takes
    them for the whole clip."""
    factor = processor.patch_size * processor.merge_size
    height, width = smart_resize(*size, factor, min_pixels=bounds[0], max_pixels=bounds[1])
    if share < 1:
        most = max(bounds[0], int(share * height * width))
        height, width = smart_resize(*size, factor, min_pixels=bounds[0], max_pixels=most)
    return height, width


def _tokens(height: int, width: int, processor: Any) -> int:
    """Of an image, or of a pair of frames."""
    return height * width // (processor.patch_size * processor.merge_size) ** 2


@dataclass(frozen=True)
class Lowered:
    """What is shown less of a prompt.

    Attributes:
        frames: at most so many frames of each clip, or None for as many as are planned.
        share: of the pixels of each frame and image, how many are kept at most.
    """

    frames: int | None = None
    share: float = 1.0


@dataclass(frozen=True)
class PromptLimit:
    """Finds out whether a prompt is too long, and how many frames and pixels it may have.

    With ``fit_frames`` the frames are lowered first. Every clip has at most the largest number of frames with which the
    prompt fits, spread anew over the clip, and never fewer than its lower bound. Where even that is too long, the
    pixels are lowered too. Every frame and image keeps at most the largest share of its pixels, in 64ths, with which
    the prompt fits, and never fewer than its lower bound.

    Attributes:
        max_prompt_length: in tokens, vision tokens included.
        on_long_prompt: what becomes of a prompt that stays too long, an error or a ``BadSample``.
        fit_frames: lower frames and pixels of prompts that are too long.
        lock: held while tokens are counted, where several threads share the tokenizer.
    """

    ruler: Ruler
    max_prompt_length: int
    on_long_prompt: Literal["error", "skip"] = "error"
    fit_frames: bool = False
    lock: AbstractContextManager = field(default_factory=nullcontext)

    def settle(
        self, record: Record, chat: list[dict[str, Any]], media: MediaSizes, times_with: Callable[[int | None], Times]
    ) -> Lowered | None:
        """Return what has to be lowered, or None where the prompt fits as it is.

        Args:
            times_with: the times of the frames of each clip, with at most so many of them.

        Raises:
            LongPromptError: the prompt is too long, and nothing may be lowered, or not enough.
        """
        with self.lock:
            times, sizes = times_with(None), self.ruler.sizes(media)
            length = self._length(chat, times, sizes)
            if length.tokens <= self.max_prompt_length:
                return None
            if not self.fit_frames or not sizes:
                raise LongPromptError(self.problem(record, length))
            caps = range(1, max(map(len, times), default=0) + 1)
            fitting = self._fitting(caps, lambda cap: self._length(chat, times_with(cap), sizes))
            lowered = Lowered(max(1, fitting))
            if fitting:
                return lowered
            times = times_with(lowered.frames)
            shares = [step / PIXEL_STEPS for step in range(1, PIXEL_STEPS + 1)]
            fitting = self._fitting(shares, lambda share: self._length(chat, times, self.ruler.sizes(media, share)))
            if not fitting:
                least = self._length(chat, times, self.ruler.sizes(media, shares[0]))
                raise LongPromptError(self.problem(record, least, lowered=True))
            return Lowered(lowered.frames, shares[fitting - 1])

    def fitted(self, media: MediaSizes, planned: Times, shown: Times, lowered: Lowered) -> Fitted:
        """Return what was lowered as rollouts record it: numbers of frames, and sizes, before and after."""
        sizes = zip(self.ruler.sizes(media), self.ruler.sizes(media, lowered.share), strict=True)
        return Fitted(tuple(zip(map(len, planned), map(len, shown), strict=True)), tuple(sizes))

    def problem(self, record: Record, length: PromptLength, lowered: bool = False) -> str:
        """Return what is wrong with a prompt of so many tokens, for people."""
        least = " even with the fewest frames and pixels," if lowered else ""
        return (
            f"{place_of(record)}: the prompt has {length.tokens} tokens, {length.vision} of them vision,"
            f"{least} but max_prompt_length is {self.max_prompt_length}"
        )

    def left_out(self, record: Record, problem: str) -> BadSample:
        """Return the sample that stands for a prompt that is too long.

        Raises:
            LongPromptError: with ``on_long_prompt`` "error", saying what to do.
        """
        if self.on_long_prompt == "error":
            raise LongPromptError(
                f"{problem}; raise it, show less (--video_max_frames, --video_max_frame_pixels, --max_pixels, or the "
                "bounds in `meta`), or pass --on_long_prompt skip"
            )
        return BadSample(record, problem)

    def _fitting(self, candidates: Sequence[Any], length: Callable[[Any], PromptLength]) -> int:
        """How many of the candidates fit, the smallest being the first."""
        return bisect_right(candidates, self.max_prompt_length, key=lambda candidate: length(candidate).tokens)

    def _length(self, chat: list[dict[str, Any]], times: Times, sizes: Sequence[Size]) -> PromptLength:
        clips = list(zip(times, sizes, strict=False))  # the images' sizes come after the clips'
        return self.ruler.length(chat, clips, sizes[len(clips) :])


def what_was_lowered(fitted: Fitted) -> str:
    """Return what was lowered in words.

    Example:
        >>> what_was_lowered(Fitted(frames=((16, 10),), sizes=(((112, 168), (84, 168)),)))
        '10 of 16 frames, 168 x 84 pixels in place of 168 x 112'
    """
    frames = [f"{after} of {before} frames" for before, after in fitted.frames if after != before]
    sizes = ["{3} x {2} pixels in place of {1} x {0}".format(*b, *a) for b, a in fitted.sizes if a != b]
    return ", ".join(frames + sizes)


class ClipHeader(NamedTuple):
    """What the header of a clip says: frames, seconds, and the size of a frame as stored."""

    frame_count: int
    duration: float
    size: Size


def read_header(path: str, frames_fps: float | None = None) -> ClipHeader:
    """Read the header of a file, or those of a folder or list of images.

    Raises:
        BadMediaError: there is none, or it does not say how long the clip is.
    """
    if os.path.isdir(path) or frame_list(path) is not None:
        folder = FrameFolder(path, frames_fps)
        return ClipHeader(folder.frame_count, folder.duration, image_size(folder.files[0]))
    try:
        container, stream = open_video(path, HEADER_SECONDS)
        with closing(container):
            whole = Fraction(container.duration or 0, av.time_base)
            seconds = stream.duration * stream.time_base if stream.duration else whole
            count = stream.frames or round(seconds * (stream.average_rate or 0))
            size = frame_size(stream)
    except (av.FFmpegError, OSError) as error:
        raise BadMediaError(path, f"its header can't be read: {error}") from None
    if count < 1 or seconds <= 0:
        raise BadMediaError(path, "its header does not say how long it is")
    return ClipHeader(count, float(seconds), size)


class EvenTimes(Sequence[float]):
    """``count`` times from 0 on, ``gap`` seconds apart, without a list of them."""

    def __init__(self, count: int, gap: float) -> None:
        self._numbers = range(count)
        self._gap = gap

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> float:
        return self._numbers[index] * self._gap


@dataclass(frozen=True)
class LengthEstimate:
    """Estimates how many tokens the prompt of a (pass, index) of a data set will have.

    The estimate only orders prompts, so it may be off. Headers round durations. Media that cannot be opened, or that
    lie on another machine, count as their upper bounds. What is shown is decided when a clip is read.

    Attributes:
        records: of the data set.
        rule: by which the frames of its clips are chosen.
        most: in tokens, where longer prompts are made to fit, else None.
    """

    records: Sequence[Record]
    rule: FrameRule
    ruler: Ruler
    most: int | None = None

    def __call__(self, key: tuple[int, int]) -> int:
        return self.measured(key).tokens

    def measured(self, key: tuple[int, int]) -> PromptLength:
        """The tokens of a prompt, and how many of them stand for vision."""
        turn, index = key
        record = self.records[index]
        clips = [self._clip(record, number, turn) for number in range(len(record.videos))]
        images = [_image_size(path) or _square(self.ruler.image_bounds[1]) for path in record.images]
        resized = [self.ruler.image_size(size) for size in images]
        length = self.ruler.length(chat_messages(record), clips, resized)
        if self.most is None or length.tokens <= self.most:
            return length
        return PromptLength(self.most, max(0, self.most - length.tokens + length.vision))

    def _clip(self, record: Record, number: int, turn: int) -> tuple[Sequence[float], Size]:
        """Times and size of the frames that will be shown."""
        meta = record.clip_meta[number]
        try:
            count, duration, size = read_header(record.videos[number], (meta or ClipMeta()).frames_fps)
            timeline = Timeline(EvenTimes(count, duration / count), duration)
            plan = self.rule.plan(record, number, turn, timeline)
        except (BadMediaError, FramePlanError):
            most = self.rule.options.video_max_frames
            return EvenTimes(most + most % 2, 1.0), self.ruler.frame_size(_square(self.ruler.frame_bounds[1]), meta)
        return [timeline.times[i] for i in plan.indices], self.ruler.frame_size(size, meta)


def _image_size(path: str) -> Size | None:
    try:
        return image_size(path)
    except BadMediaError:
        return None


def _square(pixels: int) -> Size:
    return round(pixels**0.5), round(pixels**0.5)
