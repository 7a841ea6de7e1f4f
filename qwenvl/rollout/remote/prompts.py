"""Prompts as a server takes them: tokens, positions, and what the vision tower made of images and videos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from qwenvl.data.seeds import stable_random
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import evaluating
from qwenvl.vllm_server.wire.sampling import Medium, Prompt

Grid = tuple[int, int, int]
SEED_BITS, CHILD_BITS = 44, 16  # a prompt's completions have its seed and the numbers after it


@torch.no_grad()
def prompts_for_server(model: nn.Module, inputs: PromptInputs, seed: int) -> tuple[Prompt, ...]:
    """P prompts with the features of ``model`` as it is now, in the memory of the CPU.

    The features are rows as they enter the language model: the merger's, those of the deepstack mergers beside them.

    Args:
        seed: of the draw. Each prompt has a seed of its own, by its number.
    """
    with evaluating(model) as bare:
        images = _media(bare, inputs.pixel_values, inputs.image_grid_thw, sum(inputs.images_per_prompt))
        videos = _media(bare, inputs.pixel_values_videos, inputs.video_grid_thw, sum(inputs.videos_per_prompt))
        config = bare.config
    framed = family_of(config).time == "timestamp"  # a video's frames then stand apart, with their times between
    prompts = []
    counts = zip(inputs.images_per_prompt, inputs.videos_per_prompt, strict=True)
    for p, (n_images, n_videos) in enumerate(counts):
        own = inputs.attention_mask[p].bool()
        ids, positions = inputs.input_ids[p][own].cpu(), inputs.position_ids[:, p, own].cpu()
        media = [
            *_placed("image", ids == config.image_token_id, [next(images) for _ in range(n_images)], False),
            *_placed("video", ids == config.video_token_id, [next(videos) for _ in range(n_videos)], framed),
        ]
        media.sort(key=lambda medium: medium.offset)
        prompts.append(Prompt(ids, positions, seed_of(seed, p), tuple(media)))
    return tuple(prompts)


def seed_of(seed: int, prompt: int) -> int:
    """The seed of a prompt's first completion. Those of its other completions, and of other prompts, are others."""
    return stable_random(seed, prompt).getrandbits(SEED_BITS) << CHILD_BITS


def _media(bare: nn.Module, values: Tensor | None, grids: Tensor | None, count: int) -> Iterator[tuple[Tensor, Grid]]:
    """The features and the grid of each image or video."""
    if values is None or grids is None or not count:
        return iter(())
    visual = bare.model.visual
    output = visual(values.to(grids.device, visual.dtype), grid_thw=grids)
    deepstack = getattr(output, "deepstack_features", None) or ()
    features = torch.cat([output.pooler_output, *deepstack], dim=-1).cpu()
    rows = (grids.prod(-1) // visual.spatial_merge_size**2).tolist()
    return iter([(own, (t, h, w)) for own, (t, h, w) in zip(features.split(rows), grids.tolist(), strict=True)])


def _placed(kind: str, placeholders: Tensor, media: Sequence[tuple[Tensor, Grid]], framed: bool) -> Iterator[Medium]:
    """Each image or video in its range of the prompt.

    Args:
        placeholders: L bool, the prompt's tokens of this kind.
        framed: a range begins with the token before its first placeholder and ends with the one after its last.
    """
    places = placeholders.nonzero()[:, 0]
    for own, (features, grid) in zip(places.split([len(rows) for rows, _ in media]), media, strict=True):
        start, end = int(own[0]) - framed, int(own[-1]) + 1 + framed
        yield Medium(kind, start, placeholders[start:end], features, grid)
