import json
import re
from pathlib import Path

import pytest

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError, FramePlanError
from qwenvl.data.frames.plan import plan_spans
from qwenvl.data.frames.spans import frames_of_spans, pairs_of_each
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.demo.tiny import make_processor
from qwenvl.types import ClipMeta

HALVES = [i / 2 for i in range(120)]  # a minute of two frames a second
WIDE = FrameOptions(base_interval=1.0, video_min_frames=2, video_max_frames=100)


class TestStretches:
    def test_frames_at_both_ends_belong_to_a_span(self):
        assert frames_of_spans([(0.5, 1.0), (10.2, 11.4)], HALVES, 60.0) == [(1, 3), (21, 23)]

    def test_a_frame_at_a_border_belongs_to_the_earlier_span(self):
        assert frames_of_spans([(1, 2), (2, 3)], HALVES, 60.0) == [(2, 5), (5, 7)]

    def test_the_end_may_be_rounded_up(self):
        assert frames_of_spans([(59, 61)], HALVES, 60.0) == [(118, 120)]

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
            frames_of_spans(spans, HALVES, 60.0)


class TestPlan:
    def test_pairs_go_where_frames_are_sparse(self):
        # 30, 10 and 3 frames: one pair each; then 30 / 1, 30 / 2, and 10 / 1 = 30 / 3: the first of equal ones
        assert pairs_of_each([(0, 30), (40, 50), (60, 63)], 5) == [3, 1, 1]
        assert pairs_of_each([(0, 30), (40, 50), (60, 63)], 7) == [4, 2, 1]

    def test_no_more_pairs_than_frames(self):
        assert pairs_of_each([(0, 3), (10, 11)], 50) == [2, 1]

    def test_frames_of_each_span_by_hand(self):
        # 40 + 10 frames of half a second: 25 s at 5 s apart are 5 -> 6 frames, in pairs 2 and 1
        options = FrameOptions(base_interval=5.0, video_min_frames=2, video_max_frames=100)
        plan = plan_spans([(10, 50), (90, 100)], 25.0, options, ClipMeta())
        assert plan.indices == (10, 23, 36, 49, 90, 99)
        assert plan.segments == (0, 0, 0, 0, 1, 1)

    def test_a_span_of_one_frame_is_a_pair_of_it(self):
        assert plan_spans([(7, 8), (20, 40)], 10.5, WIDE, ClipMeta(max_frames=6)).indices == (7, 7, 20, 26, 33, 39)

    def test_the_bound_is_never_below_a_pair_of_each(self):
        stretches = [(0, 10), (20, 30), (40, 50)]
        assert len(plan_spans(stretches, 15.0, WIDE, ClipMeta(), most=2).indices) == 6
        with pytest.raises(FramePlanError, match="3 spans need 6 frames, a pair for each, but at most 4 are taken"):
            plan_spans(stretches, 15.0, WIDE, ClipMeta(max_frames=4))

    def test_fewer_frames_are_asked_for_to_make_a_prompt_fit(self):
        counts = [len(plan_spans([(0, 30), (60, 70)], 20.0, WIDE, ClipMeta(), most=n).indices) for n in range(1, 30)]
        assert counts == sorted(counts) and counts[0] == 4 and counts[-1] == 20

    def test_drawn_anew_each_epoch_within_each_span(self):
        meta = ClipMeta(min_frames=2, max_frames=3, dynamic_sample=True)
        plans = [plan_spans([(0, 30), (60, 70)], 20.0, WIDE, meta, stable_random(n)) for n in range(20)]
        assert len({plan.indices for plan in plans}) > 10
        for plan in plans:
            for index, segment in zip(plan.indices, plan.segments, strict=True):
                assert (0, 60)[segment] <= index < (30, 70)[segment]


class TestClips:
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
        page = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
        section = page[page.index("### Seconds that matter") :]
        row = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])
        make_clip(row["video"], 450)  # 45 s
        info = load_dataset(str(write_rows([row])))[0].videos[0].info
        assert info.times == pytest.approx((12.5, 15, 17.5, 20, 31, 34, 37, 40))
        assert info.segments == (0, 0, 0, 0, 1, 1, 1, 1)
