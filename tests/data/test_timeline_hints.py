"""The fineness that the times of a timeline can have with the frames that are shown."""

from qwenvl.data.records.parse import Row, read_row
from qwenvl.data.timeline_hints import TimelineTimes, fineness, short_spans, span_problems, timeline_times
from qwenvl.types import FrameInfo

CLIP = FrameInfo("a.mp4", (0, 10, 20, 30), (0.0, 1.0, 2.0, 3.0), seconds_per_frame=1.0, duration=3.1)


def record(**row):
    return read_row(Row("d[0]", "d-0", {"prompt": "Which, when?", "video": "a.mp4"} | row), "/media")


def test_a_timeline_gives_its_shortest_span_and_the_distance_of_frames():
    spans = [{"step": 1, "start": 0, "end": 1.5}, {"step": 2, "start": 2, "end": 3}]
    assert timeline_times(record(timeline=spans), [CLIP]) == TimelineTimes(shortest=1.0, distance=1.0)
    assert timeline_times(record(solution="0-1.5 (1)"), [CLIP]) == TimelineTimes(shortest=1.5, distance=1.0)
    for other in ("(1) (2)", "from 0-2 somebody waves", "3 to 8"):
        assert timeline_times(record(solution=other), [CLIP]) is None, other
    assert timeline_times(record(solution="0-1.5 (1)"), [CLIP, CLIP]) is None, "of which clip are the times?"


def test_spans_below_two_frames_are_hinted_at_with_a_rate():
    long, short = TimelineTimes(2.0, 1.0), TimelineTimes(0.4, 0.5)
    assert short_spans([]) == short_spans([long]) == []
    [hint] = short_spans([long, short])
    assert "1 of 2 timelines" in hint.message and "0.40 s" in hint.message and "--video_fps 5" in hint.message
    assert "0.40 s; frames are up to 1.00 s apart" in fineness([long, short]) and "every 2.00 s" in fineness([long])
    assert fineness([]) == ""


def test_a_span_behind_the_end_of_the_clip_is_hinted_at():
    assert span_problems(record(solution="0-3.2 (1)"), [CLIP]) == [], "people round"
    [hint] = span_problems(record(solution="0-3.3 (1)"), [CLIP])
    assert "after the clip" in hint.message


def test_evidence_behind_the_end_of_the_clip_is_hinted_at():
    for given in ([[0, 3.2]], [["0", "0:03"]], [[2, 1]], "all of it"):
        assert span_problems(record(solution="1", evidence=given), [CLIP]) == []
    [hint] = span_problems(record(solution="1", evidence=[[0, 1], [2, 30]]), [CLIP])
    assert "`evidence` has a span that ends after the clip" in hint.message


def test_steps_by_number_and_by_name_without_a_list_are_hinted_at():
    spans = [{"step": 1, "start": 0, "end": 1.5}, {"step": "insert", "start": 2, "end": 3}]
    [hint] = span_problems(record(timeline=spans), [CLIP])
    assert hint.kind == "steps by number and by name"
    assert span_problems(record(prompt="Which?\n(1) take\n(2) insert", timeline=spans), [CLIP]) == []
    assert span_problems(record(timeline=spans[1:]), [CLIP]) == []
