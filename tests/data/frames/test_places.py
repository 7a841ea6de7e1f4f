import random
from itertools import pairwise

import pytest

from qwenvl.data.frames.places import Looks, even_in_change, levelled, places, uniform_indices
from qwenvl.data.frames.plan import FrameRule, Timeline, plan_frames
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.types import ClipMeta, Record

CUT = [0, 0, 0, 0, 0, 9, 0, 0, 0, 0]


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

    def test_one_place_is_where_half_has_changed(self):
        assert even_in_change([0, 0, 0, 0, 0, 0, 5, 5, 0, 0], 1) == [6]

    def test_equal_changes_give_the_uniform_places(self):
        for count in range(3, 40):
            for n in range(2, count):
                assert even_in_change([7] * count, n) == even_in_change([0] * count, n) == uniform_indices(count, n)

    def test_no_place_twice_both_ends_and_no_long_gap_whatever_changes(self):
        draw = random.Random(0)
        for _ in range(300):
            count = draw.randrange(3, 200)
            n = draw.randrange(2, count)
            change = [draw.choice((0, 0, 0, 1, 50, 10**6)) * draw.randrange(3) for _ in range(count)]
            chosen = even_in_change(change, n)
            assert (len(chosen), chosen[0], chosen[-1]) == (n, 0, count - 1)
            assert all(a < b for a, b in pairwise(chosen))
            assert max(b - a for a, b in pairwise(chosen)) <= 2 * (count - 1) / (n - 1) + 1


class TestPlaces:
    looks = Looks(range(0, 100, 10), CUT)

    def test_frames_are_those_that_were_looked_at(self):
        assert places(100, 4, None, self.looks) == [0, 40, 50, 90]

    def test_where_there_are_not_more_looks_than_frames_they_choose_nothing(self):
        assert places(100, 10, None, self.looks) == uniform_indices(100, 10)
        assert places(100, 12, None, self.looks) == uniform_indices(100, 12)

    def test_random_frames_come_from_stretches_of_equal_change(self):
        # two parts of 81: five looks without change, 45, then the cut with 81: half of all is in the cut
        for seed in range(50):
            first, second = places(100, 2, stable_random(seed), self.looks)
            assert 0 <= first < 50 <= second < 100
        drawn = {places(100, 2, stable_random(seed), self.looks)[0] for seed in range(50)}
        assert len(drawn) > 15  # any frame, not only those that were looked at

    def test_a_window_forgets_what_changed_before_it(self):
        assert self.looks.within(50, 80) == Looks([0, 10, 20], [0, 0, 0])
        assert self.looks.within(45, 46) == Looks([], [])


class TestRule:
    record = Record("a", (), "", ("a.mp4",), (), (None,), {}, "a")
    options = FrameOptions(base_interval=1.0, video_max_frames=6, frame_sampler="change")

    def timeline(self, frames: int, fps: int) -> Timeline:
        return Timeline([i / fps for i in range(frames)], frames / fps)

    def test_a_clip_is_looked_at_four_times_a_second(self):
        looked = FrameRule(self.options).frames_to_look_at(self.record, 0, self.timeline(900, 30))  # 30 s
        assert looked == uniform_indices(900, 120)

    def test_a_short_one_at_every_frame(self):
        assert FrameRule(self.options).frames_to_look_at(self.record, 0, self.timeline(60, 30)) == list(range(60))

    def test_only_where_frames_may_be_taken(self):
        record = Record("a", (), "", ("a.mp4",), (), (ClipMeta(spans=((1.0, 2.0), (5.0, 6.0))),), {}, "a")
        looked = FrameRule(self.options).frames_to_look_at(record, 0, self.timeline(80, 10))
        assert looked == [*range(10, 21), *range(50, 61)]

    def test_uniform_looks_at_nothing(self):
        assert FrameRule(FrameOptions()).frames_to_look_at(self.record, 0, self.timeline(900, 30)) == []

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
