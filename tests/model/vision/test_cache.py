"""A second epoch reads what the first computed; other pixels and other towers do not meet; the folder stays bounded."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model.inputs import PixelScale, PixelScales
from qwenvl.model.loading import apply_tuning
from qwenvl.model.options import TuneOptions
from qwenvl.model.vision.cache import VisionCache
from qwenvl.model.vision.tower import encode_vision

GIB = 2**30


def frozen_tower(family: str = "qwen2_5_vl", seed: int = 0) -> torch.nn.Module:
    model = make_model(family, make_processor(family), seed)
    apply_tuning(model, TuneOptions())
    return model


def tower_runs(model) -> list[int]:
    """Grows by the number of patches at every run of the tower."""
    patches: list[int] = []
    model.model.visual.patch_embed.register_forward_hook(lambda module, args, out: patches.append(len(out)))
    return patches


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_epoch_computes_nothing(family, tmp_path, random_prompts):
    model = frozen_tower(family)
    prompts = random_prompts(model, ["tvi", "t", "vit"])
    expected = encode_vision(model, prompts)
    first = encode_vision(model, prompts, VisionCache(tmp_path, GIB))
    torch.testing.assert_close(first.pixel_values, expected.pixel_values)
    torch.testing.assert_close(first.pixel_values_videos, expected.pixel_values_videos)

    cache, runs = VisionCache(tmp_path, GIB), tower_runs(model)
    second = encode_vision(model, prompts.select([2, 1, 0]), cache)
    back = second.select([2, 1, 0])
    assert torch.equal(back.pixel_values, first.pixel_values)
    assert torch.equal(back.pixel_values_videos, first.pixel_values_videos)
    assert runs == [128], "only the picture by which the tower is known"
    assert (cache.hits, cache.misses) == (4, 0)
    assert cache.mean_seconds()[0] > 0 and cache.mean_seconds()[1] == 0


def test_one_changed_pixel_or_weight_is_another_content(tmp_path, random_prompts):
    model = frozen_tower()
    prompts = random_prompts(model, ["i"])
    encode_vision(model, prompts, VisionCache(tmp_path, GIB))
    changed = replace(prompts, pixel_values=prompts.pixel_values.clone())
    changed.pixel_values[-1, -1] += 1e-3
    other = frozen_tower()
    with torch.no_grad():
        other.model.visual.blocks[0].mlp.up_proj.weight[0, 0] += 1e-2
    for tower, inputs in ((model, changed), (other, prompts)):
        cache = VisionCache(tmp_path, GIB)
        encode_vision(tower, inputs, cache)
        assert (cache.hits, cache.misses) == (0, 1)


def test_the_folder_is_bounded_and_the_longest_unused_go_first(tmp_path, random_prompts):
    model = frozen_tower()
    prompts = [random_prompts(model, ["i"], seed=seed) for seed in range(3)]
    sizes = []
    for number, each in enumerate(prompts):
        encode_vision(model, each, VisionCache(tmp_path, GIB))
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        sizes.append(newest.stat().st_size)
        os.utime(newest, (number, number))
    encode_vision(model, prompts[0], VisionCache(tmp_path, GIB))  # used again: now the second is the oldest
    room = sum(sizes) - 1
    small = random_prompts(model, ["i"], seed=9)
    encode_vision(model, small, VisionCache(tmp_path, room))
    cache = VisionCache(tmp_path, GIB)
    for each in (prompts[0], small):
        encode_vision(model, each, cache)
    assert (cache.hits, cache.misses) == (2, 0)
    encode_vision(model, prompts[1], cache)
    assert cache.misses == 1
    encode_vision(model, prompts[2], VisionCache(tmp_path / "none", 10))
    assert not list((tmp_path / "none").iterdir()), "what exceeds the bound by itself is not kept"


def test_a_damaged_file_is_computed_again(tmp_path, random_prompts):
    model = frozen_tower()
    prompts = random_prompts(model, ["v"])
    expected = encode_vision(model, prompts, VisionCache(tmp_path, GIB))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    cache = VisionCache(tmp_path, GIB)
    assert torch.equal(encode_vision(model, prompts, cache).pixel_values_videos, expected.pixel_values_videos)
    assert cache.misses == 1
    again = VisionCache(tmp_path, GIB)
    encode_vision(model, prompts, again)
    assert again.hits == 1


def test_bytes_are_found_again_under_their_normalisation(tmp_path, random_prompts):
    """The same bytes, normalised as an image and as a video is, are different pictures."""
    model = frozen_tower()
    prompts = random_prompts(model, ["i"])
    drawn = torch.randint(0, 256, prompts.pixel_values.shape, dtype=torch.uint8)
    prompts = replace(prompts, pixel_values=drawn)
    first, second = PixelScale(1 / 255, (0.5,) * 3, (0.25,) * 3), PixelScale(1 / 255, (0.4,) * 3, (0.25,) * 3)
    expected = encode_vision(model, prompts, scales=PixelScales(first, second)).pixel_values
    one, other = PixelScales(first, second), PixelScales(second, first)
    for scales, found in ((one, 0), (one, 1), (other, 0)):
        cache = VisionCache(tmp_path, GIB)
        made = encode_vision(model, prompts, cache, scales).pixel_values
        assert cache.hits == found and torch.equal(made, expected) == (scales.image is first)
