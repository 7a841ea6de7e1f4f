"""How long the prompts of a data set are, from their text and the headers of their media. Nothing is decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.frames.plan import FrameRule
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import LengthEstimate, PromptLength, Ruler, Size
from qwenvl.data.seeds import stable_random
from qwenvl.model.loading import load_processor
from qwenvl.types import Record

CHARACTERS = 3
"""Characters of a text for a token, where there is no tokenizer to ask: fewer than most languages have."""
TURN = 8
"""Tokens that a chat template puts around a turn, in the same case."""


@dataclass(frozen=True)
class Lengths:
    """The prompts of some records.

    Attributes:
        each: of every record that was measured, in tokens, the shortest first.
        merged: patches that become one token.
        rough: why texts were not counted exactly. None where they were.
        left_out: records whose prompts are above ``max_prompt_length`` and are left out by the run.
    """

    each: tuple[PromptLength, ...]
    merged: int
    rough: str | None = None
    left_out: int = 0

    def at(self, share: float) -> PromptLength:
        """The prompt that this share of all are shorter than. 1.0 for the longest."""
        return self.each[min(len(self.each) - 1, int(share * len(self.each)))]


def prompt_lengths(args: GRPOConfig, records: Sequence[Record], ruler: Ruler, most: int, rough: str | None) -> Lengths:
    """The lengths of a random sample of ``most`` records, the same for the same seed.

    Raises:
        ValueError: all of them are too long.
    """
    limit = args.max_prompt_length
    rule = FrameRule(FrameOptions.of(args), args.seed)
    measure = LengthEstimate(records, rule, ruler, limit if args.fit_frames else None)
    found = sorted(measure.measured((0, number)) for number in sampled(len(records), most, args.seed))
    kept = [length for length in found if limit is None or length.tokens <= limit]
    if not kept:
        raise ValueError(
            f"all {len(found)} prompts are above --max_prompt_length {limit}: the shortest has {found[0].tokens} tokens"
        )
    return Lengths(tuple(kept), ruler.processor.video_processor.merge_size**2, rough, len(found) - len(kept))


def sampled(records: int, most: int, seed: int) -> list[int]:
    """The numbers of all records, or of a random sample of ``most``, the same for the same seed."""
    numbers = list(range(records))
    return stable_random(seed, "plan").sample(numbers, most) if records > most else numbers


def ruler_of(args: GRPOConfig, config: Any) -> tuple[Ruler, str | None]:
    """What measures prompts, and why it is rough: by the processor beside the model, or by its configuration alone."""
    options = PromptOptions.of(args)
    bounds = (
        (options.video_min_frame_pixels, options.video_max_frame_pixels),
        (options.min_pixels, options.max_pixels),
    )
    path = str(args.model_name_or_path)
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        vision = config.vision_config
        sizes = SimpleNamespace(
            patch_size=vision.patch_size,
            merge_size=vision.spatial_merge_size,
            temporal_patch_size=vision.temporal_patch_size,
        )
        processor: Any = SimpleNamespace(video_processor=sizes, image_processor=sizes)
        return RoughRuler(processor, *bounds), f"{path} has no tokenizer: a token is taken for {CHARACTERS} characters"
    return Ruler(load_processor(path), *bounds, options.template_arguments), None


class RoughRuler(Ruler):
    """Measures prompts without a tokenizer: vision exactly, texts by their characters."""

    def __post_init__(self) -> None:
        """There is no template to look at."""

    def length(
        self, chat: list[dict[str, Any]], clips: Sequence[tuple[Sequence[float], Size]], images: Sequence[Size]
    ) -> PromptLength:
        """About how many tokens a prompt has. See ``Ruler.length``."""
        sizes = self.processor.video_processor
        side = sizes.patch_size * sizes.merge_size
        pairs = [(len(times) // sizes.temporal_patch_size, *size) for times, size in clips]
        vision = sum(n * height * width // side**2 for n, height, width in (*pairs, *((1, *size) for size in images)))
        # A text before each pair of frames says when it is shown, in the families that do so.
        stamps = sum(n for n, *_ in pairs) * TURN
        text = sum(len(json.dumps(turn, ensure_ascii=False)) // CHARACTERS + TURN for turn in chat)
        return PromptLength(text + stamps + vision, vision)
