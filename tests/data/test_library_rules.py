"""Numbers and sizes of frames against those of the package ``qwen_vl_utils``, whose reader is replaced by numbers."""

import pytest
import torch
from qwen_vl_utils import vision_process as library

from qwenvl.data.errors import BadMediaError
from qwenvl.data.frames import FrameRule, Timeline
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import Ruler
from qwenvl.demo.tiny import make_processor
from qwenvl.types import ClipMeta, LibraryCount, LibrarySize, Record

COUNTS = [
    {"nframes": 2},
    {"nframes": 5},  # round(2.5) pairs are 2
    {"nframes": 7},  # round(3.5) pairs are 4
    {"nframes": 16},
    {"fps": 0.1},
    {"fps": 1},
    {"fps": 2.0},
    {"fps": 24},
    {"fps": 60},
    {"max_frames": 4},
    {"max_frames": 15},
    {"min_frames": 9},
    {"min_frames": 3, "max_frames": 3},
    {"fps": 2, "max_frames": 32},
    {"fps": 0.5, "min_frames": 16},
    {"fps": 1, "min_frames": 10, "max_frames": 20},
]
CLIPS = [(2, 10.0), (3, 10.0), (7, 25.0), (25, 10.0), (60, 10.0), (151, 30.0), (457, 10.0), (1800, 29.97), (9001, 25.0)]
SPANS = [{}, {"video_start": 2.0}, {"video_end": 4.0}, {"video_start": 1.0, "video_end": 5.0}, {"video_end": 900.0}]


def planned(settings, frame_count, rate, span, options=None, **more):
    """Our plan for a clip of constant rate with these settings."""
    meta = ClipMeta(count=LibraryCount(**settings, **more), **span)
    record = Record("a", (), "", ("a.mp4",), (), (meta,), {}, "a.json[0]")
    timeline = Timeline([i / rate for i in range(frame_count)], frame_count / rate)
    return FrameRule(options or FrameOptions(), training=False).plan(record, 0, 0, timeline)


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("settings", COUNTS, ids=str)
def test_the_number_of_frames_is_that_of_the_package(settings, span):
    compared = 0
    for frame_count, rate in CLIPS:
        try:
            first, last, within = library.calculate_video_frame_range(span, frame_count, rate)
            wanted = library.smart_nframes(settings, total_frames=within, video_fps=rate)
        except ValueError:  # a span without frames, or more frames than there are
            if "nframes" in settings or span:
                with pytest.raises(BadMediaError):
                    planned(settings, frame_count, rate, span)
            continue
        indices = planned(settings, frame_count, rate, span).indices
        assert len(indices) == wanted, (frame_count, rate)
        there = torch.linspace(first, last, wanted).round().long().tolist()
        # It rounds halves to even numbers in float32, and we round them up.
        assert max(abs(ours - theirs) for ours, theirs in zip(indices, there, strict=True)) <= 1
        compared += 1
    assert compared >= 3


def test_more_frames_than_there_are_name_the_key_and_both_numbers():
    with pytest.raises(BadMediaError, match="nframes 16, but there are 12 frames") as caught:
        planned({"nframes": 16}, 12, 10.0, {})
    assert caught.value.kind == "meta and clip disagree"
    short = planned({"nframes": 16}, 16, 10.0, {}, beside_turns=True)
    assert len(short.indices) == 16, "so few are wanted"


def test_a_single_frame_is_shown_twice_where_the_package_ends_with_an_error():
    assert planned({"fps": 2}, 1, 10.0, {}).indices == (0, 0)


def test_a_clip_that_is_a_microsecond_short_loses_no_pair():
    # 60 frames in 5.999999 s at 2 a second are 11.999998, which the package's rule rounds down to 10
    meta = ClipMeta(count=LibraryCount(fps=2.0))
    record = Record("a", (), "", ("a.mp4",), (), (meta,), {}, "a.json[0]")
    timeline = Timeline([i / 10 for i in range(60)], 5.999999)
    assert len(FrameRule(FrameOptions()).plan(record, 0, 0, timeline).indices) == 12


@pytest.mark.parametrize(
    ("settings", "options", "frames"),
    [
        # 60 s: the flags' 8 frames are a default, at which a row with settings is not held
        ({"fps": 1}, {}, 60),
        ({"fps": 1}, {"video_max_frames": 16}, 16),
        ({"fps": 0.05}, {"video_min_frames": 6}, 6),
        ({"max_frames": 100}, {}, 100),  # 2 a second are 120
        ({"max_frames": 100}, {"video_fps": 0.5}, 30),
        ({"max_frames": 100}, {"base_interval": 3.0}, 20),
        # one bound of the row against the other of a flag: the row counts
        ({"min_frames": 20, "fps": 0.1}, {"video_max_frames": 10}, 20),
        ({"max_frames": 2, "fps": 1}, {"video_min_frames": 6}, 2),
    ],
    ids=str,
)
def test_flags_stand_for_the_frame_settings_that_a_row_leaves_out(settings, options, frames):
    assert len(planned(settings, 600, 10.0, {}, FrameOptions(**options)).indices) == frames


@pytest.mark.parametrize(
    ("settings", "options", "frames"),
    [
        ({}, {}, 12),  # all of 11, and the last twice
        ({"max_frames": 6}, {}, 6),
        ({"nframes": 4}, {}, 4),
        ({"fps": 1}, {}, 4),  # of 5.5 s: 5.5 frames, down to a pair
        ({}, {"video_max_frames": 6}, 6),
    ],
    ids=str,
)
def test_all_frames_of_a_list_are_shown_where_nothing_bounds_them(settings, options, frames):
    assert len(planned(settings, 11, 2.0, {}, FrameOptions(**options), listed=True).indices) == frames


@pytest.mark.parametrize(
    ("settings", "rate", "frames"),
    [
        ({"fps": 30}, 30.0, 8),  # the rate of the file in a column: the flags decide, 8 of 60 s
        ({"fps": 29.97}, 30.0, 8),
        ({"fps": 60}, 30.0, 8),  # of the film that the file was made from
        ({"fps": 30, "max_frames": 12}, 30.0, 12),
        ({"fps": 10}, 30.0, 600),
        ({"fps": 2}, 2.0, 120),  # no camera has two frames a second
        ({"nframes": 1801}, 30.0, 8),  # the number of its frames, off by one
        ({"nframes": 1800, "min_frames": 2}, 30.0, 120),
        ({"nframes": 900}, 30.0, 900),
        ({"nframes": 120}, 2.0, 120),
    ],
)
def test_rate_and_number_of_the_file_beside_the_turns_are_notes_about_it(settings, rate, frames):
    options = FrameOptions(base_interval=2.0)
    plan = planned(settings, round(60 * rate), rate, {}, options, beside_turns=True)
    assert len(plan.indices) == frames


def test_frame_counts_of_the_run_hold_for_rows_with_a_note_alone():
    options = FrameOptions(frame_counts="6")
    assert len(planned({"fps": 30}, 300, 30.0, {}, options, beside_turns=True).indices) == 6
    assert len(planned({"fps": 1}, 300, 30.0, {}, options, beside_turns=True).indices) == 10


def test_fitting_goes_down_to_the_lower_bound_of_the_row():
    record = lambda **settings: Record(
        "a", (), "", ("a.mp4",), (), (ClipMeta(count=LibraryCount(**settings)),), {}, "a.json[0]"
    )
    timeline = Timeline([i / 10 for i in range(600)], 60.0)
    shown = lambda most, **settings: len(
        FrameRule(FrameOptions()).plan(record(**settings), 0, 0, timeline, most).indices
    )
    assert shown(10, fps=1) == 10
    assert shown(1, fps=1) == 4, "the package's fewest"
    assert shown(1, fps=1, min_frames=12) == 12
    assert shown(1, nframes=16) == 16, "nframes is no bound"


# ---- sizes

FACTORS = {28: "qwen2_5_vl", 32: "qwen3_vl"}
SIZES = [
    {"max_pixels": 360 * 420},
    {"max_pixels": 20 * 10**6},  # above what the package allows a frame
    {"min_pixels": 16 * 28 * 28},
    {"min_pixels": 50176, "max_pixels": 100352},
    {"total_pixels": 20480 * 28 * 28},
    {"total_pixels": 24 * 10**4, "min_pixels": 16 * 28 * 28},
    {"total_pixels": 1000, "min_pixels": 4 * 32 * 32},
    {"resized_height": 280, "resized_width": 420},
    {"resized_height": 28, "resized_width": 28},  # four tokens at least
    {"resized_height": 101, "resized_width": 333, "max_pixels": 784},
]


def ruler(factor):
    options = PromptOptions()
    frames = options.video_min_frame_pixels, options.video_max_frame_pixels
    return Ruler(make_processor(FACTORS[factor]), frames, (options.min_pixels, options.max_pixels))


def size_of_the_package(monkeypatch, settings, frames, size, factor):
    """Height and width of the frames that ``fetch_video`` returns for a clip of ``frames`` frames."""
    pixels = torch.zeros(frames, 3, *size, dtype=torch.uint8)
    monkeypatch.setattr(library, "get_video_reader_backend", lambda: "numbers")
    monkeypatch.setattr(library, "VIDEO_READER_BACKENDS", {"numbers": lambda ele: (pixels, {}, 2.0)})
    fetched = library.fetch_video({"video": "a.mp4", **settings}, image_patch_size=factor // 2)
    return tuple(fetched.shape[-2:])


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("settings", SIZES, ids=str)
def test_the_size_of_frames_is_that_of_the_package(settings, factor, monkeypatch):
    ours = ruler(factor)
    for frames, size in [(2, (48, 64)), (2, (240, 320)), (4, (720, 1280)), (30, (90, 160)), (2, (100, 280))]:
        theirs = size_of_the_package(monkeypatch, settings, frames, size, factor)
        assert ours.frame_size(size, ClipMeta(size=LibrarySize(**settings)), frames) == theirs, (frames, size)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("settings", [each for each in SIZES if "total_pixels" not in each], ids=str)
def test_the_size_of_images_is_that_of_the_package(settings, factor):
    from PIL import Image

    ours = ruler(factor)
    for height, width in [(48, 64), (240, 320), (720, 1280), (40, 700)]:
        picture = Image.new("RGB", (width, height))
        theirs = library.fetch_image({"image": picture, **settings}, image_patch_size=factor // 2)
        assert ours.image_size((height, width), LibrarySize(**settings)) == (theirs.height, theirs.width)


def test_an_upper_bound_below_the_lower_bound_of_the_package_is_kept(monkeypatch):
    with pytest.raises(AssertionError):
        size_of_the_package(monkeypatch, {"max_pixels": 50176}, 2, (480, 640), 28)
    # as our own bound of this number: 480 / sqrt(307,200 / 50,176) = 193.99 and 258.7, down to multiples of 28
    assert ruler(28).frame_size((480, 640), ClipMeta(size=LibrarySize(max_pixels=50176)), 2) == (168, 252)
    # 2,048 pixels: 36.2 and 48.3 x 28 / 64 are less than a token, which the package rounds down to nothing
    assert ruler(28).frame_size((48, 64), ClipMeta(size=LibrarySize(max_pixels=1024)), 2) == (28, 28)


def test_flags_that_are_given_bound_the_side_that_a_row_leaves_out():
    made = Ruler(make_processor("qwen2_5_vl"), (4 * 28 * 28, 64 * 28 * 28), (16 * 28 * 28, 32 * 28 * 28))
    # the flag's 50,176 pixels in place of the package's 602,112
    assert made.frame_size((480, 640), ClipMeta(size=LibrarySize(min_pixels=3136)), 2) == (168, 252)
    # 25,088 pixels of an image: 480 / sqrt(307,200 / 25,088) = 137.2 and 182.9
    assert made.image_size((480, 640), LibrarySize(min_pixels=3136)) == (112, 168)
