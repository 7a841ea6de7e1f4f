"""The processor that is saved with a trained model: it makes the inputs of training, in plain transformers too.

Training resizes frames and images itself, by the flags. A checkpoint's own processor has other bounds, so that a model
loaded with it would see pictures of sizes that it was not trained on. What is saved therefore carries the bounds, the
frame rates and the chat template of the run, and the run's own settings are in a file beside it.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from transformers import ProcessorMixin, Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from qwenvl.data.chat import render_prompt
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.frames import FRAMES_PER_PATCH
from qwenvl.data.options import SampleOptions
from qwenvl.data.prompt_length import timed_metadata
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.types import Record

MANY_FRAMES = 768  # the most frames of a clip that Qwen-VL processors take by themselves
_ONE_CLIP = [{"role": "user", "content": [{"type": "video"}]}]

logger = logging.getLogger(__name__)


class TakenClip(NamedTuple):
    """Frames of a clip, F x 3 x H x W uint8, and their times as the processors of transformers take them."""

    frames: Tensor
    metadata: VideoMetadata


def read_clip(path: str | Path, run: str | Path) -> TakenClip:
    """Read the frames of a clip that evaluation during training would have shown to the model.

    Args:
        path: a video file, or a folder of frames.
        run: the folder of a trained model, with the settings that its training left there.

    Raises:
        BadMediaError: the clip can't be read.
        FileNotFoundError: the folder holds no settings.

    Example:
        >>> clip = read_clip("data/example/clips/lid.mp4", "runs/example")
        >>> inputs = processor(text=[text], videos=[clip.frames], video_metadata=[clip.metadata], return_tensors="pt")
    """
    dataset = GRPODataset([], SampleOptions(**asdict(PromptSettings.load(run).frames)), training=False)
    absolute = str(Path(path).absolute())  # the decoder's process may have been started in another folder
    record = Record(
        id=absolute,
        messages=(),
        solution="",
        videos=(absolute,),
        images=(),
        clip_meta=(None,),
        fields={},
        where=absolute,
    )
    (clip,) = dataset.load(record).videos
    metadata = timed_metadata(clip.info.times)
    # At 1 frame per second, this total tells Qwen2.5-VL's processor the seconds between the frames taken.
    metadata.total_num_frames = len(clip.info.times) * clip.info.seconds_per_frame
    return TakenClip(clip.frames, metadata)


def processor_as_trained(processor: ProcessorMixin, settings: PromptSettings) -> ProcessorMixin:
    """Return a copy of ``processor`` that makes of the same frames and images what training makes of them.

    Frames that are passed in are all taken: ``do_sample_frames`` is off. With ``do_sample_frames=True`` the processors
    sample a file at the run's rate and within its bounds, though by their own rule.

    The processor of Qwen3-VL and Qwen3.5 bounds the pixels of a whole clip, and training those of a frame. Its ceiling
    for a frame (``max_video_tokens``) holds the upper bound for every clip. Its lower bound is that of a clip of two
    frames, so that longer clips of frames below ``video_min_frame_pixels`` are scaled up less than in training, or not
    at all.
    """
    trained = copy.deepcopy(processor)
    prompts = settings.prompts
    image = trained.image_processor
    video = trained.video_processor
    image.size = _edges(image, prompts.min_pixels, prompts.max_pixels)
    low = prompts.video_min_frame_pixels
    high = prompts.video_max_frame_pixels
    least, most = settings.frames.frame_bounds
    if bounds_whole_clips(trained):
        _bound_whole_clips(video, low, high, most)
    else:
        video.size = _edges(video, low, high)
        video.cap_pixels_per_frame = False
    rates = {
        "fps": settings.frames_per_second,
        "min_frames": least,
        "max_frames": max(most - most % FRAMES_PER_PATCH, 1),
        "do_sample_frames": False,
    }
    for name, value in rates.items():
        setattr(video, name, value)
    if isinstance(trained.chat_template, str):
        trained.chat_template = _template_as_trained(trained, prompts.template_arguments)
    return trained


def bounds_whole_clips(processor: ProcessorMixin) -> bool:
    """Say whether the processor bounds the pixels of a whole clip, as that of Qwen3-VL does, and not of a frame."""
    return isinstance(processor.video_processor, Qwen3VLVideoProcessor)


def _bound_whole_clips(video: Qwen3VLVideoProcessor, low: int, high: int, most_frames: int) -> None:
    """Set bounds on the pixels of whole clips that come nearest to ``low`` and ``high`` for each frame."""
    if not hasattr(video, "max_video_tokens"):  # transformers before 5.20: no ceiling for a frame
        video.size = _edges(video, FRAMES_PER_PATCH * low, most_frames * high)
        return
    factor = video.patch_size * video.merge_size
    # The processor lets a frame have 1.05 times the lower bound of the clip, whatever the ceiling.
    least = min(FRAMES_PER_PATCH * low, int(high / 1.05))
    video.size = _edges(video, least, max(most_frames, MANY_FRAMES) * high)
    video.max_video_tokens = high / factor**2
    video.cap_pixels_per_frame = True


def _edges(processor: Any, low: int, high: int) -> Any:
    """The bounds on pixels in the form that ``processor`` keeps them in."""
    return type(processor.size)(shortest_edge=low, longest_edge=high)


def _template_as_trained(processor: ProcessorMixin, arguments: dict[str, Any]) -> str:
    """The chat template with the run's arguments as defaults, and with the vision tokens that training writes."""
    wanted = render_prompt(processor, _ONE_CLIP, arguments)
    template = processor.chat_template
    if hasattr(processor, "vision_start_token"):  # see render_prompt
        pad = processor.video_token
        template = template.replace(processor.vision_start_token + pad + processor.vision_end_token, pad)
    defaults = ""
    for name, value in arguments.items():
        defaults += f"{{%- if {name} is not defined %}}{{%- set {name} = {value!r} %}}{{%- endif %}}"
    template = defaults + template
    found = processor.apply_chat_template(_ONE_CLIP, template, tokenize=False, add_generation_prompt=True)
    if found != wanted:
        logger.warning(
            f"the chat template that is saved writes {found!r} for a clip where training writes {wanted!r}: its text "
            "could not be changed to fit. Whoever loads the model must change prompts accordingly"
        )
    return template
