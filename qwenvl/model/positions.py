"""M-RoPE positions, computed in this one place and given to every forward, sampling included.

The rule is that of the models' authors (Qwen2-VL, arXiv:2409.12191, section 2.1; Qwen2.5-VL, arXiv:2502.13923, section
2.1.2; Qwen3-VL, arXiv:2511.21631, whose rule is that of Qwen3.5 too), as their published code has it:

- text counts up by one in all three rows (time, height, width);
- an image or video that begins at position s gets s + (t, h, w) of its merged patches, where t is

      Qwen2-VL    the number of the temporal patch;
      Qwen2.5-VL  that number times seconds per temporal patch times tokens per second, cut to an integer;
      Qwen3-VL    0: each temporal patch is a picture of its own behind a text that says its time;

- what follows begins at the largest position so far, plus one.

Installed versions of transformers begin the text after a Qwen2-VL or Qwen2.5-VL video at s + max(h, w) instead, and
some cut fractional seconds to integers. Pretrained weights, and inference servers, follow the rule above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qwenvl.model.families import family_of

_Span = tuple[list[int], Tensor]
"""A run of placeholders: its grid (t, h, w) in patches, and the time positions of its t temporal patches, from 0."""


@dataclass(frozen=True)
class PositionRule:
    """The properties of a model that its rule of positions depends on.

    Attributes:
        image_token_id, video_token_id: the placeholders that stand for merged patches.
        merge_size: patches merged along each spatial side.
        time: ``index``, ``seconds`` or ``timestamp``: Qwen2-VL, Qwen2.5-VL, from Qwen3-VL on (see the module's page).
        tokens_per_second: positions per second of video. ``seconds`` alone uses it.
    """

    image_token_id: int
    video_token_id: int
    merge_size: int
    time: Literal["index", "seconds", "timestamp"]
    tokens_per_second: float = 0.0


def position_rule(config) -> PositionRule:
    """The rule of the model that ``config`` describes (a Qwen-VL configuration of transformers)."""
    vision = config.vision_config
    return PositionRule(
        image_token_id=config.image_token_id,
        video_token_id=config.video_token_id,
        merge_size=vision.spatial_merge_size,
        time=family_of(config).time,
        tokens_per_second=float(getattr(vision, "tokens_per_second", 0.0)),
    )


def prompt_positions(
    rule: PositionRule,
    input_ids: Tensor,
    attention_mask: Tensor,
    image_grid_thw: Tensor | None = None,
    video_grid_thw: Tensor | None = None,
    seconds_per_grid: Tensor | None = None,
) -> Tensor:
    """Positions of P prompts.

    Args:
        input_ids, attention_mask: P x L, padding anywhere.
        image_grid_thw, video_grid_thw: images x 3, videos x 3, in patches, in the order of their placeholders.
        seconds_per_grid: videos, seconds between temporal patches. Qwen2.5-VL videos need it.

    Returns:
        3 x P x L, int64 (time, height, width), 0 at padding.

    Raises:
        ValueError: if placeholders and grids do not match.
    """
    images = iter([] if image_grid_thw is None else [(grid, torch.zeros(1)) for grid in image_grid_thw.tolist()])
    videos = iter(_video_spans(rule, video_grid_thw, seconds_per_grid))
    positions = torch.zeros(3, *input_ids.shape, dtype=torch.long)
    rows = input_ids.cpu()
    keep = attention_mask.bool().cpu()
    for p in range(len(rows)):
        positions[:, p, keep[p]] = _row_positions(rule, rows[p, keep[p]].tolist(), images, videos)
    if next(images, None) is not None or next(videos, None) is not None:
        raise ValueError("more image or video grids than placeholders in the prompts: was a prompt cut?")
    return positions.to(input_ids.device)


def completion_positions(prompt: Tensor, group_size: int, length: int) -> Tensor:
    """Positions of completion tokens: each group counts on from its prompt's last position plus one.

    Args:
        prompt: 3 x P x L positions of left-padded prompts, so that column L - 1 is each prompt's last token.
        group_size: G.
        length: T.

    Returns:
        3 x N x T.
    """
    rows = first_positions(prompt, group_size)[:, None] + torch.arange(length, device=prompt.device)
    return rows.expand(3, -1, -1)


def first_positions(prompt: Tensor, group_size: int) -> Tensor:
    """N positions of the first token of each completion, see ``completion_positions``."""
    return (prompt[:, :, -1].amax(0) + 1).repeat_interleave(group_size)


def _row_positions(rule: PositionRule, ids: list[int], images: Iterator[_Span], videos: Iterator[_Span]) -> Tensor:
    """The positions of one prompt without padding, 3 x len(ids). Takes its spans from the two iterators."""
    spans = {rule.image_token_id: images, rule.video_token_id: videos}
    parts = []
    start = 0  # the position of the next token
    i = 0
    while i < len(ids):
        if ids[i] in spans:
            part = _span_positions(rule, next(spans[ids[i]], None))
            expected = part.shape[1]
            placeholders = [ids[i]] * expected
            if expected == 0 or ids[i : i + expected] != placeholders:
                raise ValueError(
                    f"prompt token {i} begins a run of placeholders that its grid does not fit "
                    f"({expected} expected): prompts and grids belong to different media, or a prompt was cut"
                )
        else:
            end = next((j for j in range(i, len(ids)) if ids[j] in spans), len(ids))
            part = torch.arange(end - i).expand(3, -1)
        parts.append(part + start)
        start = int(parts[-1].max()) + 1
        i += part.shape[1]
    return torch.cat(parts, dim=1) if parts else torch.zeros(3, 0, dtype=torch.long)


def _video_spans(rule: PositionRule, grids: Tensor | None, seconds: Tensor | None) -> list[_Span]:
    """The runs of placeholders of all videos: a run for each video, or for each of its frames between timestamps."""
    if grids is None:
        return []
    if rule.time == "timestamp":
        frames: list[_Span] = []
        for temporal, height, width in grids.tolist():
            frames += [([1, height, width], torch.zeros(1))] * temporal
        return frames
    if rule.time == "index":
        return [(grid, torch.arange(grid[0])) for grid in grids.tolist()]
    if seconds is None or len(seconds) != len(grids):
        raise ValueError("each video of Qwen2.5-VL needs its seconds per temporal patch (seconds_per_grid)")
    # In float32 like the authors' code, so that products which end just below an integer are cut alike.
    scale = seconds.detach().float().cpu()
    return [(grid, torch.arange(grid[0]) * scale[k] * rule.tokens_per_second) for k, grid in enumerate(grids.tolist())]


def _span_positions(rule: PositionRule, span: _Span | None) -> Tensor:
    """3 x (t * h * w / merge_size^2) from 0, in the order of the merged patches. None for a missing span."""
    if span is None:
        return torch.zeros(3, 0, dtype=torch.long)
    (_, height, width), times = span
    rows = (times.long(), torch.arange(height // rule.merge_size), torch.arange(width // rule.merge_size))
    return torch.stack(torch.meshgrid(*rows, indexing="ij")).reshape(3, -1)
