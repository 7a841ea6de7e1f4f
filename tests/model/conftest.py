"""Prompts of every kind without media files, and models whose float64 is float64 throughout."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.positions import position_rule, prompt_positions


@pytest.fixture
def random_prompts() -> Callable[..., PromptInputs]:
    """``random_prompts(model, ["tv", "tit"])``: one prompt per word, t text, i image, v video, of random sizes."""
    return _random_prompts


@pytest.fixture
def random_completions() -> Callable[..., tuple[Tensor, Tensor]]:
    """``random_completions(rows, length)`` -> ids, mask; the first row is full, the last has a single token."""

    def make(rows: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, length + 1, (rows,), generator=generator)
        lengths[0], lengths[-1] = length, 1
        return torch.randint(0, 250, (rows, length), generator=generator), torch.arange(length) < lengths[:, None]

    return make


@pytest.fixture
def exact_model(monkeypatch) -> Callable[..., torch.nn.Module]:
    """``exact_model(family, **options)``: a float64 tiny model in train mode, without the roundings of stock classes.

    Stock norms and the vision tower's rotation compute in float32 whatever the model's type; two orders of the same
    sums then differ by 1e-8 in their gradients, which would hide a wrong term of that size.
    """

    def make(family: str, **options) -> torch.nn.Module:
        model = make_model(family, make_processor(family), initializer_range=0.1, **options).double().train()
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(_rms_norm, module)
        monkeypatch.setattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb_vision", _rotate)
        return model

    return make


def _rms_norm(self, x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def one(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos[:, None].to(x) + torch.cat((-right, left), dim=-1) * sin[:, None].to(x)

    return one(q), one(k)


def _random_prompts(model, words: list[str], seed: int = 0) -> PromptInputs:
    generator = torch.Generator().manual_seed(seed)
    config, rows, grids = model.config, [], {"i": [], "v": []}

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    def part(kind: str) -> list[int]:
        if kind == "t":
            return [draw(0, 250) for _ in range(draw(2, 9))]
        grid = [draw(1, 4) if kind == "v" else 1, 2 * draw(1, 5), 2 * draw(1, 5)]
        grids[kind].append(grid)
        pad = config.image_token_id if kind == "i" else config.video_token_id
        pictures = grid[0] if config.model_type == "qwen3_vl" else 1
        picture = [pad] * (grid[0] * grid[1] * grid[2] // 4 // pictures)
        return [config.vision_start_token_id, *picture, config.vision_end_token_id] * pictures

    def patches(of: list[list[int]]) -> Tensor | None:
        vision = config.vision_config
        width = 3 * vision.temporal_patch_size * vision.patch_size**2
        count = sum(t * h * w for t, h, w in of)
        return torch.randn(count, width, generator=generator).to(model.dtype) if of else None

    rows = [[token for kind in word for token in part(kind)] + [7, 8] for word in words]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    images, videos = (torch.tensor(grids[kind]) if grids[kind] else None for kind in "iv")
    seconds = torch.full((len(grids["v"]),), 0.75)
    return PromptInputs(
        input_ids=ids,
        attention_mask=mask,
        position_ids=prompt_positions(position_rule(config), ids, mask, images, videos, seconds),
        pixel_values=patches(grids["i"]),
        image_grid_thw=images,
        pixel_values_videos=patches(grids["v"]),
        video_grid_thw=videos,
        images_per_prompt=[word.count("i") for word in words],
        videos_per_prompt=[word.count("v") for word in words],
    )
