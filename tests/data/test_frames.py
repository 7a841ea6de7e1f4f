import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError, FramePlanError
from qwenvl.data.frames import (
    FrameRule,
    Looks,
    Timeline,
    choose,
    even_in_change,
    levelled,
    pairs_of_each,
    plan_frames,
    plan_spans,
    stretches_of,
    uniform_indices,
)
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.demo.tiny import make_processor
from qwenvl.types import ClipMeta, Record

WIDE = FrameOptions(base_interval=1.0, video_min_frames=1, video_max_frames=100)
CUT = [0, 0, 0, 0, 0, 9, 0, 0, 0, 0]
HALVES = Timeline([i / 2 for i in range(120)], 60.0)  # a minute of two frames a second


class TestUniform:
    @pytest.mark.parametrize(
        ("frame_count", "duration", "options", "indices"),
        [
            # 40 s / 10 s = 4 frames over 0..99: 0, 33, 66, 99
            (100, 40.0, FrameOptions(base_interval=10.0, video_min_frames=2, video_max_frames=8), (0, 33, 66, 99)),
            # 1.4 / 2 = 0.7 -> 1, clamped to 4; 13 * i / 3 = 0, 4.33, 8.67, 13
            (14, 1.4, FrameOptions(), (0, 4, 9, 13)),
            # 60 / 2 = 30, clamped to 8; 59 * i / 7 = 0, 8.43, 16.86, 25.29, 33.71, 42.14, 50.57, 59
            (60, 60.0, FrameOptions(), (0, 8, 17, 25, 34, 42, 51, 59)),
            # 10 / 2 = 5, made even upwards: 6; 20 * i / 5
            (21, 10.0, FrameOptions(), (0, 4, 8, 12, 16, 20)),
            # 5 again, but 5 is the upper bound: down to 4
            (21, 10.0, FrameOptions(video_max_frames=5), (0, 7, 13, 20)),
            # both bounds are 5: 5 frames and the last one twice
            (21, 10.0, FrameOptions(video_min_frames=5, video_max_frames=5), (0, 5, 10, 15, 20, 20)),
            # video_fps takes the place of base_interval: 3 s * 2 = 6
            (31, 3.0, FrameOptions(video_fps=2.0), (0, 6, 12, 18, 24, 30)),
        ],
    )
    def test_by_hand(self, frame_count, duration, options, indices):
        assert plan_frames(frame_count, duration, options).indices == indices

    @pytest.mark.parametrize(("frame_count", "indices"), [(1, (0, 0)), (2, (0, 1)), (3, (0, 1, 2, 2))])
    def test_a_short_clip_gives_what_it_has(self, frame_count, indices):
        assert plan_frames(frame_count, 0.1, FrameOptions()).indices == indices

    def test_meta_bounds_win_over_the_flags(self):
        meta = ClipMeta(min_frames=2, max_frames=2)
        assert plan_frames(100, 40.0, FrameOptions(), meta).indices == (0, 99)
        assert len(plan_frames(100, 99.0, FrameOptions(), ClipMeta(max_frames=2)).indices) == 2
        assert len(plan_frames(100, 1.0, FrameOptions(), ClipMeta(min_frames=20)).indices) == 20

    def test_segments_are_reported_without_dynamic_sampling_too(self):
        # 0, 3, 6, 9 in segments of 4 and 6 frames
        plan = plan_frames(10, 4.0, WIDE, ClipMeta(frame_counts=(4.0, 6.0)))
        assert (plan.indices, plan.segments) == ((0, 3, 6, 9), (0, 0, 1, 1))
        assert plan_frames(10, 4.0, WIDE, ClipMeta(frame_counts=(4.0, 6.0)), Random(0)) == plan, "nothing is drawn"

    def test_uniform_indices_rise_and_reach_both_ends(self):
        for frame_count in range(2, 40):
            for n in range(2, frame_count + 1):
                indices = uniform_indices(frame_count, n)
                assert indices == sorted(set(indices))
                assert (indices[0], indices[-1], len(indices)) == (0, frame_count - 1, n)
        assert uniform_indices(9, 1) == [4]


class TestDynamicSampling:
    meta = ClipMeta(frame_counts=(10.0, 20.0), min_frames=2, max_frames=4, dynamic_sample=True)

    def test_evaluation_takes_the_maximum_of_each_segment_uniformly(self):
        # 9 * i / 3 = 0, 3, 6, 9 and 10 + 19 * i / 3 = 10, 16.33, 22.67, 29
        plan = plan_frames(30, 3.0, FrameOptions(), self.meta)
        assert plan.indices == (0, 3, 6, 9, 10, 16, 23, 29)
        assert plan.segments == (0, 0, 0, 0, 1, 1, 1, 1)
        assert not plan.rescaled

    def test_training_draws_count_and_place_of_each_segment(self):
        counts = set()
        for seed in range(200):
            plan = plan_frames(30, 3.0, FrameOptions(), self.meta, Random(seed))
            distinct = sorted(set(plan.indices))
            first = [i for i in distinct if i < 10]
            second = [i for i in distinct if i >= 10]
            assert 2 <= len(first) <= 4
            assert 2 <= len(second) <= 4
            counts.add((len(first), len(second)))
            # stratified: the j-th of n frames lies in the j-th n-th of its segment
            for j, index in enumerate(first):
                assert 10 * j // len(first) <= index < 10 * (j + 1) // len(first)
            for j, index in enumerate(second):
                assert 20 * j // len(second) <= index - 10 < 20 * (j + 1) // len(second)
        assert len(counts) == 9, "every pair of counts in [2, 4] x [2, 4] comes up"

    def test_every_frame_of_a_segment_can_be_drawn(self):
        assert {i for seed in range(300) for i in choose(10, 3, Random(seed))} == set(range(10))

    def test_odd_total_repeats_the_last_frame_and_its_segment(self):
        meta = ClipMeta(frame_counts=(2.0, 3.0), min_frames=8, max_frames=8, dynamic_sample=True)
        plan = plan_frames(5, 0.5, FrameOptions(), meta, Random(0))
        assert plan.indices == (0, 1, 2, 3, 4, 4)
        assert plan.segments == (0, 0, 1, 1, 1, 1)

    def test_without_counts_the_clip_is_one_segment(self):
        meta = ClipMeta(min_frames=4, max_frames=4, dynamic_sample=True)
        plan = plan_frames(13, 1.3, FrameOptions(), meta)
        assert (plan.indices, plan.segments) == ((0, 4, 8, 12), None)


class TestRescaling:
    def plan(self, counts, frame_count):
        meta = ClipMeta(frame_counts=counts, min_frames=1, max_frames=100, dynamic_sample=True)
        return plan_frames(frame_count, 1.0, FrameOptions(), meta)

    def test_counts_that_fit_are_not_rescaled(self):
        plan = self.plan((5.0, 4.0, 1.0), 10)
        assert (plan.segments, plan.rescaled) == ((0, 0, 0, 0, 0, 1, 1, 1, 1, 2), False)

    def test_off_by_one_is_rescaled(self):
        # 13 + 11 = 24 of 25 frames: the edge moves from 13 to 13 * 25 / 24 = 13.54 -> 14
        plan = self.plan((13.0, 11.0), 25)
        assert plan.rescaled
        assert plan.segments.count(0) == 14
        assert plan.indices[-1] == 24

    def test_fractions_that_sum_to_the_length_are_no_rescaling(self):
        plan = self.plan((4.5, 5.5), 10)
        assert (plan.segments.count(0), plan.rescaled) == (5, False)  # 4.5 rounds up

    def test_more_than_two_frames_and_ten_percent_off_is_an_error(self):
        assert self.plan((3.0, 3.0), 4).rescaled
        assert self.plan((100.0, 120.0), 200).rescaled
        with pytest.raises(FramePlanError, match=r"\[100.0, 121.0\] sum to 221 frames but the clip has 200"):
            self.plan((100.0, 121.0), 200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_interval": 0.0}, "--base_interval must be above 0"),
        ({"video_fps": -1.0}, "--video_fps must be above 0"),
        ({"video_min_frames": 9}, "--video_min_frames 9 is above --video_max_frames 8"),
        ({"video_min_frames": 0}, "--video_min_frames must be at least 1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FrameOptions(**options)


class TestWeights:
    def test_half_is_time(self):
        # shares of change 0, 1/4, 3/4 plus 1/3 each, times 3 * 4
        assert levelled([0, 1, 3], 1) == ([4, 7, 13], 24)

    def test_a_cut_is_lowered_to_one_part(self):
        # 9 times 1/10 + 0, once 1/10 + 1, times 90: 9 and 99 of 180; a half is 90, so 99 becomes the 81 of all others
        assert levelled(CUT, 2) == ([9] * 5 + [81] + [9] * 4, 81)

    def test_several_cuts_are_lowered_to_the_same(self):
        # times 8 * 20: 20 and 100 of 6 * 20 + 2 * 100 = 320 in 4 parts of 80: what is left, 120, makes the other two
        weights, part = levelled([0, 10, 0, 0, 0, 10, 0, 0], 4)
        assert (weights, part) == ([40, 120, 40, 40, 40, 120, 40, 40], 120)
        assert sum(weights) == 4 * part

    def test_no_change_at_all_is_time_alone(self):
        assert levelled([0, 0, 0], 2) == ([2, 2, 2], 3)


class TestEvenInChange:
    def test_a_cut_by_hand(self):
        # nine gaps: eight of 9 and one of 90, of 162 in three parts; 90 is lowered to 72 / 2 = 36, the part: in halves
        # the sums are 18, 36, 54, 72, 144, 162, 180, 198, 216 and the third parts of them 72 and 144
        assert even_in_change(CUT, 4) == [0, 4, 5, 9]

    def test_movement_by_hand(self):
        # gaps 0 0 4 4 0 0 weigh 8 8 32 32 8 8; thirds of 96 lie midway in the two large ones, where the later counts
        assert even_in_change([0, 0, 0, 4, 4, 0, 0], 4) == [0, 3, 4, 6]

    def test_one_position_is_where_half_has_changed(self):
        assert even_in_change([0, 0, 0, 0, 0, 0, 5, 5, 0, 0], 1) == [6]

    def test_equal_changes_give_the_uniform_positions(self):
        for count in range(3, 40):
            for n in range(2, count):
                assert even_in_change([7] * count, n) == even_in_change([0] * count, n) == uniform_indices(count, n)

    def test_no_position_twice_both_ends_and_no_long_gap_whatever_changes(self):
        draw = random.Random(0)
        for _ in range(300):
            count = draw.randrange(3, 200)
            n = draw.randrange(2, count)
            change = [draw.choice((0, 0, 0, 1, 50, 10**6)) * draw.randrange(3) for _ in range(count)]
            chosen = even_in_change(change, n)
            assert (len(chosen), chosen[0], chosen[-1]) == (n, 0, count - 1)
            assert all(a < b for a, b in pairwise(chosen))
            assert max(b - a for a, b in pairwise(chosen)) <= 2 * (count - 1) / (n - 1) + 1


class TestLooks:
    looks = Looks(range(0, 100, 10), CUT)

    def test_frames_are_those_that_were_looked_at(self):
        assert choose(100, 4, None, self.looks) == [0, 40, 50, 90]

    def test_where_there_are_not_more_looks_than_frames_they_choose_nothing(self):
        assert choose(100, 10, None, self.looks) == uniform_indices(100, 10)
        assert choose(100, 12, None, self.looks) == uniform_indices(100, 12)

    def test_random_frames_come_from_stretches_of_equal_change(self):
        # two parts of 81: five looks without change, 45, then the cut with 81: half of all is in the cut
        for seed in range(50):
            first, second = choose(100, 2, stable_random(seed), self.looks)
            assert 0 <= first < 50 <= second < 100
        drawn = {choose(100, 2, stable_random(seed), self.looks)[0] for seed in range(50)}
        assert len(drawn) > 15  # any frame, not only those that were looked at

    def test_a_window_forgets_what_changed_before_it(self):
        assert self.looks.within(50, 80) == Looks([0, 10, 20], [0, 0, 0])
        assert self.looks.within(45, 46) == Looks([], [])


class TestWhereToLook:
    record = Record("a", (), "", ("a.mp4",), (), (None,), {}, "a")
    options = FrameOptions(base_interval=1.0, video_max_frames=6, frame_sampler="change")

    def timeline(self, frames: int, fps: int) -> Timeline:
        return Timeline([i / fps for i in range(frames)], frames / fps)

    def test_a_clip_is_looked_at_four_times_a_second_and_a_short_one_at_every_frame(self):
        looked = lambda frames: FrameRule(self.options).frames_to_look_at(self.record, 0, self.timeline(frames, 30))
        assert looked(900) == uniform_indices(900, 120)  # 30 s
        assert looked(60) == list(range(60))

    def test_only_where_frames_may_be_taken(self):
        record = Record("a", (), "", ("a.mp4",), (), (ClipMeta(spans=((1.0, 2.0), (5.0, 6.0))),), {}, "a")
        looked = FrameRule(self.options).frames_to_look_at(record, 0, self.timeline(80, 10))
        assert looked == [*range(10, 21), *range(50, 61)]

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_segments_have_frames_of_their_own(self, dynamic):
        """Two segments of 50 frames: what changes in one takes no frames from the other."""
        meta = ClipMeta((50.0, 50.0), 4, 4, dynamic_sample=dynamic)
        looks = Looks(range(100), [0] * 20 + [9] * 10 + [0] * 70)
        plan = plan_frames(100, 10.0, FrameOptions(), meta, looks=looks)
        if dynamic:
            assert plan.segments == (0, 0, 0, 0, 1, 1, 1, 1)
            assert plan.indices[4:] == (50, 66, 83, 99)
            assert sum(20 <= index < 30 for index in plan.indices) == 2
        else:
            assert len(plan.indices) == 4


class TestStretches:
    def test_frames_at_both_ends_belong_to_a_span(self):
        assert stretches_of(ClipMeta(spans=[(0.5, 1.0), (10.2, 11.4)]), HALVES) == [(1, 3), (21, 23)]

    def test_a_frame_at_a_border_belongs_to_the_earlier_span(self):
        assert stretches_of(ClipMeta(spans=[(1, 2), (2, 3)]), HALVES) == [(2, 5), (5, 7)]

    def test_the_end_may_be_rounded_up(self):
        assert stretches_of(ClipMeta(spans=[(59, 61)]), HALVES) == [(118, 120)]

    @pytest.mark.parametrize(
        ("spans", "message"),
        [
            ([(1, 2), (70, 80)], r"meta.spans\[1\] is 70 to 80 s, but the clip ends at 60.000 s"),
            ([(50, 61.5)], r"meta.spans\[0\] is 50 to 61.5 s, but the clip ends at 60.000 s"),
            ([(59.6, 60)], r"meta.spans\[0\] is 59.6 to 60 s, but the clip ends"),
            ([(1.1, 1.4)], r"meta.spans\[0\]: no frame is shown from 1.1 to 1.4 s"),
        ],
    )
    def test_spans_without_frames_are_errors(self, spans, message):
        with pytest.raises(FramePlanError, match=message):
            stretches_of(ClipMeta(spans=spans), HALVES)


PAIR = FrameOptions(base_interval=1.0, video_min_frames=2, video_max_frames=100)


class TestSpans:
    def test_pairs_go_where_frames_are_sparse(self):
        # 30, 10 and 3 frames: one pair each; then 30 / 1, 30 / 2, and 10 / 1 = 30 / 3: the first of equal ones
        assert pairs_of_each([(0, 30), (40, 50), (60, 63)], 5) == [3, 1, 1]
        assert pairs_of_each([(0, 30), (40, 50), (60, 63)], 7) == [4, 2, 1]

    def test_no_more_pairs_than_frames(self):
        assert pairs_of_each([(0, 3), (10, 11)], 50) == [2, 1]

    def test_frames_of_each_span_by_hand(self):
        # 40 + 10 frames of half a second: 25 s at 5 s apart are 5 -> 6 frames, in pairs 2 and 1
        options = replace(PAIR, base_interval=5.0)
        plan = plan_spans([(10, 50), (90, 100)], 25.0, options, ClipMeta())
        assert plan.indices == (10, 23, 36, 49, 90, 99)
        assert plan.segments == (0, 0, 0, 0, 1, 1)

    def test_a_span_of_one_frame_is_a_pair_of_it(self):
        assert plan_spans([(7, 8), (20, 40)], 10.5, PAIR, ClipMeta(max_frames=6)).indices == (7, 7, 20, 26, 33, 39)

    def test_the_bound_is_never_below_a_pair_of_each(self):
        stretches = [(0, 10), (20, 30), (40, 50)]
        assert len(plan_spans(stretches, 15.0, PAIR, ClipMeta(), most=2).indices) == 6
        with pytest.raises(FramePlanError, match="3 spans need 6 frames, a pair for each, but at most 4 are taken"):
            plan_spans(stretches, 15.0, PAIR, ClipMeta(max_frames=4))

    def test_fewer_frames_are_asked_for_to_make_a_prompt_fit(self):
        counts = [len(plan_spans([(0, 30), (60, 70)], 20.0, PAIR, ClipMeta(), most=n).indices) for n in range(1, 30)]
        assert counts == sorted(counts) and counts[0] == 4 and counts[-1] == 20

    def test_drawn_anew_each_epoch_within_each_span(self):
        meta = ClipMeta(min_frames=2, max_frames=3, dynamic_sample=True)
        plans = [plan_spans([(0, 30), (60, 70)], 20.0, PAIR, meta, stable_random(n)) for n in range(20)]
        assert len({plan.indices for plan in plans}) > 10
        for plan in plans:
            for index, segment in zip(plan.indices, plan.segments, strict=True):
                assert (0, 60)[segment] <= index < (30, 70)[segment]


class TestSpansOfClips:
    def record(self, make_row, spans, **meta):
        return make_row(prompt="<video>\nWhich?", video="a.mp4", meta={"spans": spans, **meta})

    @pytest.fixture
    def of_a_clip(self, make_clip, write_rows, make_row):
        """``of_a_clip(spans, **meta)`` -> the data set of one clip of 60 frames, ten a second."""
        make_clip("a.mp4", 60)
        return lambda spans, **meta: load_dataset(str(write_rows([self.record(make_row, spans, **meta)])))

    def test_frames_lie_in_the_spans_and_bear_their_true_times(self, of_a_clip, number_of):
        (clip,) = of_a_clip([[0.5, 0.8], [4, 5]])[0].videos
        assert clip.info.indices == (5, 8, 40, 50)
        assert clip.info.times == pytest.approx((0.5, 0.8, 4.0, 5.0))
        assert clip.info.segments == (0, 0, 1, 1)
        assert [number_of(frame) for frame in clip.frames] == [5, 8, 40, 50]

    def test_qwen3_vl_is_told_the_true_times(self, of_a_clip):
        """Each pair of frames bears the mean of its two times: (0.5 + 0.8) / 2 and (4 + 5) / 2."""
        processor = make_processor("qwen3_vl")
        batch = GRPOCollator(processor)([of_a_clip([[0.5, 0.8], [4, 5]])[0]])["prompts"]
        text = processor.tokenizer.decode(batch.input_ids[0])
        assert "<0.7 seconds>" in text or "<0.6 seconds>" in text
        assert "<4.5 seconds>" in text

    def test_a_span_after_the_end_names_record_and_clip(self, of_a_clip):
        with pytest.raises(BadMediaError, match=r"\[0\] \(id .*a.mp4: meta.spans\[0\] is 7 to 9 s, but the clip ends"):
            of_a_clip([[7, 9]])[0]

    def test_the_example_of_the_page(self, make_clip, write_rows):
        page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
        section = page[page.index("### Seconds that matter") :]
        row = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])
        make_clip(row["video"], 450)  # 45 s
        info = load_dataset(str(write_rows([row])))[0].videos[0].info
        assert info.times == pytest.approx((12.5, 15, 17.5, 20, 31, 34, 37, 40))
        assert info.segments == (0, 0, 0, 0, 1, 1, 1, 1)
