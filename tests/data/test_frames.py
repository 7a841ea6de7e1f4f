from random import Random

import pytest

from qwenvl.data.errors import BadMediaError
from qwenvl.data.frames import FrameRule, Timeline, duration_of_stretch, evenly_spaced, plan_frames, uniform_indices
from qwenvl.data.options import FrameOptions
from qwenvl.types import ClipMeta, LibraryCount, Record

WIDE = FrameOptions(base_interval=1.0, video_min_frames=1, video_max_frames=100)


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
    def test_the_number_of_frames_follows_from_duration_interval_and_bounds(
        self, frame_count, duration, options, indices
    ):
        assert plan_frames(frame_count, duration, options).indices == indices

    @pytest.mark.parametrize(("frame_count", "indices"), [(1, (0, 0)), (2, (0, 1)), (3, (0, 1, 2, 2))])
    def test_a_clip_with_too_few_frames_gives_all_of_them(self, frame_count, indices):
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


# 10 s at 10 frames a second, then a frame each 9 s, the last one at 100 s.
UNEVEN = Timeline([i / 10 for i in range(100)] + [10.0 + 9 * i for i in range(11)], 101.0)


def shown_of(timeline, meta=None, options=None):
    """The times that a clip shows."""
    record = Record("a", (), "", ("a.mp4",), (), (meta,), {}, "a.json[0]")
    plan = FrameRule(options or FrameOptions(), training=False).plan(record, 0, 0, timeline)
    return [timeline.times[index] for index in plan.indices]


class TestVariableRate:
    def test_frames_are_nearest_to_evenly_spaced_times(self):
        # 8 frames, each 100 / 7 s: 0, 14.3, 28.6, 42.9, 57.1, 71.4, 85.7, 100
        assert shown_of(UNEVEN) == [0, 10, 28, 46, 55, 73, 82, 100]

    @pytest.mark.parametrize(
        ("span", "fps", "frames"),
        [
            ({"video_end": 9.9}, 1.0, 10),  # 9.9 s
            ({"video_start": 10.0}, 0.1, 10),  # 91 s are 9 frames, made even
            ({"video_start": 10.0, "video_end": 50.0}, 0.1, 4),  # 40 s
            ({"video_start": 12.0, "video_end": 50.0}, 0.2, 4),  # 31 s, from the frame at 19 s on: 6, but there are 4
            ({}, 0.1, 10),  # 101 s
        ],
    )
    def test_the_seconds_of_a_span_are_those_of_its_frames(self, span, fps, frames):
        meta = ClipMeta(**span, video_fps=fps, min_frames=2, max_frames=64)
        times = shown_of(UNEVEN, meta)
        assert len(times) == frames and times == sorted(set(times))
        by_package = ClipMeta(**span, count=LibraryCount(fps=fps, min_frames=2, max_frames=64))
        assert abs(len(shown_of(UNEVEN, by_package)) - frames) <= 2, "it rounds down to pairs"

    def test_a_span_without_frames_is_named_by_the_bounds_that_it_has(self):
        for span, named in (
            ({"video_start": 500.0}, "video_start 500"),
            ({"video_start": 11.0, "video_end": 12.5}, "video_start 11 and video_end 12.5"),
        ):
            with pytest.raises(BadMediaError, match=f"no frames are left by {named}: those of"):
                shown_of(UNEVEN, ClipMeta(**span))

    def test_the_number_of_frames_does_not_shrink_where_there_are_few_to_choose_from(self):
        # 4 frames, at 0, 33.3, 66.7 and 100 s: nearest are 0, 0.4, 100 and 100, and one of the others is added.
        few = Timeline([0, 0.1, 0.2, 0.3, 0.4, 100], 101.0)
        assert shown_of(few, ClipMeta(max_frames=4)) == [0, 0.2, 0.4, 100]
        for n in range(1, 112):
            chosen = evenly_spaced(UNEVEN.times, n)
            assert len(chosen) == n and chosen == sorted(set(chosen))
            assert n == 1 or (chosen[0], chosen[-1]) == (0, 110)

    def test_evaluation_of_segments_is_evenly_spaced_too(self):
        meta = ClipMeta(frame_counts=(100.0, 11.0), min_frames=1, max_frames=3, dynamic_sample=True)
        assert shown_of(UNEVEN, meta) == [0, 5.0, 9.9, 10, 55, 100]
        across = ClipMeta(frame_counts=(111.0,), min_frames=1, max_frames=4, dynamic_sample=True)
        assert shown_of(UNEVEN, across) == [0, 37, 64, 100]

    @pytest.mark.parametrize("rate", [1, 7.5, 10, 24, 25, 29.97, 30, 59.94, 240])
    @pytest.mark.parametrize("unit", [1e-6, 1e-3, 1 / 600])
    def test_a_constant_rate_is_one_whatever_the_unit_of_its_times_or_a_lost_frame(self, rate, unit):
        for count, lost in ((2, 0), (9, 4), (150, 0), (151, 1), (900, 300)):
            exact = [i / rate for i in range(count) if i != lost or lost == 0]
            times = [int(at / unit) * unit for at in exact]
            timeline = Timeline(times, times[-1] * len(times) / (len(times) - 1))
            for n in (1, 2, 3, 8, 32, 100):
                assert evenly_spaced(times, n) == uniform_indices(len(times), n)
            for first, stop in ((0, 1), (0, count // 2), (count // 3, count - 1), (count // 2, len(times))):
                if first < stop:
                    share = timeline.duration * (stop - first) / len(times)
                    assert duration_of_stretch(timeline, first, stop, times[stop - 1]) == share


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

    def test_odd_total_repeats_the_last_frame_and_its_segment(self):
        meta = ClipMeta(frame_counts=(2.0, 3.0), min_frames=8, max_frames=8, dynamic_sample=True)
        plan = plan_frames(5, 0.5, FrameOptions(), meta, Random(0))
        assert plan.indices == (0, 1, 2, 3, 4, 4)
        assert plan.segments == (0, 0, 1, 1, 1, 1)


class TestRescaling:
    def plan(self, counts, frame_count):
        meta = ClipMeta(frame_counts=counts, min_frames=1, max_frames=100, dynamic_sample=True)
        return plan_frames(frame_count, 1.0, FrameOptions(), meta)

    def test_segments_off_by_one_frame_are_rescaled(self):
        # 13 + 11 = 24 of 25 frames: the edge moves from 13 to 13 * 25 / 24 = 13.54 -> 14
        plan = self.plan((13.0, 11.0), 25)
        assert plan.rescaled
        assert plan.segments.count(0) == 14
        assert plan.indices[-1] == 24

    def test_more_than_two_frames_and_ten_percent_off_is_an_error(self):
        assert self.plan((3.0, 3.0), 4).rescaled
        assert self.plan((100.0, 120.0), 200).rescaled
        with pytest.raises(ValueError, match=r"\[100.0, 121.0\] sum to 221 .*200"):
            self.plan((100.0, 121.0), 200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_interval": 0.0}, "--base_interval must be above 0"),
        ({"video_fps": -1.0}, "--video_fps must be above 0"),
        ({"video_min_frames": 9}, "--video_min_frames 9 is above --video_max_frames 8"),
        ({"video_min_frames": 0}, "--video_min_frames must be at least 1"),
        ({"frame_counts": "4;8"}, "--frame_counts must be whole numbers .*got '4;8'"),
        ({"frame_counts": "4,8", "video_fps": 2.0}, "--video_fps has no effect with --frame_counts"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FrameOptions(**options)


@pytest.mark.parametrize("training", [True, False])
def test_each_record_shows_one_of_the_frame_counts_and_always_the_same(training):
    rule = FrameRule(FrameOptions(frame_counts="2,4,16"), seed=3, training=training)
    line = Timeline([n / 10 for n in range(100)], 10.0)
    record = lambda n, meta=None: Record(str(n), (), "", ("a.mp4",), (), (meta,), {}, "a")
    counts = [len(rule.plan(record(n), 0, epoch, line).indices) for n in range(60) for epoch in (0, 5)]
    assert counts[::2] == counts[1::2], "not of the epoch"
    assert {count: counts.count(count) > 20 for count in counts} == {2: True, 4: True, 16: True}
    assert len(rule.plan(record(0, ClipMeta(max_frames=6)), 0, 0, line).indices) == 6, "meta keeps its own"
    other = FrameRule(FrameOptions(frame_counts="2,4,16"), seed=4, training=training)
    assert [len(other.plan(record(n), 0, 0, line).indices) for n in range(60)] != counts[::2]
