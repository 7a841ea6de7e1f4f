"""Prompts as the model's forward takes them: positions added, pixels normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from qwenvl.model.positions import PositionRule, prompt_positions
from qwenvl.types import PromptBatch, select_media

KINDS_OF_MEDIA = (
    ("pixel_values", "image_grid_thw", "images_per_prompt"),
    ("pixel_values_videos", "video_grid_thw", "videos_per_prompt"),
)
"""Fields of ``PromptBatch`` and ``PromptInputs``: patches, grids, counts."""
VISION = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
ROWS = ("input_ids", "attention_mask", "position_ids")
LARGE = 64 * 2**20
"""Bytes of a micro-batch's pixels above which the features of a step wait in the memory of the CPU. For Qwen2.5-VL
these are the pixels of 14,000 prompt tokens. A step on so many takes seconds, and the copies a small part of one."""


def media_bytes(batch: PromptBatch | PromptInputs) -> int:
    """Of its pixels or features."""
    return sum(value.nbytes for value in (batch.pixel_values, batch.pixel_values_videos) if value is not None)


def is_large(batch: PromptBatch) -> bool:
    """Whether the features of its step wait in the memory of the CPU."""
    return media_bytes(batch) > LARGE


@dataclass
class PromptInputs:
    """P prompts, ready for a forward. Or N completions with media that tools have appended to them.

    Attributes:
        input_ids, attention_mask: P x L, left-padded. Completions are N x T, right-padded, with positions that go on
            from those of their prompts.
        position_ids: 3 x P x L M-RoPE positions (time, height, width).
        pixel_values, pixel_values_videos: normalised patches, patches x patch values, float. Before the vision tower
            runs once (``encode_vision``) they may be bytes, and afterwards they are its features before the merger, in
            the same rows. None without images or videos.
        image_grid_thw, video_grid_thw: images x 3, videos x 3, in patches.
        images_per_prompt, videos_per_prompt: P counts. Media lie in prompt order.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    pixel_values_videos: Tensor | None
    video_grid_thw: Tensor | None
    images_per_prompt: list[int]
    videos_per_prompt: list[int]

    @classmethod
    def of_text(cls, input_ids: Tensor) -> PromptInputs:
        """Prompts of P x L text tokens, without padding or media."""
        counts, positions = [0] * len(input_ids), torch.arange(input_ids.shape[1], device=input_ids.device)
        rows = torch.ones_like(input_ids), positions.expand(3, len(input_ids), -1)
        return cls(input_ids, *rows, None, None, None, None, counts, counts)

    def __len__(self) -> int:
        return len(self.input_ids)

    @classmethod
    def join(cls, parts: Sequence[PromptInputs], left: bool = True) -> PromptInputs:
        """All rows of ``parts``, in order, padded to the longest, on the left or on the right.

        Media must be in one form, pixels or features.
        """
        length = max(part.input_ids.shape[1] for part in parts)

        def rows(name: str) -> Tensor:
            values = [getattr(part, name) for part in parts]
            missing = [length - value.shape[-1] for value in values]
            padded = [pad(value, (n, 0) if left else (0, n)) for value, n in zip(values, missing, strict=True)]
            return torch.cat(padded, dim=-2)

        def media(name: str) -> Tensor | None:
            values = [value for part in parts if (value := getattr(part, name)) is not None]
            return torch.cat([value.to(values[0].device) for value in values]) if values else None

        return cls(
            **{name: rows(name) for name in ROWS},
            **{name: media(name) for name in VISION},
            images_per_prompt=[count for part in parts for count in part.images_per_prompt],
            videos_per_prompt=[count for part in parts for count in part.videos_per_prompt],
        )

    def vision(self) -> dict[str, Tensor]:
        """The vision arguments of a forward, those that are there, on the device of the prompts."""
        device = self.input_ids.device  # media may wait on the CPU
        return {name: value.to(device) for name in VISION if (value := getattr(self, name)) is not None}

    def media_to(self, kind: str | torch.dtype) -> PromptInputs:
        """The same prompts, with pixels or features on another device, or of another type."""
        media = {name: value.to(kind) for name, *_ in KINDS_OF_MEDIA if (value := getattr(self, name)) is not None}
        return replace(self, **media)

    def moved(self, by: int | Tensor) -> PromptInputs:
        """The same rows with positions that are greater by so much."""
        return replace(self, position_ids=self.position_ids + by)

    def followed_by(self, others: PromptInputs) -> PromptInputs:
        """Each row with the row of the same number of ``others`` behind it, and the media of both in this order."""
        tensors = {
            name: torch.cat([getattr(self, name), getattr(others, name).to(getattr(self, name))], dim=-1)
            for name in ROWS
        }
        media: dict[str, Any] = {}
        for values, grids, counts in KINDS_OF_MEDIA:
            parts = [
                select_media(getattr(rows, values), getattr(rows, grids), getattr(rows, counts), [n])
                for n in range(len(self))
                for rows in (self, others)
                if getattr(rows, counts)[n]
            ]
            if parts:  # else blank media stay
                columns = zip(*parts, strict=True)  # some may wait on the CPU
                media[values], media[grids] = (torch.cat([x.to(each[0].device) for x in each]) for each in columns)
            media[counts] = [a + b for a, b in zip(getattr(self, counts), getattr(others, counts), strict=True)]
        return replace(self, **tensors, **media)

    def vision_with(self, others: PromptInputs | None) -> dict[str, Tensor]:
        """The vision arguments of a forward whose media are those of all rows, then those of all rows of ``others``."""
        own = self.vision()
        more = {} if others is None else others.vision()
        for values, grids, _ in KINDS_OF_MEDIA:
            if values in own and values in more and len(own[values]):  # else own ones are blank
                own |= {name: torch.cat([own[name], more.pop(name)]) for name in (values, grids)}
        return own | more

    def repeat(self, group_size: int) -> PromptInputs:
        """Every prompt ``group_size`` times in a row, its media too: N rows."""
        return self.select([p for p in range(len(self)) for _ in range(group_size)])

    def select(self, rows: list[int]) -> PromptInputs:
        """The rows ``rows``, as often as named, with their media. Columns of nothing but padding are cut."""
        media: dict[str, Any] = {}
        for values, grids, counts in KINDS_OF_MEDIA:
            own = getattr(self, counts)
            media[values], media[grids] = select_media(getattr(self, values), getattr(self, grids), own, rows)
            media[counts] = [own[row] for row in rows]
        mask = self.attention_mask[rows]
        full = mask.any(0).nonzero().flatten().tolist() or [0]
        columns = slice(full[0], full[-1] + 1)
        return replace(
            self,
            input_ids=self.input_ids[rows, columns],
            attention_mask=mask[:, columns],
            position_ids=self.position_ids[:, rows, columns],
            **media,
        )


@dataclass(frozen=True)
class PixelScale:
    """The normalisation of a processor, applied to uint8 patches: (x * rescale - mean) / std, per channel.

    The rows of a patch hold channel, time, height, width in this order, for images and videos alike.
    """

    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, processor) -> PixelScale:
        """From an image or video processor of transformers."""
        rescale = float(processor.rescale_factor) if processor.do_rescale else 1.0
        if not processor.do_normalize:
            return cls(rescale, (0.0,), (1.0,))
        return cls(rescale, tuple(processor.image_mean), tuple(processor.image_std))

    def __call__(self, patches: Tensor) -> Tensor:
        """patches x values, uint8 -> float32."""
        # Mean and standard deviation are scaled, not the pixels: the fused form that processors use, to the last bit.
        mean = torch.tensor(self.mean, device=patches.device).mul(1 / self.rescale)[:, None]
        std = torch.tensor(self.std, device=patches.device).mul(1 / self.rescale)[:, None]
        channels = patches.float().unflatten(1, (len(self.mean), -1))
        return channels.sub_(mean).div_(std).flatten(1)


@dataclass(frozen=True)
class InputBuilder:
    """Turns prompt batches into model inputs: ``InputBuilder.of(rule, processor)(batch)``."""

    rule: PositionRule
    scales: tuple[PixelScale, PixelScale]  # of images and of videos

    @classmethod
    def of(cls, rule: PositionRule, processor: Any) -> InputBuilder:
        """From a rule of positions and a Qwen-VL processor of transformers.

        Raises:
            ValueError: the model takes other tokens for images or videos than the processor writes.
        """
        for kind in ("image", "video"):
            ours, theirs = getattr(rule, f"{kind}_token_id"), getattr(processor, f"{kind}_token_id")
            if ours != theirs:
                token = getattr(processor, f"{kind}_token")
                raise ValueError(
                    f"{kind}_token_id {ours} in the model's config.json: expected {theirs}, which {token} is in its "
                    "tokenizer; copy config.json and the tokenizer's files from the same model"
                )
        scales = PixelScale.of(processor.image_processor), PixelScale.of(processor.video_processor)
        return cls(rule, scales)

    def __call__(self, batch: PromptBatch) -> PromptInputs:
        """Positions by the model's rule, pixels normalised in float32 on the batch's device."""
        inputs = self.as_bytes(batch)
        for (name, *_), scale in zip(KINDS_OF_MEDIA, self.scales, strict=True):
            if (patches := getattr(inputs, name)) is not None:
                inputs = replace(inputs, **{name: scale(patches)})
        return inputs

    def as_bytes(self, batch: PromptBatch) -> PromptInputs:
        """The same with the pixels as they were drawn, a quarter of the size: for ``encode_vision`` with ``scales``."""
        grids = batch.image_grid_thw, batch.video_grid_thw, batch.seconds_per_grid
        return PromptInputs(
            batch.input_ids,
            batch.attention_mask,
            prompt_positions(self.rule, batch.input_ids, batch.attention_mask, *grids),
            **{name: getattr(batch, name) for names in KINDS_OF_MEDIA for name in names},
        )
