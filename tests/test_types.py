"""Rows of a batch are chosen with everything that belongs to them."""

import torch

from qwenvl.step.groups import without_pixels
from qwenvl.types import BadSample, FrameInfo, Message, PromptBatch, Record


def record(name: str) -> Record:
    return Record(name, (Message("user", "?"),), "(1)", (), (), (), {}, f"d.json[{name}]")


def seen(name: str) -> FrameInfo:
    return FrameInfo(f"{name}.mp4", (0, 1), (0.0, 0.5), None, 0.5)


def batch() -> PromptBatch:
    """Four prompts: text; two clips and an image; text; a clip. Every patch is a row of one number."""
    return PromptBatch(
        records=[record(name) for name in "abcd"],
        epochs=[0, 1, 2, 3],
        frames=[[], [seen("b0"), seen("b1")], [], [seen("d")]],
        input_ids=torch.tensor([[9, 9, 9, 1], [2, 3, 4, 5], [9, 9, 9, 6], [9, 9, 7, 8]]),
        attention_mask=torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]),
        pixel_values=torch.tensor([[50], [51]], dtype=torch.uint8),
        image_grid_thw=torch.tensor([[1, 1, 2]]),
        pixel_values_videos=torch.arange(10, 19, dtype=torch.uint8)[:, None],
        video_grid_thw=torch.tensor([[1, 2, 2], [2, 1, 1], [1, 1, 3]]),
        seconds_per_grid=torch.tensor([0.5, 1.0, 1.5]),
        images_per_prompt=[0, 1, 0, 0],
        videos_per_prompt=[0, 2, 0, 1],
        fitted=[None, ((8, 2), (8, 2)), None, None],
        opened_think=[False, True, False, True],
        bad=[BadSample(record("x"), "broken")],
    )


def test_chosen_prompts_keep_their_media_in_the_order_asked():
    part = batch().select([3, 1])
    assert [each.id for each in part.records] == ["d", "b"] and part.epochs == [3, 1]
    assert [[info.path for info in infos] for infos in part.frames] == [["d.mp4"], ["b0.mp4", "b1.mp4"]]
    assert part.input_ids.tolist() == [[9, 9, 7, 8], [2, 3, 4, 5]]
    assert part.attention_mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert part.pixel_values.tolist() == [[50], [51]] and part.image_grid_thw.tolist() == [[1, 1, 2]]
    # the clips of b have 4 and 2 patches, 10 to 13 and 14 to 15; that of d has 3, 16 to 18
    assert part.pixel_values_videos.flatten().tolist() == [16, 17, 18, 10, 11, 12, 13, 14, 15]
    assert part.pixel_values_videos.dtype == torch.uint8
    assert part.video_grid_thw.tolist() == [[1, 1, 3], [1, 2, 2], [2, 1, 1]]
    assert part.seconds_per_grid.tolist() == [1.5, 0.5, 1.0]
    assert (part.images_per_prompt, part.videos_per_prompt) == ([0, 1], [1, 2])
    assert part.fitted == [None, ((8, 2), (8, 2))] and part.opened_think == [True, True]
    assert part.bad == []


def test_columns_of_padding_alone_are_cut():
    part = batch().select([3, 0])
    assert part.input_ids.tolist() == [[7, 8], [9, 1]] and part.attention_mask.tolist() == [[1, 1], [0, 1]]


def test_chosen_prompts_keep_their_grids_where_patches_were_dropped():
    part = without_pixels(batch()).select([3, 0])
    assert part.pixel_values is part.pixel_values_videos is part.image_grid_thw is None
    assert part.video_grid_thw.tolist() == [[1, 1, 3]]


def test_prompts_without_media_have_none():
    part = batch().select([2, 0])
    assert part.pixel_values is part.image_grid_thw is part.pixel_values_videos is part.video_grid_thw is None
    assert part.seconds_per_grid is None
