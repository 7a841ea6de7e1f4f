"""The length of a prompt in tokens, from its text and the sizes of its media.

The sizes come from decoded media, where a prompt is built, or from headers, where it is planned or only put in order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import av
import torch
from jinja2.meta import find_undeclared_variables
from transformers import ProcessorMixin
from transformers.image_utils import PILImageResampling
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.utils.chat_template_utils import _compile_jinja_template
from transformers.video_utils import VideoMetadata

from qwenvl.data.chat import chat_messages, check_template_arguments, render_prompt
from qwenvl.data.errors import BadMediaError
from qwenvl.data.frames import FRAMES_PER_PATCH, FrameRule, Timeline
from qwenvl.data.library_rules import frame_size_by_library, image_size_by_library
from qwenvl.data.media.container import frame_size, open_video
from qwenvl.data.media.open import HEADER_SECONDS, is_of_images, open_clip, read_image_size
from qwenvl.data.media.shape import Size, check_shape
from qwenvl.data.options import PromptOptions
from qwenvl.types import ClipMeta, FrameInfo, LibrarySize, Record, Sample

MAX_FRAMES = 2_000_000  # 18 hours at 30 a second; headers that claim more are noise


class PromptLength(NamedTuple):
    """The tokens of a prompt, and how many of them stand for vision."""

    tokens: int
    vision: int


class MediaSizes(NamedTuple):
    """The media of a prompt with their sizes in the files, before any resizing.

    Attributes:
        clips: for each clip the height and width of its frames.
        metas: for each clip the settings of its record.
        images: for each image its height and width.
        infos: for each clip the frames that are shown.
        image_sizes: for each image the size that its record asks for, or None.
    """

    clips: tuple[Size, ...]
    metas: tuple[ClipMeta | None, ...]
    images: tuple[Size, ...]
    infos: tuple[FrameInfo, ...] = ()
    image_sizes: tuple[LibrarySize | None, ...] = ()

    @classmethod
    def of(cls, sample: Sample) -> MediaSizes:
        """Take the sizes from decoded media."""
        return cls(
            clips=tuple(tuple(clip.decoded_size or clip.frames.shape[-2:]) for clip in sample.videos),
            metas=sample.record.clip_meta,
            images=tuple(tuple(image.shape[-2:]) for image in sample.images),
            infos=tuple(clip.info for clip in sample.videos),
            image_sizes=image_sizes_of(sample.record, len(sample.images)),
        )


def image_sizes_of(record: Record, count: int) -> tuple[LibrarySize | None, ...]:
    """For each image of a record the size that the record asks for, None where it asks for none."""
    return record.image_sizes or (None,) * count


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

    @classmethod
    def without_model(cls, options: PromptOptions) -> Ruler:
        """A ruler with the patches of Qwen2.5-VL, which sizes frames and images and counts no tokens."""
        sizes = SimpleNamespace(patch_size=14, merge_size=2, resample=PILImageResampling.BICUBIC)
        processor: Any = SimpleNamespace(video_processor=sizes, image_processor=sizes)
        frames = options.video_min_frame_pixels, options.video_max_frame_pixels
        return cls(processor, frames, (options.min_pixels, options.max_pixels))

    def text(self, chat: list[dict[str, Any]]) -> str:
        """Return the text of a prompt, with one token for each image and clip."""
        return render_prompt(self.processor, chat, self.template_arguments)

    @property
    def effective_arguments(self) -> dict[str, Any]:
        """The arguments that the chat template reads, with their values in prompts: given, or set by the template.

        A value of None means neither: the template decides where it reads the argument. Conversation and tools are
        left out.
        """
        template = self.processor.chat_template or ""
        environment = _compile_jinja_template(template).environment
        read = find_undeclared_variables(environment.parse(template))
        read -= {"messages", "tools", "add_generation_prompt", *self.processor.tokenizer.special_tokens_map}
        # A template may set a variable that it was not given. So its end is made to print them, as JSON behind a zero
        # byte, which no prompt has: {{ { 'enable_thinking': enable_thinking if ... else none } | tojson }}
        entries = [f"'{name}': {name} if {name} is string or {name} is number else none" for name in sorted(read)]
        printed = "{{ { " + ", ".join(entries) + " } | tojson }}"
        chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
        text = self.processor.apply_chat_template(
            chat,
            f"{template}\0{printed}",
            add_generation_prompt=True,
            tokenize=False,
            **self.template_arguments,
        )
        values = json.loads(text.rpartition("\0")[2])
        return {name: self.template_arguments.get(name, value) for name, value in values.items()}

    @property
    def resample(self) -> int:
        """The interpolation of frames, by its number in Pillow."""
        return self.processor.video_processor.resample

    def frame_size(self, size: Size, meta: ClipMeta | None, frames: int = FRAMES_PER_PATCH) -> Size:
        """Return what frames of ``size`` are resized to.

        Args:
            frames: the number of shown frames of the clip, which share the ``total_pixels`` of a row.
        """
        processor = self.processor.video_processor
        if meta is not None and meta.size is not None:
            return frame_size_by_library(size, meta.size, factor_of(processor), self.frame_bounds, frames)
        return _resized(size, processor, _own_bounds(self.frame_bounds, meta))

    def image_size(self, size: Size, wanted: LibrarySize | None = None) -> Size:
        """Return what an image of ``size`` is resized to.

        Args:
            wanted: the size that its row asks for.
        """
        processor = self.processor.image_processor
        if wanted is not None:
            return image_size_by_library(size, wanted, factor_of(processor), self.image_bounds)
        return _resized(size, processor, self.image_bounds)

    def sizes(self, media: MediaSizes) -> list[Size]:
        """Return what the frames of each clip, then each image, are resized to."""
        clips = zip(media.clips, media.metas, media.infos, strict=True)
        return [
            *(self.frame_size(size, meta, len(info.indices)) for size, meta, info in clips),
            *map(self.image_size, media.images, media.image_sizes),
        ]

    def length(
        self, chat: list[dict[str, Any]], clips: Sequence[tuple[Sequence[float], Size]], images: Sequence[Size]
    ) -> PromptLength:
        """Return how many tokens a prompt has.

        Args:
            clips: for each the times of its frames, an even number, and their size when resized.
            images: sizes when resized.
        """
        return self.length_of(self.text(chat), clips, images)

    def length_of(
        self, text: str, clips: Sequence[tuple[Sequence[float], Size]], images: Sequence[Size]
    ) -> PromptLength:
        """Return how many tokens a rendered text has, which holds one token for each image and clip.

        Args:
            clips, images: see ``length``.
        """
        video = self.processor.video_processor
        image = self.processor.image_processor
        vision = 0
        placeholders = len(images)  # tokens of the text that stand for an image or a pair of frames
        clip_texts = []
        for times, (height, width) in clips:
            pairs = len(times) // video.temporal_patch_size
            vision += pairs * _tokens(height, width, video)
            placeholders += pairs
            clip_texts.append(self._clip_text(times, pairs))
        vision += sum(_tokens(height, width, image) for height, width in images)
        before, *behind = text.split(self.processor.video_token)
        text = before
        for clip_text, after in zip(clip_texts, behind, strict=True):
            text += clip_text + after
        tokens = len(self.processor.tokenizer(text)["input_ids"])
        return PromptLength(tokens - placeholders + vision, vision)

    def _clip_text(self, times: Sequence[float], pairs: int) -> str:
        """The text that the processor writes for a clip, with one token for each pair of frames."""
        merge = self.processor.video_processor.merge_size
        # A grid of merge x merge patches is one token.
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
    low, high = bounds
    if meta is None:
        return low, high
    if meta.min_pixels is not None:
        low = meta.min_pixels
        high = max(high, low)
    if meta.max_pixels is not None:
        high = meta.max_pixels
        if meta.min_pixels is None:
            low = min(low, high)
    return low, high


def _resized(size: Size, processor: Any, bounds: tuple[int, int]) -> Size:
    """The size that a picture is resized to by the rule of the model's authors.

    It is called here because processors disagree on the bounds: that of Qwen3-VL takes them for the whole clip.
    """
    return smart_resize(*size, factor_of(processor), min_pixels=bounds[0], max_pixels=bounds[1])


def factor_of(processor: Any) -> int:
    """Pixels of a side that a vision token covers."""
    return processor.patch_size * processor.merge_size


def _tokens(height: int, width: int, processor: Any) -> int:
    """The vision tokens of an image, or of a pair of frames."""
    return height * width // factor_of(processor) ** 2


def read_header(
    path: str, frames_fps: float | None = None, frame_times: tuple[float, ...] | None = None
) -> tuple[Timeline, Size]:
    """The times of a clip's frames and their size, by the header of the file, or of a folder or list of images.

    Args:
        frames_fps, frame_times: of a folder or list, see ``FrameFolder``.

    Raises:
        BadMediaError: there is none, or it does not say how long the clip is.
    """
    if is_of_images(path):
        with open_clip(path, timeout=HEADER_SECONDS, frames_fps=frames_fps, frame_times=frame_times) as folder:
            return Timeline(folder.frame_times, folder.duration), folder.size
    try:
        container, stream = open_video(path, HEADER_SECONDS)
        with closing(container):
            whole = Fraction(container.duration or 0, av.time_base)
            seconds = stream.duration * stream.time_base if stream.duration and stream.time_base else whole
            count = stream.frames or round(seconds * (stream.average_rate or 0))
            size = frame_size(stream)
    except (av.FFmpegError, OSError) as error:
        raise BadMediaError(path, f"its header can't be read: {error}") from None
    if not 1 <= count <= MAX_FRAMES or seconds <= 0:
        raise BadMediaError(path, "its header does not say how long it is")
    # The header has no times of frames: they are taken to be evenly spaced.
    times = [i * float(seconds) / count for i in range(count)]
    return Timeline(times, float(seconds)), size


@dataclass(frozen=True)
class LengthEstimate:
    """Estimates how many tokens the prompt of a (pass, index) of a data set will have.

    The estimate only orders prompts, so it may be off. Headers round durations. Media that cannot be used
    count as their upper bounds. What is shown is decided when a clip is read.

    Attributes:
        records: those of the data set.
        rule: chooses the frames of its clips.
        most: the tokens that longer prompts are made to fit, None where they are not.
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
        images: list[Size] = []
        for path, wanted in zip(record.images, image_sizes_of(record, len(record.images)), strict=True):
            size = _image_size(path) or _square(self.ruler.image_bounds[1])
            images.append(self.ruler.image_size(size, wanted))
        length = self.ruler.length(chat_messages(record), clips, images)
        if self.most is None or length.tokens <= self.most:
            return length
        # Frames are left out until the prompt fits, so that the text stays.
        text = length.tokens - length.vision
        return PromptLength(self.most, max(0, self.most - text))

    def _clip(self, record: Record, number: int, turn: int) -> tuple[Sequence[float], Size]:
        """Times and size of the frames that will be shown."""
        meta = record.clip_meta[number]
        own = meta or ClipMeta()
        try:
            timeline, size = read_header(record.videos[number], own.frames_fps, own.frame_times)
            check_shape(record.videos[number], size)
            plan = self.rule.plan(record, number, turn, timeline)
        except BadMediaError:
            most = self.rule.options.frame_bounds[1]
            largest = _square(self.ruler.frame_bounds[1])
            return range(most + most % FRAMES_PER_PATCH), self.ruler.frame_size(largest, meta)
        times = [timeline.times[i] for i in plan.indices]
        return times, self.ruler.frame_size(size, meta, len(plan.indices))


def _image_size(path: str) -> Size | None:
    """The size of an image by its header, or None where it cannot be used."""
    try:
        size = read_image_size(path, timeout=HEADER_SECONDS)
        check_shape(path, size)
    except BadMediaError:
        return None
    return size


def _square(pixels: int) -> Size:
    """Height and width of a square with about so many pixels."""
    side = round(pixels**0.5)
    return side, side
