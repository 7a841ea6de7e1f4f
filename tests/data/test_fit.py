"""What is lowered, in which order and how far; the clips are real, the numbers are those of tokens by hand."""

import pytest
from PIL import Image

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import LongPromptError
from qwenvl.data.media.images import FrameFolder
from qwenvl.data.media.reader import ClipReader
from qwenvl.data.prompt_length import what_was_lowered
from qwenvl.demo.tiny import make_processor
from qwenvl.types import BadSample, Fitted

SAME = ((112, 112), (112, 112))  # height and width before and after


@pytest.fixture(scope="module")
def processor():
    """Patches of 14 pixels, four to a token: a pair of frames of 56 x 56 pixels is 4 tokens, one of 112 x 112 is 16."""
    return make_processor("qwen2_5_vl")


@pytest.fixture
def show(processor, write_rows):
    """``show(rows, limit, epoch=0, **options)`` -> the samples of ``rows`` and the batch that the collator makes."""

    def show(rows, limit, epoch=0, family=processor, lower=True, **options):
        bounds = {name: options.pop(name) for name in list(options) if name.endswith("pixels")}
        if limit is not None:
            bounds |= {"max_prompt_length": limit, "fit_frames": True, "on_long_prompt": "skip"}
        collator = GRPOCollator(family, **bounds)
        dataset = load_dataset(str(write_rows(rows)), limit=collator.limit, base_interval=0.1, **options)
        samples = [dataset[epoch, index] for index in range(len(rows))]
        return samples, collator(samples)["prompts"]

    return show


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


class TestFrames:
    @pytest.fixture
    def rows(self, make_clip, make_row):
        make_clip("a.mp4", 50, size=(112, 112))
        return [make_row(prompt="<video>\nWhich?", video="a.mp4")]

    def test_as_many_as_fit_evenly_over_the_clip(self, show, rows, number_of):
        words = words_of(show, rows)
        # 16 frames of 112 x 112: 8 pairs of 16 tokens; room for five pairs and a half
        (sample,), batch = show(rows, words + 5 * 16 + 8, video_max_frames=16)
        assert sample.fitted == Fitted(((16, 10),), (SAME,)) and batch.fitted == [sample.fitted]
        indices = sample.videos[0].info.indices
        assert indices == (0, 5, 11, 16, 22, 27, 33, 38, 44, 49)  # 49 * i / 9
        assert [number_of(frame) for frame in sample.videos[0].frames] == list(indices)
        assert batch.input_ids.shape[1] == words + 5 * 16
        assert batch.video_grid_thw.tolist() == [[5, 8, 8]]

    def test_exactly_full_is_not_too_long(self, show, rows):
        (sample,), _ = show(rows, words_of(show, rows) + 8 * 16, video_max_frames=16)
        assert sample.fitted is None and len(sample.videos[0].frames) == 16

    def test_without_a_limit_nothing_is_lowered(self, show, rows):
        (sample,), batch = show(rows, None, video_max_frames=16)
        assert len(sample.videos[0].frames) == 16 and batch.fitted == [None]

    def test_never_below_the_least_frames_but_then_pixels(self, show, rows):
        words = words_of(show, rows)
        # the least, 4 frames, are 2 pairs: 32 tokens of 112 x 112 pixels. Room for 20: 84 x 84 are 9 tokens a pair
        (sample,), batch = show(rows, words + 20, video_max_frames=16)
        assert sample.fitted == Fitted(((16, 4),), (((112, 112), (84, 84)),))
        assert batch.video_grid_thw.tolist() == [[2, 6, 6]]
        assert sample.videos[0].info.indices == (0, 16, 33, 49)

    def test_what_still_does_not_fit_goes_the_way_of_long_prompts(self, show, rows):
        words = words_of(show, rows)
        # 4 frames of the least pixels, 56 x 56: 2 pairs of 4 tokens
        _, batch = show(rows, words + 8, video_max_frames=16)
        assert len(batch) == 1 and batch.video_grid_thw.tolist() == [[2, 4, 4]]
        _, batch = show(rows, words + 7, video_max_frames=16)
        assert len(batch) == 0
        message = (
            f"the prompt has {words + 8} tokens, 8 of them vision, even with the fewest frames and pixels, but max"
        )
        assert message in batch.bad[0].error

    def test_a_records_own_bounds_hold(self, show, rows):
        words = words_of(show, rows)
        rows[0]["meta"] = {"min_frames": 8, "max_frames": 12, "min_pixels": 84 * 84}
        (sample,), batch = show(rows, words + 4 * 16)
        assert sample.fitted == Fitted(((12, 8),), (SAME,))
        _, batch = show(rows, words + 4 * 9)
        assert batch.video_grid_thw.tolist() == [[4, 6, 6]]
        _, batch = show(rows, words + 4 * 9 - 1)
        assert len(batch) == 0

    def test_several_clips_share_one_upper_bound(self, show, rows, make_clip):
        make_clip("b.mp4", 6, size=(112, 112))
        row = rows[0] | {"conversations": [dict(turn) for turn in rows[0]["conversations"]]}
        row["conversations"][0]["value"] = "<video><video>"
        row["video"] = ["a.mp4", "b.mp4"]
        words = words_of(show, [row])
        # 8 + 3 pairs; with at most 8 frames each 4 + 3, with at most 6 each 3 + 3
        (sample,), _ = show([row], words + 7 * 16, video_max_frames=16)
        assert sample.fitted == Fitted(((16, 8), (6, 6)), (SAME, SAME))
        (sample,), _ = show([row], words + 7 * 16 - 1, video_max_frames=16)
        assert sample.fitted == Fitted(((16, 6), (6, 6)), (SAME, SAME))

    def test_segments_give_way_together_and_keep_their_chance(self, show, rows):
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
            (again,), _ = show(rows, words + 3 * 16, epoch)
            assert again.videos[0].info == sample.videos[0].info
            seen.add(sample.videos[0].info.indices)
        assert len(seen) > 3

    def test_time_stamps_count(self, show, rows):
        family = make_processor("qwen3_vl")
        (_,), whole = show(rows, None, family=family, video_max_frames=16)
        for limit in range(whole.input_ids.shape[1] // 2, whole.input_ids.shape[1], 7):
            (sample,), batch = show(rows, limit, family=family, video_max_frames=16)
            assert batch.input_ids.shape[1] <= limit
            after = sample.fitted.frames[0][1]
            _, more = show(rows, None, family=family, video_max_frames=after + 2)
            assert more.input_ids.shape[1] > limit, "one pair more would have been too long"


class TestImages:
    def test_pixels_are_lowered_to_the_largest_share_that_fits(self, show, make_row, tmp_path):
        Image.new("RGB", (560, 560)).save(tmp_path / "a.png")
        rows = [make_row(prompt="<image>?", image="a.png")]
        words = words_of(show, rows)
        # 560 x 560 is 20 x 20 tokens; 14 x 14 = 196 fit into 200, 15 x 15 do not
        (sample,), batch = show(rows, words + 200)
        assert sample.fitted == Fitted((), (((560, 560), (392, 392)),))
        assert batch.image_grid_thw.tolist() == [[1, 28, 28]]

    def test_down_to_the_least(self, show, make_row, tmp_path):
        Image.new("RGB", (560, 560)).save(tmp_path / "a.png")
        rows = [make_row(prompt="<image>?", image="a.png")]
        words = words_of(show, rows)
        _, batch = show(rows, words + 16)  # the least is 16 * 28 * 28 pixels
        assert batch.image_grid_thw.tolist() == [[1, 8, 8]]
        _, batch = show(rows, words + 15)
        assert len(batch) == 0

    def test_text_alone_is_as_long_as_it_is(self, show, make_row):
        rows = [make_row(prompt="word " * 50)]
        (sample,), batch = show(rows, 20)
        assert sample.fitted is None
        assert "0 of them vision, but max_prompt_length is 20" in batch.bad[0].error


def test_no_limit_no_fitting(processor):
    with pytest.raises(ValueError, match="--fit_frames has no effect without --max_prompt_length"):
        GRPOCollator(processor, fit_frames=True)


def test_in_words():
    assert what_was_lowered(Fitted(((16, 10), (4, 4)), (SAME, SAME))) == "10 of 16 frames"
    assert what_was_lowered(Fitted((), (((560, 448), (392, 308)),))) == "308 x 392 pixels in place of 448 x 560"


class TestDecoding:
    """Clips are measured by their headers, so that no frame is decoded that is not shown."""

    @pytest.fixture
    def decoded(self, monkeypatch):
        """For each read of a clip in this process, its name and how many frames were asked for."""
        reads, read = [], ClipReader.read

        def counting(clip, indices):
            reads.append((clip.path.rpartition("/")[2], len(indices)))
            return read(clip, indices)

        monkeypatch.setattr(ClipReader, "read", counting)
        return reads

    @pytest.fixture
    def rows(self, make_clip, make_row):
        make_clip("a.mp4", 50, size=(112, 112))
        make_clip("b.mp4", 6, size=(112, 112))
        return [
            make_row(prompt="<video>\nWhich?", video="a.mp4"),
            make_row(prompt="<video><video>", video=["a.mp4", "b.mp4"]),
        ]

    def test_a_clip_that_is_made_to_fit_is_decoded_once(self, show, rows, decoded):
        words = words_of(show, rows[:1])
        decoded.clear()
        # room for five pairs of 16 tokens of the eight
        (sample,), _ = show(rows[:1], words + 5 * 16, video_max_frames=16, decode_timeout=0)
        assert sample.fitted.frames == ((16, 10),) and decoded == [("a.mp4", 10)]

    def test_each_of_several_clips_too(self, show, rows, decoded):
        words = words_of(show, rows[1:])
        decoded.clear()
        (sample,), _ = show(rows[1:], words + 7 * 16, video_max_frames=16, decode_timeout=0)
        assert sample.fitted.frames == ((16, 8), (6, 6)) and decoded == [("a.mp4", 8), ("b.mp4", 6)]

    def test_a_prompt_that_stays_too_long_is_not_decoded(self, show, rows, decoded):
        for lower in (True, False):
            samples, batch = show(rows, 10, lower=lower, video_max_frames=16, decode_timeout=0)
            assert all(isinstance(sample, BadSample) for sample in samples) and len(batch.bad) == 2
            assert "but max_prompt_length is 10" in batch.bad[1].error
        assert decoded == []

    def test_nor_where_it_is_an_error(self, processor, rows, write_rows, decoded):
        limit = GRPOCollator(processor, max_prompt_length=10).limit
        dataset = load_dataset(str(write_rows(rows)), limit=limit, decode_timeout=0)
        with pytest.raises(LongPromptError, match=r"data.json\[0\] .* tokens, 32 of them vision, but .*; raise it, "):
            dataset[0]
        assert decoded == []

    def test_the_message_is_that_of_the_collator(self, processor, rows, write_rows):
        collator = GRPOCollator(processor, max_prompt_length=20, on_long_prompt="skip")
        path = str(write_rows(rows))
        for index in range(2):
            early = load_dataset(path, limit=collator.limit)[index]
            (late,) = collator([load_dataset(path)[index]])["prompts"].bad
            assert early.error == late.error

    def test_a_header_that_says_another_size(self, show, rows, decoded, monkeypatch):
        """What is shown is then settled again, by the size of the frames themselves."""
        words = words_of(show, rows[:1])
        (right,), _ = show(rows[:1], words + 5 * 16, video_max_frames=16, decode_timeout=0)
        monkeypatch.setattr(ClipReader, "size", property(lambda clip: (56, 56), lambda clip, size: None), raising=False)
        decoded.clear()
        (sample,), _ = show(rows[:1], words + 5 * 16, video_max_frames=16, decode_timeout=0)
        assert sample.fitted == right.fitted and sample.videos[0].info == right.videos[0].info
        assert decoded == [("a.mp4", 16), ("a.mp4", 10)]

    def test_frames_that_are_turned_are_decoded_once(self, show, make_row, tmp_path, monkeypatch):
        (tmp_path / "turned").mkdir()
        for number in range(6):
            picture = Image.new("RGB", (168, 112))
            exif = picture.getexif()
            exif[0x0112] = 6  # a quarter turn
            picture.save(tmp_path / "turned" / f"{number}.jpg", exif=exif)
        rows = [make_row(prompt="<video>", video="turned", meta={"min_frames": 2, "max_frames": 6})]
        words, reads, read = words_of(show, rows), [], FrameFolder.read
        counting = lambda clip, indices: reads.append(len(indices)) or read(clip, indices)
        monkeypatch.setattr(FrameFolder, "read", counting)
        (sample,), _ = show(rows, words + 2 * 24)
        assert sample.fitted == Fitted(((6, 4),), (((168, 112), (168, 112)),)) and reads == [4]
