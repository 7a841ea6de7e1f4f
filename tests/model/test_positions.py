"""M-RoPE positions against numbers worked out by hand from the authors' rule."""

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model.positions import PositionRule, completion_positions, position_rule, prompt_positions

IMAGE, VIDEO, TEXT = 90, 91, 5


def rule(time, tokens_per_second=0.0):
    return PositionRule(IMAGE, VIDEO, merge_size=2, time=time, tokens_per_second=tokens_per_second)


def positions(rule, ids, images=None, videos=None, seconds=None, pad=0):
    ids = torch.tensor([[0] * pad + ids])
    mask = torch.tensor([[0] * pad + [1] * (ids.shape[1] - pad)])
    grids = [None if g is None else torch.tensor(g) for g in (images, videos)]
    seconds = None if seconds is None else torch.tensor(seconds)
    return prompt_positions(rule, ids, mask, *grids, seconds)[:, 0].tolist()


# text text | image 2 x 4 patches = 1 x 2 merged | text | video of 2 x (4 x 4 patches = 2 x 2 merged) | text text
IDS = [TEXT, TEXT, IMAGE, IMAGE, TEXT] + [VIDEO] * 8 + [TEXT, TEXT]
IMAGES, VIDEOS = [[1, 2, 4]], [[2, 4, 4]]
# Text 0, 1. The image begins at 2: t 2, h 2, w 2..3, so text goes on at 4. The video begins at 5.
HEIGHT = [0, 1, 2, 2, 4, 5, 5, 6, 6, 5, 5, 6, 6]
WIDTH = [0, 1, 2, 3, 4, 5, 6, 5, 6, 5, 6, 5, 6]


def test_qwen2_vl_counts_temporal_patches():
    t, h, w = positions(rule("index"), IDS, IMAGES, VIDEOS)
    assert t == [0, 1, 2, 2, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 8]
    assert h == [*HEIGHT, 7, 8]
    assert w == [*WIDTH, 7, 8]


@pytest.mark.parametrize(
    ("seconds", "step"),
    [(1.0, 2), (0.5, 1), (2.5, 5), (0.7, 1), (0.4, 0), (10.0, 20)],  # floor(1 * seconds * 2 tokens per second)
)
def test_qwen2_5_vl_scales_time_and_resumes_after_the_largest(seconds, step):
    t, h, w = positions(rule("seconds", 2.0), IDS, IMAGES, VIDEOS, [seconds])
    after = 5 + max(step, 1) + 1  # the largest of time 5 + step and of height and width, 6
    assert t == [0, 1, 2, 2, 4, 5, 5, 5, 5, 5 + step, 5 + step, 5 + step, 5 + step, after, after + 1]
    assert h == [*HEIGHT, after, after + 1]
    assert w == [*WIDTH, after, after + 1]


def test_qwen3_vl_frames_stand_behind_their_timestamps():
    ids = [TEXT] + [TEXT] + [VIDEO] * 4 + [TEXT] + [TEXT] + [VIDEO] * 4 + [TEXT]
    t, h, w = positions(rule("timestamp"), ids, videos=VIDEOS)
    assert t == [0, 1, 2, 2, 2, 2, 4, 5, 6, 6, 6, 6, 8]
    assert h == [0, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8]
    assert w == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 8]


def test_padding_takes_no_position_and_rows_take_their_own_grids():
    ids = torch.tensor([[0, 0, TEXT, IMAGE, TEXT], [TEXT, IMAGE, IMAGE, IMAGE, TEXT]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    result = prompt_positions(rule("index"), ids, mask, torch.tensor([[1, 2, 2], [1, 2, 6]]))
    assert result[:, 0].tolist() == [[0, 0, 0, 1, 2]] * 3
    assert result[0, 1].tolist() == [0, 1, 1, 1, 4]
    assert result[2, 1].tolist() == [0, 1, 2, 3, 4]


def test_fractions_are_cut_in_float32_as_the_authors_do():
    """Products such as 5 * 0.7 * 2 end at 7 or just below it, depending on the type they are computed in."""
    ids = [VIDEO] * 11
    t, _, _ = positions(rule("seconds", 2.0), ids, videos=[[11, 2, 2]], seconds=[0.7])
    authors = (torch.arange(11) * torch.tensor(0.7) * 2.0).long().tolist()
    assert t == authors == [0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14]


def test_completions_follow_the_last_position_plus_one():
    prompt = torch.tensor([[[0, 3, 9], [0, 0, 1]], [[0, 7, 9], [0, 0, 1]], [[0, 2, 9], [0, 0, 1]]])
    result = completion_positions(prompt, group_size=2, length=3)
    assert result.shape == (3, 4, 3)
    assert result[1].tolist() == [[10, 11, 12], [10, 11, 12], [2, 3, 4], [2, 3, 4]]


def test_placeholders_and_grids_must_match():
    for ids, images, message in (
        ([TEXT, IMAGE, IMAGE, TEXT], [[1, 2, 2]], "run of placeholders"),  # a second picture, and no grid for it
        ([TEXT, IMAGE, TEXT], [[1, 2, 4]], "run of placeholders"),
        ([TEXT, TEXT], [[1, 2, 2]], "more image or video grids"),
    ):
        with pytest.raises(ValueError, match=message):
            positions(rule("index"), ids, images)
    with pytest.raises(ValueError, match="seconds per temporal patch"):
        positions(rule("seconds", 2.0), [VIDEO], videos=[[1, 2, 2]])


RULES = {"qwen2_vl": ("index", 0.0), "qwen2_5_vl": ("seconds", 2.0)}


@pytest.mark.parametrize("family", FAMILIES)
def test_images_and_text_agree_with_transformers(tiny_pair, family):
    """Transformers is an independent implementation to compare with where it agrees with the authors: without video."""
    model, processor = tiny_pair(family)
    found = position_rule(model.config)
    assert (found.time, found.tokens_per_second) == RULES.get(family, ("timestamp", 0.0)) and found.merge_size == 2
    assert found.video_token_id == processor.tokenizer.convert_tokens_to_ids("<|video_pad|>")
    image = model.config.image_token_id
    ids = torch.tensor([[7, 8, image, image, 9, image, image, image, 9, 9]])
    grids = torch.tensor([[1, 2, 4], [1, 6, 2]])
    types = (ids == image).int()
    theirs, _ = model.model.get_rope_index(ids, types, image_grid_thw=grids)
    assert torch.equal(prompt_positions(found, ids, torch.ones_like(ids), grids), theirs)
