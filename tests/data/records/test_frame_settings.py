"""Frame settings in each of their places: what a record takes from them, what they override, and what is refused."""

import pytest
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.options import PromptOptions
from qwenvl.data.prompt_length import Ruler
from qwenvl.data.records.cells import with_types
from qwenvl.data.records.frame_settings import keys_read
from qwenvl.data.records.parse import ReadOptions, Row, read_row, record_hints
from qwenvl.data.views import frames as frames_view
from qwenvl.types import ClipMeta, LibraryCount, LibrarySize


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def parsed(tmp_path):
    """Parses a row with options into a record."""
    return lambda row, **options: read_row(Row("d[0]", "d-0", row), tmp_path, ReadOptions(**options))


def in_part(medium="a.mp4", kind="video", **settings):
    part = {"type": kind, kind: medium, **settings}
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}], "solution": "x"}


def in_object(medium="a.mp4", kind="video", **settings):
    return {"prompt": f"<{kind}>?", f"{kind}s": [{kind: medium, **settings}], "solution": "x"}


def beside(medium="a.mp4", kind="video", **settings):
    return {"prompt": f"<{kind}>?", f"{kind}s": [medium], "solution": "x", **settings}


PLACES = [in_part, in_object, beside]
FRAMES = ["1.png", "2.png", "3.png"]


def hints(record):
    return [hint.message for hint in record_hints(record)]


class TestPlaces:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize(
        ("settings", "meta"),
        [
            ({"min_frames": 4, "max_frames": 9.0}, ClipMeta(count=LibraryCount(min_frames=4, max_frames=9))),
            ({"max_pixels": 784}, ClipMeta(size=LibrarySize(max_pixels=784))),
            ({"total_pixels": 1e6, "min_pixels": 5}, ClipMeta(size=LibrarySize(min_pixels=5, total_pixels=1e6))),
            (
                {"resized_height": 28, "resized_width": 56},
                ClipMeta(size=LibrarySize(resized_height=28, resized_width=56)),
            ),
            ({"video_start": 1, "video_end": 2.5}, ClipMeta(video_start=1.0, video_end=2.5)),
            (
                {"max_frames": "16", "max_pixels": " 784"},
                ClipMeta(count=LibraryCount(max_frames=16), size=LibrarySize(None, 784)),
            ),
            # words that the package does not have are ours everywhere
            ({"video_fps": 0.5}, ClipMeta(video_fps=0.5)),
            (
                {"frame_cnts": [3, 4], "dynamic_sample": True, "min_frames": 1, "max_frames": 2},
                ClipMeta((3.0, 4.0), 1, 2, True),
            ),
            ({"frame_cnts": [3, 4]}, ClipMeta((3.0, 4.0))),
            ({"video_fps": 2, "max_frames": 6}, None),  # below: the place decides
        ],
        ids=str,
    )
    def test_settings_are_read_in_each_place(self, parsed, place, settings, meta):
        record = parsed(place(**settings))
        if meta is None:
            meta = ClipMeta(count=LibraryCount(fps=2.0, max_frames=6))
            if place is beside:  # a row's video_fps is ours, as its meta's is, and so are the bounds beside it
                meta = ClipMeta(max_frames=6, video_fps=2.0)
        assert record.clip_meta == (meta,)
        assert not hints(record)

    def test_fps_beside_the_turns_may_be_a_note_and_elsewhere_is_none(self, parsed):
        assert parsed(in_part(nframes="16")).clip_meta == (ClipMeta(count=LibraryCount(16)),)
        assert parsed(beside(nframes="16")).clip_meta == (ClipMeta(count=LibraryCount(16, beside_turns=True)),)
        assert parsed(in_part(fps=2)).clip_meta == (ClipMeta(count=LibraryCount(fps=2.0)),)
        assert parsed(in_object(fps=2)).clip_meta == (ClipMeta(count=LibraryCount(fps=2.0)),)
        assert parsed(beside(fps=2)).clip_meta == (ClipMeta(count=LibraryCount(fps=2.0, beside_turns=True)),)
        assert not hints(parsed(beside(fps=2)))
        assert "fps=NAME" in hints(parsed(beside(fps=29.97)))[0]
        assert not hints(parsed(beside(fps=30, max_frames=8)))

    @pytest.mark.parametrize("place", PLACES)
    def test_images_take_bounds_on_their_pixels(self, parsed, place):
        record = parsed(place("a.png", "image", min_pixels="100", max_pixels=784))
        assert record.image_sizes == (LibrarySize(100, 784),)
        assert parsed(place("a.png", "image")).image_sizes == ()

    def test_settings_beside_the_turns_hold_for_all_media_or_are_a_list(self, parsed):
        row = {"prompt": "<video><image><video>", "videos": ["a.mp4", "b.mp4"], "images": ["c.png"], "solution": "x"}
        record = parsed(row | {"max_frames": [4, None], "max_pixels": 784})
        size = LibrarySize(max_pixels=784)
        assert record.clip_meta == (ClipMeta(count=LibraryCount(max_frames=4), size=size), ClipMeta(size=size))
        assert record.image_sizes == (size,)
        with pytest.raises(RecordError, match=r"d\[0\].nframes: .* 2 videos"):
            parsed(row | {"nframes": [4]})
        with pytest.raises(RecordError, match=r"d\[0\].frame_cnts: the row has 2 clips"):
            parsed(row | {"frame_cnts": [4, 5]})
        segmented = parsed(row | {"frame_cnts": [[4, 5], None]})
        assert segmented.clip_meta == (ClipMeta((4.0, 5.0)), None)

    def test_parts_without_their_medium_speak_of_the_one_beside_the_turns(self, parsed):
        content = [{"type": "video", "nframes": 4}, {"type": "text", "text": "and"}, {"type": "video", "nframes": 6}]
        row = {"messages": [{"role": "user", "content": content}], "videos": ["a.mp4", "b.mp4"], "solution": "x"}
        assert [meta.count.nframes for meta in parsed(row).clip_meta] == [4, 6]

    def test_turns_of_text_and_of_parts_count_their_tags_in_order(self, parsed):
        turns = [
            {"role": "user", "content": "<video> first"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [{"type": "video", "nframes": 6}, {"type": "text", "text": "?"}]},
        ]
        row = {"messages": turns, "videos": ["a.mp4", "b.mp4"], "solution": "x"}
        assert parsed(row).clip_meta == (None, ClipMeta(count=LibraryCount(6)))

    def test_cells_of_a_table_without_types_give_settings(self, parsed):
        cells = {"nframes": "4", "video": "a.mp4", "max_pixels": "", "frame_cnts": "[3, 4]", "dynamic_sample": "False"}
        row = with_types({"prompt": "<video>?", "solution": "x", **cells})
        assert parsed(row).clip_meta == (ClipMeta((3.0, 4.0), count=LibraryCount(4, beside_turns=True)),)

    def test_cells_of_a_table_hold_one_value_for_each_clip(self, parsed):
        cells = {"video": '["a.mp4", "b.mp4"]', "max_frames": "[4, 8]", "video_fps": "[1, 2]"}
        row = with_types({"prompt": "<video> <video>?", "solution": "x", **cells})
        assert row["max_frames"] == [4, 8] and row["video_fps"] == [1, 2]
        first, second = parsed(row).clip_meta
        assert (first.video_fps, second.video_fps) == (1.0, 2.0)
        assert with_types({"frame_times": "[[0, 1], [0, 2]]"}) == {"frame_times": [[0, 1], [0, 2]]}

    def test_a_row_of_text_alone_keeps_its_keys(self, parsed):
        record = parsed({"prompt": "Which fps?", "solution": "x", "fps": "unknown", "start": 3})
        assert record.clip_meta == () and not hints(record)

    @pytest.mark.parametrize("place", [in_part, in_object])
    def test_a_part_may_call_its_seconds_start_and_end(self, parsed, place):
        for start, end in (("start", "end"), ("start_time", "end_time")):
            assert parsed(place(**{start: 1, end: 2})).clip_meta == (ClipMeta(video_start=1.0, video_end=2.0),)
        with pytest.raises(RecordError, match="start says again what video_start says"):
            parsed(place(video_start=1, start=1))

    def test_seconds_by_other_names_beside_the_turns_are_named_as_they_may_be_the_answer(self, parsed):
        record = parsed(beside(start=10.0, end=20.0))
        assert record.clip_meta == (None,)
        ((message),) = hints(record)
        assert message.startswith("start and end beside the turns") and "start=video_start,end=video_end" in message
        renamed = parsed(beside(start=10.0, end=20.0), columns={"start": "video_start", "end": "video_end"})
        assert renamed.clip_meta == (ClipMeta(video_start=10.0, video_end=20.0),)

    def test_objects_of_media_as_verl_writes_them_keep_their_settings(self, parsed):
        row = in_object(fps=2, max_frames=32, type="video")
        assert parsed(row).videos[0].endswith("/a.mp4")
        assert parsed(row).clip_meta == (ClipMeta(count=LibraryCount(fps=2.0, max_frames=32)),)
        single = {"prompt": "<video>?", "video": {"video": "a.mp4", "nframes": 4}, "solution": "x"}
        assert parsed(single).clip_meta == (ClipMeta(count=LibraryCount(4)),)

    def test_settings_beside_a_path_in_an_object_are_read(self, parsed):
        row = {"prompt": "<video>?", "videos": [{"bytes": None, "path": "a.mp4", "nframes": 4}], "solution": "x"}
        assert parsed(row).clip_meta == (ClipMeta(count=LibraryCount(4)),)


class TestSeveralPlaces:
    def test_settings_of_meta_alone_follow_the_rules_of_qwenvl(self, parsed):
        meta = {"min_frames": 2, "max_frames": 4, "video_fps": 1, "min_pixels": 9, "max_pixels": 99, "frames_fps": 3}
        assert parsed(beside(meta=meta)).clip_meta == (ClipMeta(None, 2, 4, False, 1.0, None, None, 9, 99, 3.0),)
        assert parsed(beside(meta={"note": "x"})).clip_meta == (ClipMeta(),)
        assert parsed(beside(meta={})).clip_meta == (None,)

    def test_a_part_comes_before_meta_and_has_its_bounds(self, parsed):
        record = parsed(in_part(fps=2, max_frames=6, video_start=1.5) | {"meta": {"max_frames": 9, "min_frames": 2}})
        count = LibraryCount(fps=2.0, min_frames=2, max_frames=6)
        assert record.clip_meta == (ClipMeta(video_start=1.5, count=count),)
        assert hints(record) == ["max_frames stands in meta and in the part or object of its clip, whose value counts"]

    def test_meta_comes_before_the_row(self, parsed):
        record = parsed(beside(fps=2, max_frames=6, nframes=None, meta={"min_frames": 2}))
        assert record.clip_meta == (ClipMeta(min_frames=2, max_frames=6),)
        assert ["fps beside the turns changes no frames" in hint for hint in hints(record)] == [True]

    def test_an_object_comes_before_the_row(self, parsed):
        record = parsed(in_object(nframes=4) | {"nframes": 6, "max_pixels": 784})
        assert record.clip_meta == (ClipMeta(count=LibraryCount(4), size=LibrarySize(max_pixels=784)),)
        assert len(hints(record)) == 2  # another value, and that it changes nothing

    def test_sizes_of_the_row_give_way_to_meta(self, parsed):
        record = parsed(beside(total_pixels=1000, min_pixels=4, meta={"max_pixels": 784}))
        assert record.clip_meta == (ClipMeta(min_pixels=4, max_pixels=784),)
        assert hints(record) == ["total_pixels beside the turns changes nothing, as meta bounds the pixels"]

    def test_frames_drawn_from_segments_take_bounds_and_no_rate(self, parsed):
        meta = {"frame_cnts": [3, 4], "dynamic_sample": True}
        record = parsed(beside(max_frames=2, fps=30, meta=meta))
        assert record.clip_meta == (ClipMeta((3.0, 4.0), None, 2, True),)
        assert "fps beside the turns changes no frames where dynamic_sample" in hints(record)[0]
        with pytest.raises(RecordError, match=r"nframes .* dynamic_sample"):
            parsed(in_part(nframes=4) | {"meta": meta})

    def test_settings_that_have_no_effect_are_named(self, parsed):
        assert "max_frames beside nframes" in hints(parsed(in_part(nframes=4, max_frames=8)))[0]
        sizes = {"resized_height": 28, "resized_width": 28}
        assert "max_pixels beside resized_height" in hints(parsed(in_part(max_pixels=9, **sizes)))[0]
        assert "max_pixels beside resized_height" in hints(parsed(in_part("a.png", "image", max_pixels=9, **sizes)))[0]
        assert "sample_fps of a clip that is a file" in hints(parsed(in_part(sample_fps=2)))[0]
        assert "frames_fps of a clip that is a file" in hints(parsed(beside(meta={"frames_fps": 2})))[0]


    def test_a_size_that_no_model_takes_is_named_with_its_row(self, parsed):
        for medium, kind in (("a.mp4", "video"), ("a.png", "image")):
            with pytest.raises(RecordError, match=r"d\[0\].*height is 3000 x 10; expected sides of at most 200"):
                parsed(in_part(medium, kind, resized_height=10, resized_width=3000))


class TestListsOfFrames:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize(
        ("settings", "rate"),
        [
            ({"sample_fps": "1"}, 1.0),
            ({"raw_fps": 4}, 4.0),
            ({"sample_fps": 1, "raw_fps": 30}, 1.0),
            ({"fps": 0.5}, 0.5),  # as in the package until 0.0.11
        ],
    )
    def test_a_list_of_frames_has_the_rate_of_sample_fps_raw_fps_or_fps(self, parsed, place, settings, rate):
        record = parsed(place(FRAMES, **settings))
        assert record.clip_meta == (ClipMeta(frames_fps=rate, count=LibraryCount(listed=True)),)
        assert bool(hints(record)) == (len(settings) > 1)

    def test_fps_beside_the_rate_of_a_list_is_the_rate_to_sample(self, parsed):
        count = LibraryCount(fps=1.0, listed=True)
        assert parsed(in_part(FRAMES, sample_fps=2, fps=1)).clip_meta == (ClipMeta(frames_fps=2.0, count=count),)
        timed = parsed(in_part(FRAMES, fps=1) | {"meta": {"frames_fps": 2}})
        assert timed.clip_meta == (ClipMeta(frames_fps=2.0, count=count),)

    def test_a_list_without_settings_is_sampled_by_the_flags(self, parsed):
        assert parsed(in_part(FRAMES)).clip_meta == (None,)
        assert parsed(in_part(FRAMES, max_pixels=784)).clip_meta == (ClipMeta(size=LibrarySize(max_pixels=784)),)

    def test_a_folder_of_frames_is_read_as_a_list(self, parsed, tmp_path):
        (tmp_path / "frames").mkdir()
        assert parsed(in_part("frames", fps=1)).clip_meta == (
            ClipMeta(frames_fps=1.0, count=LibraryCount(listed=True)),
        )

    @pytest.mark.parametrize(
        "place",
        [*PLACES, lambda medium, **own: beside(medium, meta=own)],
        ids=["in_part", "in_object", "beside", "in_meta"],
    )
    def test_frame_times_are_the_seconds_of_each_frame(self, parsed, place):
        record = parsed(place(FRAMES, frame_times=[0, 3.5, 20]))
        assert record.clip_meta == (ClipMeta(frame_times=(0.0, 3.5, 20.0)),)
        assert "Qwen2.5-VL only their mean distance" in hints(record)[0]
        assert not hints(parsed(place(FRAMES, frame_times=[10, 12, 14.1]))), "even but for a tenth"

    def test_frame_times_may_be_a_list_within_a_list(self, parsed):
        assert parsed(beside(FRAMES, frame_times=[[0, 2, 4]])).clip_meta == (ClipMeta(frame_times=(0.0, 2.0, 4.0)),)

    @pytest.mark.parametrize(
        ("times", "message"),
        [
            (3, r"meta.frame_times: expected a list with the seconds of each frame, got number 3"),
            ([], r"meta.frame_times: expected a list with the seconds of each frame"),
            ([0, "1", 2], r"meta.frame_times\[1\]: expected a number of at least 0, got string"),
            ([0, 1, None], r"meta.frame_times\[2\]: expected a number of at least 0"),
            ([-1, 1, 2], r"meta.frame_times\[0\]: expected a number of at least 0, got number -1"),
            ([0, 2, 2], r"meta.frame_times\[2\]: expected seconds that rise, got 2 after 2"),
            ([0, 3, 2], r"meta.frame_times\[2\]: expected seconds that rise, got 2 after 3"),
            ([0, float("nan"), 2], r"meta.frame_times\[1\]: expected a number of at least 0"),
            ("0, 1, 2", r"meta.frame_times: expected a list of numbers, got string"),
        ],
    )
    def test_frame_times_that_are_no_rising_seconds_are_refused(self, parsed, times, message):
        with pytest.raises(RecordError, match=rf"d\[0\].{message}"):
            parsed(beside(FRAMES, meta={"frame_times": times}))

    def test_the_seconds_and_a_rate_contradict_each_other(self, parsed):
        both = {"frame_times": [0, 1, 2], "frames_fps": 2}
        with pytest.raises(RecordError, match="frames_fps and frame_times both say"):
            parsed(in_part(FRAMES, **both) | {"raw_fps": 24})
        with pytest.raises(RecordError, match="frames_fps and frame_times both say"):
            parsed(beside(FRAMES, meta=both))
        with pytest.raises(RecordError, match="sample_fps and frame_times both say"):
            parsed(in_part(FRAMES, sample_fps=2) | {"meta": {"frame_times": [0, 1, 2]}})
        record = parsed(beside(FRAMES, sample_fps=2, meta={"frame_times": [0, 1, 2]}))
        assert record.clip_meta == (ClipMeta(frame_times=(0.0, 1.0, 2.0)),)
        assert "sample_fps beside the turns changes nothing" in hints(record)[0]

    def test_a_list_of_times_by_another_name_is_named(self, parsed):
        record = parsed(beside(FRAMES, meta={"times": [0, 3.5, 20]}))
        assert record.clip_meta == (ClipMeta(),)
        assert "times: frame_times has the seconds of each frame" in hints(record)[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nframes": 1}, "nframes: expected a whole number of frames of at least 2, got number 1"),
        ({"nframes": 2.5}, "nframes: expected a whole number"),
        ({"fps": 0}, "fps: expected a number above 0, got number 0"),
        ({"fps": "30000/1001"}, "fps: expected a number above 0, got string"),
        ({"fps": True}, "fps: expected a number above 0"),
        ({"fps": {"a": 1}}, "fps: expected a number above 0, got object"),
        ({"fps": float("inf")}, "fps: expected a number above 0"),
        ({"max_pixels": 0.5}, "max_pixels: expected a whole number of pixels"),
        ({"video_start": -1}, "video_start: expected a number of at least 0, got number -1"),
        ({"video_start": "late"}, "video_start: expected a number of at least 0, got string"),
        ({"dynamic_sample": "maybe"}, "dynamic_sample: expected true or false"),
        ({"frame_cnts": 3}, "frame_cnts: expected a list of numbers above 0"),
        ({"max_frames": 1}, "max_frames: expected a whole number of frames of at least 2"),
        ({"min_frames": 8, "max_frames": 4}, "expected min_frames <= max_frames, got 8 and 4"),
        ({"min_pixels": 8, "max_pixels": 4}, "expected min_pixels <= max_pixels, got 8 and 4"),
        ({"video_start": 8, "video_end": 4}, "expected video_start <= video_end, got 8.0 and 4.0"),
        ({"nframes": 8, "fps": 2}, "nframes and fps both say how many frames are taken"),
        ({"resized_height": 28}, "resized_height without resized_width"),
        ({"frame_cnts": [3], "video_start": 1}, "frame_cnts speak of the whole clip"),
    ],
    ids=str,
)
def test_bad_settings_name_the_row_and_the_key(parsed, place, settings, message):
    with pytest.raises(RecordError) as caught:
        parsed(place(**settings))
    assert str(caught.value).startswith("d[0]") and message in str(caught.value)


@pytest.mark.parametrize("place", [in_part, in_object])
def test_near_misses_in_a_part_are_refused_and_unknown_keys_hinted_at(parsed, place):
    for key, meant in (
        ("nframe", "nframes"),
        ("maxFrames", "max_frames"),
        ("num_frames", "nframes"),
        ("video_max_pixels", "max_pixels"),
        ("timestamps", "frame_times"),
    ):
        with pytest.raises(RecordError, match=rf"the key '{key}' is not known; did you mean '{meant}'\?"):
            parsed(place(**{key: 4}))
    assert "a clip's part has quality, which change nothing" in hints(parsed(place(quality=3)))[0]
    assert "an image's part has fps, which change nothing" in hints(parsed(place("a.png", "image", fps=3)))[0]


def test_usual_names_beside_the_turns_are_hinted_at(parsed):
    assert "num_frames beside the turns changes no frames; nframes is the key" in hints(parsed(beside(num_frames=4)))[0]
    assert not hints(parsed(beside(num_frames=40, nframes=4))), "a note about the file beside the setting"
    assert "meta.frame_times is the key here" in hints(parsed(beside(FRAMES, timestamps=[0, 1, 2])))[0]
    assert not hints(parsed(beside(timestamps=[[0, 1]]))), "of a file they are the answer"
    with pytest.raises(RecordError, match="the key 'start_sec' is not known; did you mean 'video_start'"):
        parsed(in_part(start_sec=1))


def test_rows_of_a_preset_have_settings_too(parsed):
    row = {"question": "What?", "answer": "x", "video": {"video": "a.mp4", "fps": 1}, "max_pixels": 784}
    record = parsed(row, format="question-answer")
    assert record.clip_meta == (ClipMeta(count=LibraryCount(fps=1.0), size=LibrarySize(max_pixels=784)),)


def test_parts_of_a_table_have_every_key(parsed):
    part = {"type": "video", "video": "a.mp4", "text": None, "image": None, "nframes": 4, "fps": None}
    text = {"type": "text", "video": None, "text": "?", "image": None, "nframes": None, "fps": None}
    record = parsed({"messages": [{"role": "user", "content": [part, text]}], "solution": "x"})
    assert record.clip_meta == (ClipMeta(count=LibraryCount(4)),) and not hints(record)


def test_near_misses_beside_the_turns_are_hinted_at_where_their_values_are_numbers(parsed):
    for key, meant in (("max_frame", "max_frames"), ("FPS", "fps"), ("maxPixels", "max_pixels")):
        assert f"{key} beside the turns changes no frames; {meant} is the key" in hints(parsed(beside(**{key: 4})))[0]
    assert not hints(parsed(beside(max_frame="the last one", frame=3, frames=["1.png"])))
    assert not hints(parsed({"prompt": "?", "solution": "x", "max_frame": 4})), "there is no clip"


@pytest.mark.parametrize("format", [None, "question-answer"])
def test_settings_that_are_read_are_no_unread_keys(parsed, format):
    row = beside(nframes=4, max_pixels=784, dynamic_sample=False, note="x")
    if format is not None:
        row = {"question": "?", "answer": "x", "video": "a.mp4", "nframes": 4, "max_pixels": 784, "note": "x"}
    assert parsed(row, format=format).unread == ("note",)
    assert parsed({"prompt": "Which fps?", "solution": "x", "fps": 4}).unread == ("fps",)
    assert parsed(beside("a.png", "image", max_pixels=784, fps=4)).unread == ("fps",)


def test_the_keys_read_of_a_row_depend_on_its_clips_and_images():
    assert {"fps", "max_pixels", "frame_times"} <= keys_read(clips=True, images=False)
    assert keys_read(clips=False, images=True) == {"min_pixels", "max_pixels", "resized_height", "resized_width"}
    assert not keys_read(clips=False, images=False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:01:02.5", 62.5), ("1:02", 62.0), ("1:00:00", 3600.0), ("7.25", 7.25)]
)
@pytest.mark.parametrize("place", PLACES)
def test_seconds_may_be_written_as_clock_times(parsed, place, text, seconds):
    assert parsed(place(video_start=text)).clip_meta == (ClipMeta(video_start=seconds),)
    for no_time in ("1:2:3:4", "1:75", "1:60:00"):
        with pytest.raises(RecordError, match="video_end: expected a number of at least 0, got string"):
            parsed(place(video_end=no_time))


def test_unread_keys_of_meta_are_hinted_at_with_the_key_to_write(parsed):
    (message,) = hints(parsed(beside(meta={"fps": 2, "nframes": 4, "mine": 1})))
    assert message.startswith("meta has fps, mine, nframes, which change no frames")
    assert "; fps: video_fps takes" in message and "; nframes: min_frames and max_frames" in message


# ---- with clips


def shown(dataset, index=0):
    return [(len(clip.info.indices), clip.info.times[0], clip.info.times[-1]) for clip in dataset[index].videos]


def test_frames_of_real_clips_follow_the_settings_of_their_rows(make_clip, write_rows):
    make_clip("a.mp4", 60, size=(64, 48))  # 6 s at 10 a second
    make_clip("b.mkv", 90, fps=30, size=(96, 96))  # times in milliseconds
    rows = [
        in_part("a.mp4", nframes=16),
        in_part("a.mp4", fps=2),
        in_object("b.mkv", fps=4, max_frames=32),
        in_part("a.mp4", start=1.0, end=2.0),
        beside("a.mp4", fps=0.5, min_frames=2),
        beside("a.mp4", fps=10),
        beside("a.mp4", frame_cnts=[20, 40], dynamic_sample=True, min_frames=2, max_frames=2),
        in_part("b.mkv", nframes=4, resized_height=56, resized_width=84),
    ]
    dataset = load_dataset(str(write_rows(rows)), training=False, ruler=Ruler.without_model(PromptOptions()))
    assert shown(dataset, 0) == [(16, 0.0, 5.9)]
    assert shown(dataset, 1) == [(12, 0.0, 5.9)]
    assert shown(dataset, 2) == [(12, 0.0, 2.967)]
    assert shown(dataset, 3) == [(4, 1.0, 2.0)]
    assert shown(dataset, 4) == [(2, 0.0, 5.9)]
    assert shown(dataset, 5) == [(4, 0.0, 5.9)], "the rate of the file is a note about it: four frames, by the flags"
    assert dataset[6].videos[0].info.indices == (0, 19, 20, 59)
    assert tuple(dataset[7].videos[0].frames.shape) == (4, 3, 56, 84)


@pytest.fixture
def frames(tmp_path):
    """The names of four pictures that make up a clip."""
    for number in range(4):
        Image.new("RGB", (56, 56), (number * 40, 0, 0)).save(tmp_path / f"{number}.png")
    return [f"{number}.png" for number in range(4)]


def test_the_frames_of_a_list_are_shown_at_their_rate_or_seconds(frames, write_rows):
    rows = [
        in_part(frames, sample_fps="1"),
        beside(frames[:3], meta={"frame_times": [1.5, 3.5, 20]}),
        beside(frames, meta={"frame_times": [0, 3.5, 20, 41], "video_start": 3, "video_end": 30}),
    ]
    dataset = load_dataset(str(write_rows(rows)), training=False)
    assert dataset[0].videos[0].info.times == (0.0, 1.0, 2.0, 3.0)
    info = dataset[1].videos[0].info
    assert info.times == (1.5, 3.5, 20.0, 20.0)
    # 18.5 s between three frames, the last of which lasts as long as the mean one
    assert (info.seconds_per_frame, info.duration) == (9.25, 27.75)
    assert dataset[2].videos[0].info.times == (3.5, 20.0)
    assert dataset[2].videos[0].info.indices == (1, 2)


def test_seconds_of_another_number_of_frames_or_of_a_file_are_refused(frames, make_clip, write_rows, tmp_path):
    make_clip("a.mp4", 20)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in frames:
        (tmp_path / name).rename(folder / name)
    rows = [beside(medium, meta={"frame_times": [0, 1, 2]}) for medium in ("folder", "a.mp4")]
    dataset = load_dataset(str(write_rows(rows)), on_bad_sample="skip")
    assert "frame_times has 3 times for 4 frames" in dataset[0].error
    assert "frame_times are for a folder or list of frames" in dataset[1].error
    with pytest.raises(RecordError, match=r"frame_times has 2 times for 3 frames"):
        load_dataset([beside(FRAMES, meta={"frame_times": [0, 1]})])


def test_a_view_with_a_number_of_frames_comes_before_the_row(make_clip, write_rows):
    make_clip("a.mp4", 60)
    dataset = load_dataset(str(write_rows([in_part("a.mp4", nframes=4, video_start=1)])), training=False)
    seen = frames_view(dataset.record(0), 12)
    info = dataset.load(seen).videos[0].info
    assert (len(info.indices), info.times[0]) == (12, 1.0)
