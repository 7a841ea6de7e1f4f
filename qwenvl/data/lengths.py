"""How large media become for the model and how long a prompt gets, from their sizes alone: no pixels are touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import ProcessorMixin
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.video_utils import VideoMetadata

from qwenvl.data.chat import check_template_arguments, render_prompt
from qwenvl.types import ClipMeta, Sample

Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class Ruler:
    """Measures prompts in the tokens of a processor.

    Attributes:
        processor: of Qwen2-VL, Qwen2.5-VL or Qwen3-VL.
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

    def frame_size(self, size: Size, meta: ClipMeta | None, share: float = 1.0) -> Size:
        """What frames of ``size`` are resized to; ``share`` as for ``image_size``."""
        return _resized(size, self.processor.video_processor, _own_bounds(self.frame_bounds, meta), share)

    def image_size(self, size: Size, share: float = 1.0) -> Size:
        """What an image of ``size`` is resized to by the rule of the model's authors.

        Args:
            share: of the pixels that it would have, how many it may have at most; the lower bound holds.
        """
        return _resized(size, self.processor.image_processor, self.image_bounds, share)

    def sizes(self, sample: Sample, share: float = 1.0) -> list[Size]:
        """What the frames of each clip and then each image are resized to; ``share`` as for ``image_size``."""
        clips = zip(sample.videos, sample.record.clip_meta, strict=True)
        return [self.frame_size(clip.decoded_size or clip.frames.shape[-2:], meta, share) for clip, meta in clips] + [
            self.image_size(image.shape[-2:], share) for image in sample.images
        ]

    def length(
        self, chat: list[dict[str, Any]], clips: Sequence[tuple[Sequence[float], Size]], images: Sequence[Size]
    ) -> int:
        """Tokens of a prompt, vision tokens included.

        Args:
            clips: for each the times of its frames, an even number, and their size when resized.
            images: sizes when resized.
        """
        video, image = self.processor.video_processor, self.processor.image_processor
        pads, pieces = 0, []
        for times, (height, width) in clips:
            pairs = len(times) // video.temporal_patch_size
            pads += pairs * (_tokens(height, width, video) - 1)
            pieces.append(self._clip_text(times, pairs))
        pads += sum(_tokens(height, width, image) - 1 for height, width in images)
        text, *rest = self.text(chat).split(self.processor.video_token)
        text += "".join(piece + after for piece, after in zip(pieces, rest, strict=True))
        return len(self.processor.tokenizer(text)["input_ids"]) + pads

    def _clip_text(self, times: Sequence[float], pairs: int) -> str:
        """What the processor writes for a clip, with one token for each pair of frames."""
        merge = self.processor.video_processor.merge_size
        inputs = {
            "video_grid_thw": torch.tensor([[pairs, merge, merge]]),
            "video_metadata": [timed_metadata(times)],
        }
        return self.processor.replace_video_token(inputs, 0)


def timed_metadata(times: Sequence[float]) -> VideoMetadata:
    """Metadata whose frame numbers are seconds: at 1 frame per second, number / rate is then the true time."""
    return VideoMetadata(total_num_frames=len(times), fps=1.0, frames_indices=list(times))


def _own_bounds(bounds: tuple[int, int], meta: ClipMeta | None) -> tuple[int, int]:
    """The record's pixel bounds where it has them; where only one is its own, the other gives way."""
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
