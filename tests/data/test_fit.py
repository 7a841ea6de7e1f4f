"""With how many frames a prompt fits: the clips are real, the numbers are those of tokens by hand."""

import pytest
from PIL import Image

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.demo.tiny import make_processor


@pytest.fixture(scope="module")
def processor():
    """Patches of 14 pixels, four to a token: a pair of frames of 112 x 112 pixels is 16 tokens."""
    return make_processor("qwen2_5_vl")


@pytest.fixture
def show(processor, write_rows):
    """``show(rows, limit, epoch=0, **options)`` -> the samples of ``rows`` and the batch that the collator makes."""

    def show(rows, limit, epoch=0, family=processor, **options):
        bounds = {} if limit is None else {"max_prompt_length": limit, "fit_frames": True, "on_long_prompt": "skip"}
        collator = GRPOCollator(family, **bounds)
        fit = {"ruler": collator.ruler, "fit_to": collator.options.fit_to}
        dataset = load_dataset(str(write_rows(rows)), base_interval=0.1, **fit, **options)
        samples = [dataset[epoch, index] for index in range(len(rows))]
        return samples, collator(samples)["prompts"]

    return show


@pytest.fixture
def rows(make_clip, make_row):
    """One row with a clip of 50 frames of 112 x 112 pixels."""
    make_clip("a.mp4", 50, size=(112, 112))
    return [make_row(prompt="<video>\nWhich?", video="a.mp4")]


def words_of(show, rows) -> int:
    """Tokens of a prompt that are not vision."""
    _, batch = show(rows, None)
    grids = [g for g in (batch.video_grid_thw, batch.image_grid_thw) if g is not None]
    return batch.input_ids.shape[1] - sum(int(grid.prod(-1).sum()) // 4 for grid in grids)


def frames_by_segment(sample) -> list[int]:
    """Different frames of each of two segments; an odd total repeats the last."""
    info = sample.videos[0].info
    shown = set(zip(info.indices, info.segments, strict=True))
    return [sum(segment == number for _, segment in shown) for number in (0, 1)]


def test_as_many_frames_as_fit_are_spread_evenly_over_the_clip(show, rows, number_of):
    words = words_of(show, rows)
    # 16 frames of 112 x 112: 8 pairs of 16 tokens; room for five pairs and a half
    (sample,), batch = show(rows, words + 5 * 16 + 8, video_max_frames=16)
    assert sample.fitted == ((16, 10),) and batch.fitted == [sample.fitted]
    indices = sample.videos[0].info.indices
    assert indices == (0, 5, 11, 16, 22, 27, 33, 38, 44, 49)  # 49 * i / 9
    assert [number_of(frame) for frame in sample.videos[0].frames] == list(indices)
    assert batch.input_ids.shape[1] == words + 5 * 16
    assert batch.video_grid_thw.tolist() == [[5, 8, 8]]
    for limit in (words + 8 * 16, None):
        (sample,), batch = show(rows, limit, video_max_frames=16)
        assert batch.fitted == [None] and len(sample.videos[0].frames) == 16, "it fits as it is"


def test_fitting_never_goes_below_the_fewest_frames(show, rows, make_row, tmp_path):
    words = words_of(show, rows)
    # the fewest, 4 frames, are 2 pairs
    (sample,), batch = show(rows, words + 32, video_max_frames=16)
    assert len(batch) == 1 and sample.videos[0].info.indices == (0, 16, 33, 49)
    _, batch = show(rows, words + 31, video_max_frames=16)
    message = f"the prompt has {words + 32} tokens, 32 of them vision, even with the fewest frames, but max_prompt_len"
    assert len(batch) == 0 and message in batch.bad[0].error
    (sample,), batch = show([rows[0] | {"meta": {"min_frames": 8, "max_frames": 12}}], words + 31)
    assert sample.fitted == ((12, 8),) and len(batch.bad) == 1, "the record's own bounds hold"
    Image.new("RGB", (560, 560)).save(tmp_path / "a.png")
    (sample,), batch = show([make_row(prompt="<image>?", image="a.png")], 200)
    assert sample.fitted is None and "400 of them vision, but max_prompt_length is 200" in batch.bad[0].error


def test_several_clips_share_one_upper_bound(show, make_row, rows, make_clip):
    make_clip("b.mp4", 6, size=(112, 112))
    row = make_row(prompt="<video><video>", video=["a.mp4", "b.mp4"])
    words = words_of(show, [row])
    # 8 + 3 pairs; with at most 8 frames each 4 + 3, with at most 6 each 3 + 3
    (sample,), _ = show([row], words + 7 * 16, video_max_frames=16)
    assert sample.fitted == ((16, 8), (6, 6))
    (sample,), _ = show([row], words + 7 * 16 - 1, video_max_frames=16)
    assert sample.fitted == ((16, 6), (6, 6))


def test_segments_lose_frames_together_and_are_still_drawn_by_chance(show, rows):
    rows[0]["meta"] = {"frame_cnts": [20, 30], "min_frames": 2, "max_frames": 8, "dynamic_sample": True}
    words = words_of(show, rows)
    seen = set()
    for epoch in range(6):
        (free,), _ = show(rows, None, epoch)
        (sample,), batch = show(rows, words + 3 * 16, epoch)
        drawn, kept = frames_by_segment(free), frames_by_segment(sample)
        # the largest bound on both with at most three pairs in all
        most = max(bound for bound in range(2, 9) if sum(min(n, bound) for n in drawn) <= 6)
        assert kept == [min(n, most) for n in drawn]
        assert (sample.fitted is None) == (sum(drawn) <= 6)
        assert batch.input_ids.shape[1] == words + 16 * -(-sum(kept) // 2)
        seen.add(sample.videos[0].info.indices)
    assert len(seen) > 3


def test_fitting_counts_the_tokens_of_timestamps(show, rows):
    family = make_processor("qwen3_vl")
    (_,), whole = show(rows, None, family=family, video_max_frames=16)
    for limit in range(whole.input_ids.shape[1] // 2, whole.input_ids.shape[1], 20):
        (sample,), batch = show(rows, limit, family=family, video_max_frames=16)
        assert batch.input_ids.shape[1] <= limit
        _, more = show(rows, None, family=family, video_max_frames=sample.fitted[0][1] + 2)
        assert more.input_ids.shape[1] > limit, "one pair more would have been too long"


def test_frames_under_total_pixels_become_larger_where_fewer_are_taken(show, make_clip, make_row):
    make_clip("a.mp4", 50, size=(112, 112))
    row = make_row(prompt="<video>?", video={"video": "a.mp4", "fps": 4, "total_pixels": 50_176, "min_pixels": 784})
    words = words_of(show, [row])
    # 20 frames of 5,017 pixels are 56 x 56, 4 tokens a pair; 14 of 7,168 are 84 x 84, 9 tokens a pair
    (free,), batch = show([row], None)
    assert (len(free.videos[0].info.indices), batch.input_ids.shape[1]) == (20, words + 10 * 4)
    (sample,), batch = show([row], words + 37)
    assert sample.fitted == ((20, 18),) and batch.input_ids.shape[1] == words + 9 * 4
    # 16 frames are 32 tokens and 14 are 63; of fewer only 2 are below 32, which are below the row's fewest
    (sample,), batch = show([row], words + 32)
    assert sample.fitted == ((20, 16),) and sample.videos[0].frames.shape[-2:] == (56, 56)
    (_,), batch = show([row], words + 31)
    assert len(batch.bad) == 1


def test_a_number_of_frames_of_a_row_is_kept(show, make_clip, make_row):
    make_clip("a.mp4", 50, size=(112, 112))
    row = make_row(prompt="<video>?", video={"video": "a.mp4", "nframes": 12})
    words = words_of(show, [row])
    (sample,), batch = show([row], words + 5 * 16)
    assert len(sample.videos[0].info.indices) == 12 and len(batch.bad) == 1
