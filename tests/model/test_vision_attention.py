"""Short sequences in batches give the tower's own output, in fewer calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model.vision_tower import batched_attention


def tower_and_input(family: str):
    """A video of three frames and an image, of sizes that no window divides."""
    visual = make_model(family, make_processor(family), initializer_range=0.1).double().eval().model.visual
    grids = torch.tensor([[3, 18, 22], [1, 10, 6]])
    config = visual.config
    values = config.in_channels * config.temporal_patch_size * config.patch_size**2
    return visual, (torch.randn(int(grids.prod(1).sum()), values, dtype=torch.float64), grids)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_output_and_calls(family, monkeypatch):
    visual, (pixels, grids) = tower_and_input(family)
    calls, stock = [], nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional,
        "scaled_dot_product_attention",
        lambda q, *args, **kwargs: calls.append(q.shape) or stock(q, *args, **kwargs),
    )
    expected = visual(pixels, grid_thw=grids)
    one_by_one = len(calls)
    calls.clear()
    with batched_attention(visual):
        out = visual(pixels, grid_thw=grids)
    torch.testing.assert_close(out.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.pooler_output, expected.pooler_output, rtol=0, atol=1e-12)
    # Frames are of two sizes; windows of four: whole ones and those cut at the right, below, or both.
    assert len(calls) < one_by_one and len(calls) <= 4 * len(visual.blocks)
    assert sum(shape[0] * shape[2] for shape in calls) == len(pixels) * len(visual.blocks)


def test_other_attention_and_the_setting_stay():
    visual, (pixels, grids) = tower_and_input("qwen2_5_vl")
    with pytest.raises(RuntimeError, match="shape"), batched_attention(visual):
        visual(pixels[:, 1:], grid_thw=grids)
    assert visual.config._attn_implementation == "sdpa"
    visual.config._attn_implementation = "eager"
    with batched_attention(visual):
        assert visual.config._attn_implementation == "eager"
