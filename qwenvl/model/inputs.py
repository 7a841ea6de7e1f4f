"""Prompts as the model's forward takes them: positions added, pixels normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from qwenvl.model.positions import PositionRule, prompt_positions
from qwenvl.types import PromptBatch, select_media


class MediaFields(NamedTuple):
    """The fields of ``PromptBatch`` and ``PromptInputs`` that hold one kind of media.

    Attributes:
        values: of the patches, or of features.
        grids: of their grids.
        counts: of how many each prompt has.
    """

    values: str
    grids: str
    counts: str


_IMAGES = MediaFields("pixel_values", "image_grid_thw", "images_per_prompt")
_VIDEOS = MediaFields("pixel_values_videos", "video_grid_thw", "videos_per_prompt")
KINDS_OF_MEDIA = (_IMAGES, _VIDEOS)
"""Images and videos, in the order in which forwards take them."""
VISION = (_IMAGES.values, _IMAGES.grids, _VIDEOS.values, _VIDEOS.grids)
"""The arguments of a forward that hold media."""
ROWS = ("input_ids", "attention_mask", "position_ids")
LARGE = 64 * 2**20
"""Bytes of a micro-batch's pixels above which the features of a step wait in the memory of the CPU. For Qwen2.5-VL
these are the pixels of 14,000 prompt tokens. A step on so many takes seconds, and the copies a small part of one."""


def media_bytes(batch: PromptBatch | PromptInputs) -> int:
    """Bytes of the pixels or features of a batch."""
    media = (batch.pixel_values, batch.pixel_values_videos)
    return sum(value.nbytes for value in media if value is not None)


def is_large(batch: PromptBatch) -> bool:
    """True for a batch with so many pixels that the features of its step wait in the memory of the CPU."""
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
        rows, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device)
        return cls(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            position_ids=positions.expand(3, rows, -1),
            pixel_values=None,
            image_grid_thw=None,
            pixel_values_videos=None,
            video_grid_thw=None,
            images_per_prompt=[0] * rows,
            videos_per_prompt=[0] * rows,
        )

    def __len__(self) -> int:
        return len(self.input_ids)

    @classmethod
    def join(cls, parts: Sequence[PromptInputs], left: bool = True) -> PromptInputs:
        """All rows of ``parts``, in order, padded to the longest, on the left or on the right.

        Media must be in one form, pixels or features.
        """
        length = max(part.input_ids.shape[1] for part in parts)
        joined: dict[str, Any] = {}
        for name in ROWS:
            padded = []
            for part in parts:
                values = getattr(part, name)
                missing = length - values.shape[-1]
                padded.append(pad(values, (missing, 0) if left else (0, missing)))
            joined[name] = torch.cat(padded, dim=-2)  # rows are the last but one dimension of positions too
        for name in VISION:
            present = [getattr(part, name) for part in parts if getattr(part, name) is not None]
            joined[name] = _cat_on_first_device(present) if present else None
        for kind in KINDS_OF_MEDIA:
            joined[kind.counts] = []
            for part in parts:
                joined[kind.counts] += getattr(part, kind.counts)
        return cls(**joined)

    def vision(self) -> dict[str, Tensor]:
        """The vision arguments of a forward: those that are not None, on the device of the prompts."""
        device = self.input_ids.device  # media may wait on the CPU
        arguments = {name: getattr(self, name) for name in VISION}
        return {name: value.to(device) for name, value in arguments.items() if value is not None}

    def media_to(self, target: str | torch.dtype) -> PromptInputs:
        """The same prompts, with pixels or features on another device, or of another type."""
        media = {kind.values: getattr(self, kind.values) for kind in KINDS_OF_MEDIA}
        moved = {name: value.to(target) for name, value in media.items() if value is not None}
        return replace(self, **moved)

    def moved(self, by: int | Tensor) -> PromptInputs:
        """The same rows with positions that are greater by ``by``: for all rows, or for each (rows x 1)."""
        return replace(self, position_ids=self.position_ids + by)

    def followed_by(self, others: PromptInputs) -> PromptInputs:
        """Each row with the row of the same number of ``others`` behind it, and the media of both in this order."""
        joined: dict[str, Any] = {}
        for name in ROWS:
            first = getattr(self, name)
            joined[name] = torch.cat([first, getattr(others, name).to(first)], dim=-1)
        for kind in KINDS_OF_MEDIA:
            values: list[Tensor] = []
            grids: list[Tensor] = []
            counts: list[int] = []
            for n in range(len(self)):
                counts.append(getattr(self, kind.counts)[n] + getattr(others, kind.counts)[n])
                for rows in (self, others):
                    if getattr(rows, kind.counts)[n]:
                        own_values, own_grids = rows._media_of(kind, [n])
                        assert own_values is not None and own_grids is not None
                        values.append(own_values)
                        grids.append(own_grids)
            joined[kind.counts] = counts
            if values:  # else blank media stay
                joined[kind.values] = _cat_on_first_device(values)
                joined[kind.grids] = _cat_on_first_device(grids)
        return replace(self, **joined)

    def vision_with(self, others: PromptInputs | None) -> dict[str, Tensor]:
        """The vision arguments of a forward whose media are those of all rows, then those of all rows of ``others``."""
        own = self.vision()
        if others is None:
            return own
        of_others = others.vision()
        joined = own | of_others  # blank media of the first rows give way to those of the others
        for kind in KINDS_OF_MEDIA:
            if kind.values in own and kind.values in of_others and len(own[kind.values]):
                for name in (kind.values, kind.grids):
                    joined[name] = torch.cat([own[name], of_others[name]])
        return joined

    def repeat(self, group_size: int) -> PromptInputs:
        """Every prompt ``group_size`` times in a row, its media too: N rows."""
        rows: list[int] = []
        for p in range(len(self)):
            rows += [p] * group_size
        return self.select(rows)

    def select(self, rows: list[int]) -> PromptInputs:
        """The rows ``rows``, as often as named, with their media. Columns of nothing but padding are cut."""
        media: dict[str, Any] = {}
        for kind in KINDS_OF_MEDIA:
            media[kind.values], media[kind.grids] = self._media_of(kind, rows)
            media[kind.counts] = [getattr(self, kind.counts)[row] for row in rows]
        mask = self.attention_mask[rows]
        not_padding = mask.any(0).nonzero().flatten().tolist() or [0]
        columns = slice(not_padding[0], not_padding[-1] + 1)
        return replace(
            self,
            input_ids=self.input_ids[rows, columns],
            attention_mask=mask[:, columns],
            position_ids=self.position_ids[:, rows, columns],
            **media,
        )

    def _media_of(self, kind: MediaFields, rows: list[int]) -> tuple[Tensor | None, Tensor | None]:
        """The patches and grids of one kind of media of some rows."""
        return select_media(getattr(self, kind.values), getattr(self, kind.grids), getattr(self, kind.counts), rows)


def _cat_on_first_device(parts: Sequence[Tensor]) -> Tensor:
    """All rows of the parts, on the device of the first: some may wait on the CPU."""
    device = parts[0].device
    return torch.cat([part.to(device) for part in parts])


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
        """The scale of an image or video processor of transformers."""
        rescale = float(processor.rescale_factor) if processor.do_rescale else 1.0
        if not processor.do_normalize:
            return cls(rescale, (0.0,), (1.0,))
        return cls(rescale, tuple(processor.image_mean), tuple(processor.image_std))

    def __call__(self, patches: Tensor) -> Tensor:
        """patches x values, uint8 -> float32."""
        # Mean and standard deviation are scaled, not the pixels: the fused form that processors use, to the last bit.
        mean = torch.tensor(self.mean, device=patches.device).mul(1 / self.rescale)[:, None]
        std = torch.tensor(self.std, device=patches.device).mul(1 / self.rescale)[:, None]
        values = patches.to(torch.float32, copy=True)  # of our own, which is written into
        channels = values.unflatten(1, (len(self.mean), -1))  # patches x channels x values of one
        return channels.sub_(mean).div_(std).flatten(1)


@dataclass(frozen=True)
class InputBuilder:
    """Turns prompt batches into model inputs: ``InputBuilder.of(rule, processor)(batch)``."""

    rule: PositionRule
    scales: tuple[PixelScale, PixelScale]  # of images and of videos

    @classmethod
    def of(cls, rule: PositionRule, processor: Any) -> InputBuilder:
        """The builder for a rule of positions and a Qwen-VL processor of transformers.

        Raises:
            ValueError: the model takes other tokens for images or videos than the processor writes.
        """
        for kind in ("image", "video"):
            ours = getattr(rule, f"{kind}_token_id")
            theirs = getattr(processor, f"{kind}_token_id")
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
        for kind, scale in zip(KINDS_OF_MEDIA, self.scales, strict=True):
            patches = getattr(inputs, kind.values)
            if patches is not None:
                inputs = replace(inputs, **{kind.values: scale(patches)})
        return inputs

    def as_bytes(self, batch: PromptBatch) -> PromptInputs:
        """The same with the pixels as they were drawn, a quarter of the size: for ``encode_vision`` with ``scales``."""
        positions = prompt_positions(
            self.rule,
            batch.input_ids,
            batch.attention_mask,
            batch.image_grid_thw,
            batch.video_grid_thw,
            batch.seconds_per_grid,
        )
        return PromptInputs(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=positions,
            pixel_values=batch.pixel_values,
            image_grid_thw=batch.image_grid_thw,
            pixel_values_videos=batch.pixel_values_videos,
            video_grid_thw=batch.video_grid_thw,
            images_per_prompt=batch.images_per_prompt,
            videos_per_prompt=batch.videos_per_prompt,
        )
