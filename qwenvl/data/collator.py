"""Turns samples into the model inputs of a micro-batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from qwenvl.data.chat import opens_think
from qwenvl.data.errors import RecordError, place_of
from qwenvl.data.media.resize import resize
from qwenvl.data.options import PromptOptions
from qwenvl.data.prompt_length import MediaSizes, Ruler, timed_metadata
from qwenvl.types import BadSample, PromptBatch, Sample

VISION_INPUTS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")


@dataclass(eq=False)
class ProcessedSample:
    """The processor's output for one sample.

    Attributes:
        input_ids: L, without padding.
        opened_think: the prompt ends inside a think block.
        vision: those of ``VISION_INPUTS`` that the sample has. Patches are uint8, grids are media x 3.
    """

    sample: Sample
    input_ids: Tensor
    opened_think: bool
    vision: dict[str, Tensor]


class GRPOCollator:
    """Turns a list of samples into ``{"prompts": PromptBatch}``. None in the list is an empty place.

    Each sample goes through the model's own processor alone, so that nothing about it depends on its neighbours. Then
    the prompts are padded on the left. Frames and images are resized here, by the rule of the model's authors, and cut
    into patches as uint8, which are normalised on the device. For the processors of Qwen2-VL, Qwen2.5-VL and
    Qwen3-VL, which Qwen3.5 has too.

    Args:
        processor: of the model, with tokenizer, image and video processor and chat template.
        options: bounds on the pixels of frames and images and on the length of a prompt. Prompts are never cut.
        tools: the schemas of tools that prompts offer.
        changes: single options by name, such as ``max_pixels``, in place of those of ``options``.

    Raises:
        RecordError: when called, for a prompt above ``max_prompt_length``, naming the record.

    Example:
        >>> batch = GRPOCollator(processor)([dataset[0], dataset[1]])["prompts"]
        >>> batch.input_ids.shape[0]
        2
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        options: PromptOptions | None = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        **changes: Any,
    ) -> None:
        self.processor = processor
        self.options = options = PromptOptions.of(options, **changes)
        frames = (options.video_min_frame_pixels, options.video_max_frame_pixels)
        arguments = options.template_arguments | ({"tools": list(tools)} if tools else {})
        self.ruler = Ruler(processor, frames, (options.min_pixels, options.max_pixels), arguments)

    def __call__(self, samples: list[Sample | BadSample | None]) -> dict[str, PromptBatch]:
        prompts: list[ProcessedSample] = []
        bad: list[BadSample] = []
        for sample in samples:
            if sample is None:
                continue
            if isinstance(sample, BadSample):
                bad.append(sample)
                continue
            prompt = self.process(sample)
            problem = self._length_problem(prompt)
            if problem:
                bad.append(BadSample(sample.record, problem))
            else:
                prompts.append(prompt)
        batch = self.join(prompts, bad)
        batch.teacher = self._teacher_batch(prompts, batch)
        return {"prompts": batch}

    def _teacher_batch(self, prompts: list[ProcessedSample], own: PromptBatch) -> PromptBatch | None:
        """The prompts as the teacher sees them, or None where samples have no such view. All of a data set do, or none.

        Args:
            own: the policy's batch of these prompts.
        """
        seen = [prompt.sample.teacher for prompt in prompts if prompt.sample.teacher is not None]
        if not seen:
            return None
        if all(prompt.sample.record is other.record for prompt, other in zip(prompts, seen, strict=True)):
            return replace(own)  # the view changed nothing: both batches share their tensors
        return self.join([self.process(sample) for sample in seen])

    def process(self, sample: Sample, text: str | None = None) -> ProcessedSample:
        """The tokens and patches of a sample.

        Args:
            text: with one token for each image and clip. None: that of the sample's prompt.
        """
        image_processor = self.processor.image_processor
        video_processor = self.processor.video_processor
        sizes = self.ruler.sizes(MediaSizes.of(sample))
        n_clips = len(sample.videos)
        clips = [
            resize(clip.frames, size, video_processor)
            for clip, size in zip(sample.videos, sizes[:n_clips], strict=True)
        ]
        images = [
            resize(image, size, image_processor) for image, size in zip(sample.images, sizes[n_clips:], strict=True)
        ]
        # The pictures have their size, and patches stay bytes: the device normalises them.
        as_is = {"do_resize": False, "do_rescale": False, "do_normalize": False, "input_data_format": "channels_first"}
        # The frames are chosen, and their times are the true ones.
        sampled = {
            "video_metadata": [timed_metadata(clip.info.times) for clip in sample.videos],
            "do_sample_frames": False,
            "return_metadata": True,
            "cap_pixels_per_frame": False,
        }
        text = self.ruler.text(sample.chat) if text is None else text
        inputs = self.processor(
            text=[text],
            images=images or None,
            videos=clips or None,
            images_kwargs=as_is,
            videos_kwargs=as_is | sampled if clips else {},
            text_kwargs={"padding": False},
            return_tensors="pt",
        )
        vision = {key: inputs[key] for key in VISION_INPUTS if key in inputs}
        return ProcessedSample(sample, inputs["input_ids"][0], opens_think(text), vision)

    def _length_problem(self, prompt: ProcessedSample) -> str:
        """The problem of a prompt above ``max_prompt_length``, an empty text for other prompts.

        Raises:
            RecordError: with ``on_long_prompt`` "error", saying what to do.
        """
        tokens = len(prompt.input_ids)
        longest = self.options.max_prompt_length
        if longest is None or tokens <= longest:
            return ""
        vision_ids = torch.tensor([self.processor.image_token_id, self.processor.video_token_id])
        vision = int(torch.isin(prompt.input_ids, vision_ids).sum())
        fitted = " even with the fewest frames," if prompt.sample.fitted else ""
        problem = (
            f"{place_of(prompt.sample.record)}: the prompt has {tokens} tokens, {vision} of them vision,{fitted} but "
            f"max_prompt_length is {longest}"
        )
        if self.options.on_long_prompt == "error":
            raise RecordError(
                f"{problem}; raise it, show less (--fit_frames, --video_max_frames, --video_max_frame_pixels, "
                "--max_pixels, or the bounds in `meta`), or pass --on_long_prompt skip",
                "too long",
            )
        return problem

    def join(self, prompts: list[ProcessedSample], bad: Sequence[BadSample] = ()) -> PromptBatch:
        """The samples as one batch, padded on the left."""
        samples = [prompt.sample for prompt in prompts]
        ids, mask = self._pad([prompt.input_ids for prompt in prompts])
        vision: dict[str, Tensor | None] = {}
        for key in VISION_INPUTS:
            # The models take the patches of all media of a batch in one row, in the order of the prompts.
            parts = [prompt.vision[key] for prompt in prompts if key in prompt.vision]
            vision[key] = torch.cat(parts) if parts else None
        frames = [[clip.info for clip in sample.videos] for sample in samples]
        # One temporal patch covers a pair of frames.
        frames_per_patch = self.processor.video_processor.temporal_patch_size
        seconds = [frames_per_patch * info.seconds_per_frame for info in chain.from_iterable(frames)]
        return PromptBatch(
            records=[sample.record for sample in samples],
            epochs=[sample.epoch for sample in samples],
            frames=frames,
            input_ids=ids,
            attention_mask=mask,
            seconds_per_grid=torch.tensor(seconds, dtype=torch.float32) if seconds else None,
            images_per_prompt=[len(sample.images) for sample in samples],
            videos_per_prompt=[len(sample.videos) for sample in samples],
            fitted=[sample.fitted for sample in samples],
            opened_think=[prompt.opened_think for prompt in prompts],
            bad=list(bad),
            **vision,
        )

    def _pad(self, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Ids and attention mask, P x L, padded on the left. Without rows they are 0 x 0."""
        if not rows:
            empty = torch.zeros(0, 0, dtype=torch.long)
            return empty, empty.clone()
        pad_id = self.processor.tokenizer.pad_token_id
        ids = pad_sequence(rows, batch_first=True, padding_value=pad_id, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        return ids, mask
