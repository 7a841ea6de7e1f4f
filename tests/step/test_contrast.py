"""The bonus for answers that need the order of the frames, by hand-made numbers."""

import json
import math
import random

import pytest
import torch

from qwenvl.data.seeds import stable_random
from qwenvl.rewards.options import ContrastArguments
from qwenvl.run_log.log import read_rollouts
from qwenvl.step.contrast import random_order, reorder_frames, shuffled_prompts, with_bonus
from qwenvl.types import RewardBatch
from tests.train.conftest import caught_draws


def flags(margin=0.0):
    return ContrastArguments(share=0.5, margin=margin, bonus=0.3)


def rewards(total):
    return RewardBatch(("accuracy",), (1.0,), [list(total)], torch.tensor(total))


@pytest.mark.parametrize(
    ("margin", "shuffled", "bonus"),
    [
        (0.0, 0.25, [0.3, 0.0, 0.3, 0.0]),  # 2 of 4 and a half against 1 of 4: mean .625 beats .25
        (0.0, 0.625, [0.0] * 4),  # no better in order
        (0.4, 0.25, [0.0] * 4),  # better by .375, less than the margin
        (0.375, 0.25, [0.0] * 4),  # better by exactly the margin is not more
        (0.3, 0.25, [0.3, 0.0, 0.3, 0.0]),
    ],
)
def test_correct_completions_get_the_bonus_where_order_helps(margin, shuffled, bonus):
    ordered = [1.0, 0.5, 1.0, 0.0]
    result = with_bonus(rewards(ordered), ordered, [shuffled], flags(margin))
    assert result.names == ("accuracy", "temporal_contrast")
    assert result.components[1] == bonus
    assert result.total.tolist() == pytest.approx([a + b for a, b in zip(ordered, bonus, strict=True)])


def test_prompts_without_video_and_completions_without_a_reward_get_no_bonus():
    ordered = [1.0, 1.0, 1.0, None, 1.0, 1.0]
    result = with_bonus(rewards([1.0, 1.0, 1.0, 0.0, 1.0, math.nan]), ordered, [None, 0.0, 0.0], flags())
    assert result.components[1] == [None, None, 0.3, None, 0.3, None]
    assert result.totals() == [1.0, 1.0, pytest.approx(1.3), 0.0, pytest.approx(1.3), None]


def test_frames_are_permuted_whole(tiny_pair):
    """Shuffled patches are those that the processor makes of the frames in that order."""
    _, processor = tiny_pair("qwen2_5_vl")
    frames = torch.randint(0, 256, (6, 3, 56, 84), dtype=torch.uint8)

    def patches(clip):
        raw = {"do_resize": False, "do_rescale": False, "do_normalize": False, "cap_pixels_per_frame": False}
        return processor.video_processor(clip, return_tensors="pt", do_sample_frames=False, **raw)[
            "pixel_values_videos"
        ]

    order = list(range(6))
    random.Random(3).shuffle(order)
    assert order != list(range(6))
    assert torch.equal(reorder_frames(patches(frames), 2, order), patches(frames[order]))


def test_a_shuffled_clip_never_looks_as_before():
    for record in map(str, range(40)):
        assert random_order((4, 9), 5, 0, record, 0) == [1, 0]
        order = random_order((4, 9, 12, 12), 5, 0, record, 0)  # the last frame is there twice
        assert sorted(order) == [0, 1, 2, 3] and order not in ([0, 1, 2, 3], [0, 1, 3, 2])
    assert sorted(random_order((4, 4), 5, 0, "one frame", 0)) == [0, 1]


def test_a_clip_of_one_frame_has_no_order(make_trainer):
    trainer = make_trainer(video_max_frames=1, video_min_frames=1)
    batch = trainer.data_collator([trainer.train_dataset[row] for row in (0, 1)])["prompts"]
    assert [len(set(clip.indices)) for clips in batch.frames for clip in clips] == [1, 4]  # the second by its `meta`
    (record,) = shuffled_prompts(batch, seed=5, temporal_patch_size=2).records
    assert record.id == "clip-1"


def test_records_and_ids_of_the_shuffled_prompts_belong_together(make_trainer):
    trainer = make_trainer()
    dataset, n = trainer.train_dataset, len(trainer.train_dataset)
    rows = [n - 2, 0, n - 1, 1]  # text, clip, image, clip
    batch = trainer.data_collator([dataset[3, row] for row in rows])["prompts"]
    part = shuffled_prompts(batch, seed=5, temporal_patch_size=2)
    alone = trainer.data_collator([dataset[3, 0], dataset[3, 1]])["prompts"]
    assert [record.id for record in part.records] == [record.id for record in alone.records] == ["clip-0", "clip-1"]
    assert torch.equal(part.input_ids, alone.input_ids) and torch.equal(part.attention_mask, alone.attention_mask)
    assert torch.equal(part.video_grid_thw, alone.video_grid_thw) and part.pixel_values is None
    assert torch.equal(part.seconds_per_grid, alone.seconds_per_grid) and part.frames == alone.frames
    assert (part.images_per_prompt, part.videos_per_prompt) == ([0, 0], [1, 1])
    ordered = alone.pixel_values_videos.split(alone.video_grid_thw.prod(-1).tolist())
    shuffled = part.pixel_values_videos.split(part.video_grid_thw.prod(-1).tolist())
    for number, (before, after) in enumerate(zip(ordered, shuffled, strict=True)):
        order = list(range(len(part.frames[number][0].indices)))
        stable_random(5, "temporal_contrast", 3, f"clip-{number}", 0).shuffle(order)
        assert torch.equal(after, reorder_frames(before, 2, order))
    assert not torch.equal(part.pixel_values_videos, alone.pixel_values_videos)


def test_the_second_group_is_drawn_by_itself(make_trainer, sop_data):
    """The tiny model hardly minds the order of frames: with the same random numbers it would write the same again."""
    rows = [row for row in json.loads(sop_data.read_text()) if "video" in row]
    (sop_data.parent / "clips.json").write_text(json.dumps(rows))
    trainer = make_trainer(
        dataset_use=str(sop_data.parent / "clips.json"),
        temporal_contrast="accuracy(share=1)",
        per_device_train_batch_size=6,
        max_steps=1,
        generation_temperature=1.0,
    )
    draws = caught_draws(trainer)
    trainer.train()
    (*_, ordered), (*_, shuffled) = draws
    assert sum(a == b for a, b in zip(ordered.texts, shuffled.texts, strict=True)) < 3


def test_correctness_may_be_a_plugin_that_does_not_apply_to_every_record(make_trainer, sop_data, tmp_path):
    marked = '@reward("{0}")\ndef {0}(completions, id, **columns):\n    return {1}\n'
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from qwenvl.rewards import reward\n"
        + marked.format("clips", "[1.0 if name.startswith('clip') else None for name in id]")
        + marked.format("length", "[float(len(text)) for text in completions]")
    )
    rows = json.loads(sop_data.read_text())
    rows[0]["reward"] = "length"
    (sop_data.parent / "routed.json").write_text(json.dumps(rows))
    trainer = make_trainer(
        functions=("clips", "length"),
        external_plugins=[str(plugin)],
        dataset_use=str(sop_data.parent / "routed.json"),
        temporal_contrast="clips",
        per_device_train_batch_size=8,
        max_steps=1,
    )
    draws = caught_draws(trainer)
    trainer.train()
    # All prompts, then those with video, half as often (1.5, rounded to even).
    assert [(prompts, size) for prompts, size, *_ in draws] == [(8, 3), (6, 2)]
    given = {row.record_id: row.rewards["temporal_contrast"] for row in read_rollouts(trainer.args.output_dir)}
    assert given == {"clip-0": None, "text": None, "image": None} | {f"clip-{n}": 0.0 for n in range(1, 6)}
