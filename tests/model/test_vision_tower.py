"""Features in the place of pixels change nothing: outputs, gradients, sampling; and the tower runs once."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model import vision_tower as tower
from qwenvl.model.inputs import PixelScale
from qwenvl.model.loading import apply_tuning
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.options import TuneOptions
from qwenvl.model.reference import Reference
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import (
    accept_features,
    batched_attention,
    blank_vision,
    encode_vision,
    supports_encode_once,
)

WORDS = ["tvi", "t", "vit", "v"]
TOWERS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]  # later families have the tower of Qwen3-VL


def frozen_tower(family: str) -> torch.nn.Module:
    model = make_model(family, make_processor(family), initializer_range=0.1)
    apply_tuning(model, TuneOptions())
    return model


def logits(model, prompts):
    arguments = {name: getattr(prompts, name) for name in ("input_ids", "attention_mask", "position_ids")}
    return model(**arguments, **prompts.vision()).logits


@pytest.mark.parametrize("family", [*TOWERS, "qwen3_5"])
def test_encoding_once_gives_the_logits_and_gradients_of_pixels(family, exact_model, random_prompts):
    model = exact_model(family)
    apply_tuning(model, TuneOptions())
    prompts = random_prompts(model, WORDS)
    results = []
    for inputs in (prompts, encode_vision(model, prompts)):
        model.zero_grad()
        out = logits(model, inputs)
        out.square().sum().backward()
        results.append((out, {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}))
    (out, grads), (out_encoded, grads_encoded) = results
    torch.testing.assert_close(out_encoded, out, rtol=1e-9, atol=1e-9)
    merger = [name for name in grads if "merger" in name]
    assert merger and all(grads[name].norm() > 0 for name in merger)
    torch.testing.assert_close(grads_encoded, grads, rtol=1e-9, atol=1e-9)
    encoded = encode_vision(model, prompts)
    assert encode_vision(model, encoded).pixel_values is encoded.pixel_values
    rows = [3, 0, 0]  # each with its own
    expected = logits(model, prompts.select(rows))
    torch.testing.assert_close(logits(model, encoded.select(rows)), expected, rtol=1e-9, atol=1e-9)


def test_the_tower_runs_once_for_policy_and_reference_with_a_merger_of_its_own(random_prompts, random_completions):
    model = frozen_tower("qwen3_vl")
    prompts = random_prompts(model, ["tv", "ti"])
    completions = random_completions(4, 5)
    arguments = {"temperature": 1.0, "logit_chunk_tokens": 100}
    before = shared_prefix.completion_logprobs(model, prompts, *completions, **arguments).detach()
    encoded = encode_vision(model, prompts)  # first, so that the reference is a copy of a model that takes features
    reference = Reference(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "merger" in name:
                parameter.mul_(1.5)

    def ran(*_):
        raise AssertionError("the tower ran again")

    hook = model.model.visual.blocks[0].register_forward_hook(ran)
    with reference.model() as frozen:
        frozen.model.visual.blocks[0].register_forward_hook(ran)
        accept_features(frozen)
        of_reference = shared_prefix.completion_logprobs(frozen, encoded, *completions, **arguments)
    of_policy = shared_prefix.completion_logprobs(model, encoded, *completions, **arguments).detach()
    hook.remove()
    torch.testing.assert_close(of_reference, before)
    expected = shared_prefix.completion_logprobs(model, prompts, *completions, **arguments).detach()
    torch.testing.assert_close(of_policy, expected)
    assert (of_policy - of_reference).abs().max() > 1e-3


def test_gradient_checkpointing_in_training_changes_no_feature_of_a_frozen_tower(random_prompts, recwarn):
    model = frozen_tower("qwen2_5_vl")
    prompts = random_prompts(model, ["tv"])
    expected = encode_vision(copy.deepcopy(model), prompts).pixel_values_videos
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.train()
    assert torch.equal(encode_vision(model, prompts).pixel_values_videos, expected)
    assert model.model.visual.blocks[0].training
    assert not [warning for warning in recwarn if "requires_grad" in str(warning.message)]


def test_a_learning_block_and_a_wide_tower_are_reasons_against_encoding_once(random_prompts):
    model = frozen_tower("qwen2_5_vl")
    assert supports_encode_once(model) is None
    model.model.visual.blocks[1].requires_grad_(True)
    assert "visual.blocks.1" in supports_encode_once(model)
    with pytest.raises(ValueError, match="the vision tower learns"):
        encode_vision(model, random_prompts(model, ["v"]))
    patch_width = 3 * 2 * 14 * 14
    wide = make_model("qwen2_vl", make_processor("qwen2_vl"), vision_hidden_size=patch_width, vision_depth=1)
    wide.requires_grad_(False)
    assert "1176" in supports_encode_once(wide)


@pytest.mark.parametrize("family", [*TOWERS, "qwen3_5"])
@pytest.mark.parametrize("encoded", [True, False])
def test_blank_vision_changes_nothing_and_gives_every_part_a_gradient(
    exact_model, random_prompts, random_completions, family, encoded
):
    model = exact_model(family)
    accept_features(model)
    ids, mask = random_completions(2, 4)
    for words in (["tt"], ["tvt"], ["tit"]):
        model.zero_grad()
        prompts = random_prompts(model, words)
        settings = {"temperature": 1.0, "logit_chunk_tokens": 8}
        plain = completion_logprobs(model, prompts, ids, mask, **settings)
        if encoded:
            model.model.visual.requires_grad_(False)
            model.model.visual.merger.requires_grad_(True)
            prompts = encode_vision(model, prompts)
        blank = completion_logprobs(model, blank_vision(model, prompts, encoded=encoded), ids, mask, **settings)
        torch.testing.assert_close(blank, plain, rtol=0, atol=1e-9)
        blank.sum().backward()
        missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert not missing


@pytest.mark.parametrize("family", TOWERS)
def test_the_tower_in_pieces_gives_the_same_features(family, exact_model, random_prompts, monkeypatch):
    """Pieces that divide a video, hold parts of two media, or are smaller than a frame; pixels in float64."""
    model = exact_model(family).requires_grad_(False)
    prompts = random_prompts(model, ["vtvi", "ivt"])
    runs = []
    model.model.visual.patch_embed.register_forward_hook(lambda module, args, out: runs.append(len(out)))
    whole = encode_vision(model, prompts)
    assert runs == [len(prompts.pixel_values), len(prompts.pixel_values_videos)]
    assert max(prompts.video_grid_thw[:, 0]) > 1
    frame = int(torch.cat([prompts.image_grid_thw, prompts.video_grid_thw])[:, 1:].prod(-1).max())
    for piece in (frame - 1, frame + 1, 2 * frame):
        runs.clear()
        monkeypatch.setattr(tower, "PIECE", piece)
        parts = encode_vision(model, prompts)
        torch.testing.assert_close(parts.pixel_values, whole.pixel_values, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(parts.pixel_values_videos, whole.pixel_values_videos, rtol=1e-12, atol=1e-12)
        assert len(runs) > 2 and sum(runs) == len(prompts.pixel_values) + len(prompts.pixel_values_videos)
        assert max(runs) <= max(piece, frame)


def test_bytes_give_the_features_of_the_pixels_that_they_become(random_prompts, monkeypatch):
    """Images and videos have normalisations of their own, which the kept features are told apart by."""
    model = frozen_tower("qwen2_5_vl")
    of_images = PixelScale(1 / 255, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    of_videos = PixelScale(1 / 255, (0.5,) * 3, (1.0,) * 3)
    scales = of_images, of_videos
    drawn = random_prompts(model, ["vi", "v"])
    generator = torch.Generator().manual_seed(3)
    images, videos = (
        torch.randint(0, 256, values.shape, dtype=torch.uint8, generator=generator)
        for values in (drawn.pixel_values, drawn.pixel_values_videos)
    )
    normalised = replace(drawn, pixel_values=of_images(images), pixel_values_videos=of_videos(videos))
    as_bytes = replace(drawn, pixel_values=images, pixel_values_videos=videos)
    expected = encode_vision(model, normalised)
    assert torch.equal(encode_vision(model, as_bytes, scales=scales).pixel_values, expected.pixel_values)
    monkeypatch.setattr(tower, "PIECE", 16)
    for name in ("pixel_values", "pixel_values_videos"):
        made = getattr(encode_vision(model, as_bytes, scales=scales), name)
        torch.testing.assert_close(made, getattr(expected, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_with_gradient_checkpointing_mergers_run_again_with_the_same_gradients(family, exact_model, random_prompts):
    model = exact_model(family)
    apply_tuning(model, TuneOptions())
    visual, encoded = model.model.visual, encode_vision(model, random_prompts(model, ["tvi"]))
    runs, results = [], []
    visual.merger.register_forward_pre_hook(lambda *_: runs.append(1))
    for again in (False, True):
        visual.gradient_checkpointing = again
        runs.clear()
        model.zero_grad()
        out = visual(encoded.pixel_values_videos, encoded.video_grid_thw)
        (out.pooler_output.square().sum() + sum(x.square().sum() for x in out.deepstack_features)).backward()
        assert len(runs) == 1 + again
        results.append({name: p.grad.clone() for name, p in visual.named_parameters() if p.requires_grad})
    assert results[0] and all(x.norm() > 0 for x in results[0].values())
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


def tower_and_input(family: str):
    """A video of three frames and an image, of sizes that no window divides."""
    visual = make_model(family, make_processor(family), initializer_range=0.1).double().eval().model.visual
    grids = torch.tensor([[3, 18, 22], [1, 10, 6]])
    config = visual.config
    values = config.in_channels * config.temporal_patch_size * config.patch_size**2
    return visual, (torch.randn(int(grids.prod(1).sum()), values, dtype=torch.float64), grids)


@pytest.mark.parametrize("family", TOWERS)
@torch.no_grad()
def test_short_sequences_in_batches_give_the_towers_own_output_in_fewer_calls(family, monkeypatch):
    visual, (pixels, grids) = tower_and_input(family)
    calls, stock = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
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
