"""Prompts as model inputs: pixels normalised like a stock processor's, rows and media selected together."""

from dataclasses import replace

import pytest
import torch

from qwenvl.model.inputs import LARGE, InputBuilder, PixelScale, is_large
from qwenvl.model.positions import position_rule
from qwenvl.types import PromptBatch


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_normalised_patches_equal_the_stock_processor(tiny_pair, family):
    _, processor = tiny_pair(family)
    image = torch.randint(0, 256, (3, 96, 64), dtype=torch.uint8)
    stock = processor.image_processor(image, return_tensors="pt")["pixel_values"]
    raw = processor.image_processor(image, do_rescale=False, do_normalize=False, return_tensors="pt")["pixel_values"]
    ours = PixelScale.of(processor.image_processor)(raw.to(torch.uint8))
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_model_that_takes_other_tokens_for_media_than_its_processor_is_refused(tiny_pair, kind):
    model, processor = tiny_pair()
    InputBuilder.of(position_rule(model.config), processor)
    wrong = replace(position_rule(model.config), **{f"{kind}_token_id": 7})
    with pytest.raises(ValueError, match=rf"^{kind}_token_id 7 in the model's config.json: expected \d+, "):
        InputBuilder.of(wrong, processor)


def test_select_takes_media_along_and_cuts_common_padding(exact_model, random_prompts):
    prompts = random_prompts(exact_model("qwen2_5_vl"), ["tvtiv", "t", "ti"])
    second = prompts.select([2, 2, 1])
    images = prompts.image_grid_thw.prod(-1).tolist()
    assert second.images_per_prompt == [1, 1, 0] and second.videos_per_prompt == [0, 0, 0]
    assert torch.equal(second.pixel_values, prompts.pixel_values[images[0] :].repeat(2, 1))
    assert second.pixel_values_videos is None and set(second.vision()) == {"pixel_values", "image_grid_thw"}
    assert bool(second.attention_mask[:, 0].any())
    for row, source in enumerate([2, 2, 1]):
        kept, own = second.attention_mask[row].bool(), prompts.attention_mask[source].bool()
        assert torch.equal(second.input_ids[row, kept], prompts.input_ids[source, own])
        assert torch.equal(second.position_ids[:, row, kept], prompts.position_ids[:, source, own])


def test_bytes_are_normalised_with_the_scale_of_their_medium(tiny_pair):
    """``as_bytes`` and a scale by hand make what the builder makes, and images are not scaled as videos are."""
    model, processor = tiny_pair("qwen2_5_vl")
    scales = PixelScale(1.0, (1.0,) * 3, (2.0,) * 3), PixelScale(1.0, (4.0,) * 3, (8.0,) * 3)
    build = replace(InputBuilder.of(position_rule(model.config), processor), scales=scales)
    grid, pixels = torch.tensor([[1, 2, 2]]), torch.arange(4 * 1176).remainder(251).view(4, -1).to(torch.uint8)
    media = [model.config.image_token_id, model.config.video_token_id]
    batch = PromptBatch(
        [], [], [], torch.tensor([media]), torch.ones(1, 2), pixels, grid, pixels, grid, torch.ones(1), [1], [1]
    )
    assert build.as_bytes(batch).pixel_values is pixels and build.as_bytes(batch).pixel_values_videos is pixels
    assert torch.equal(build(batch).pixel_values, (pixels - 1.0) / 2)
    assert torch.equal(build(batch).pixel_values_videos, (pixels - 4.0) / 8)


def test_large_media_wait_on_the_host_and_meet_the_model_on_its_device(exact_model, random_prompts):
    prompts = random_prompts(exact_model("qwen2_5_vl"), ["tvt", "tit"])
    on_meta = replace(prompts, pixel_values_videos=None, input_ids=prompts.input_ids.to("meta"))
    assert on_meta.media_to("cpu").pixel_values.device.type == "cpu"
    assert on_meta.vision()["pixel_values"].device.type == "meta"
    waiting = prompts.media_to("cpu")
    assert waiting.pixel_values_videos.equal(prompts.pixel_values_videos)
    for size, expected in ((LARGE // 4, False), (LARGE // 4 + 1, True)):
        assert is_large(replace(prompts, pixel_values_videos=None, pixel_values=torch.empty(size))) is expected
