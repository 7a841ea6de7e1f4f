"""Against the prompts that the collator makes of the media themselves."""

import pytest
from PIL import Image

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.prompt_length import LengthEstimate, Ruler, read_header
from qwenvl.demo.tiny import make_processor
from qwenvl.types import ClipMeta
from tests.data.test_collator import clip, noise, sample


@pytest.fixture(scope="module", params=("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
def processor(request):
    """The processor of each family."""
    return make_processor(request.param)


@pytest.fixture
def ruler(processor):
    """A ruler with the pixel bounds of the defaults."""
    return Ruler(processor, (4 * 28 * 28, 32 * 28 * 28), (16 * 28 * 28, 576 * 28 * 28))


@pytest.mark.parametrize(
    ("text", "clips", "images"),
    [
        ("Only words.", [], []),
        ("<video>\nWhich?", [((0.0, 0.5, 1.0, 1.5), 120, 200)], []),
        ("<image> and <image>", [], [(40, 300), (700, 500)]),
        (
            "<video><image> then <video>: 7<video>?",
            [((0.0, 9.9, 10.0, 100.25), 480, 640), ((0.0, 0.0), 3, 5), (tuple(i / 3 for i in range(12)), 90, 60)],
            [(200, 100)],
        ),
    ],
)
def test_the_computed_length_is_that_of_the_prompt(processor, ruler, text, clips, images):
    sizes = [(times, ruler.frame_size((height, width), None)) for times, height, width in clips]
    videos = [clip(len(times), height, width, times=times) for times, height, width in clips]
    made = sample(text, videos, [noise(3, *size) for size in images])
    measured = ruler.length(made.chat, sizes, [ruler.image_size(size) for size in images])
    (ids,) = GRPOCollator(processor)([made])["prompts"].input_ids
    assert measured.tokens == len(ids)
    assert measured.vision == sum(i in (processor.image_token_id, processor.video_token_id) for i in ids.tolist())


def test_sizes_of_frames_and_images_follow_the_pixel_bounds():
    ruler = Ruler(make_processor("qwen2_5_vl"), (4 * 28 * 28, 32 * 28 * 28), (16 * 28 * 28, 576 * 28 * 28))
    # 480 x 640 pixels into 25,088: 480 / sqrt(307,200 / 25,088) = 137.2 and 182.9, down to multiples of 28
    assert ruler.frame_size((480, 640), None) == (112, 168)
    # the record's own bounds: 480 / sqrt(307,200 / 50,176) = 193.99 and 258.7
    assert ruler.frame_size((480, 640), ClipMeta(max_pixels=64 * 28 * 28)) == (168, 252)
    # a still keeps its size, to multiples of 28
    assert ruler.image_size((300, 405)) == (308, 392)


META = {"frame_cnts": [10, 15], "min_frames": 2, "max_frames": 6, "dynamic_sample": True}


@pytest.fixture(scope="module")
def collator():
    """The collator of Qwen2.5-VL."""
    return GRPOCollator(make_processor("qwen2_5_vl"))


def test_headers_give_times_and_sizes_of_clips_and_folders(make_clip, tmp_path):
    line, size = read_header(str(make_clip("a.mp4", 25, size=(64, 48))))
    assert (len(line.times), line.times[-1], line.duration, size) == (25, 2.4, 2.5, (48, 64))
    matroska, _ = read_header(str(make_clip("a.mkv", 25)))
    assert matroska.duration == pytest.approx(2.5, abs=0.11) and len(matroska.times) in (24, 25, 26)
    (tmp_path / "frames").mkdir()
    for number in range(3):
        Image.new("RGB", (30, 20)).save(tmp_path / "frames" / f"{number}.png")
    assert read_header(str(tmp_path / "frames"), 4.0) == (((0.0, 0.25, 0.5), 0.75), (20, 30))
    (tmp_path / "words.mp4").write_text("not a video")
    (tmp_path / "empty.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(200))
    for name in ("words.mp4", "empty.mp4", "missing.mp4"):
        with pytest.raises(BadMediaError):
            read_header(str(tmp_path / name))


def test_the_estimate_is_the_length_where_headers_are_exact(make_clip, make_row, write_rows, tmp_path, collator):
    make_clip("a.mp4", 25, size=(160, 120))
    make_clip("b.mp4", 60)
    Image.new("RGB", (300, 500)).save(tmp_path / "c.png")
    rows = [
        make_row(prompt="Only words."),
        make_row(prompt="<video>\nWhich?", video="a.mp4", meta=META),
        make_row(prompt="<video><image><video>", video=["b.mp4", "a.mp4"], image="c.png"),
        make_row(prompt="<video>", video="b.mp4", meta={"video_start": 1, "video_end": 3, "video_fps": 2}),
        make_row(prompt="<video>", video={"video": "b.mp4", "fps": 2, "total_pixels": 40_000, "min_pixels": 784}),
        make_row(prompt="<image>", image={"image": "c.png", "resized_height": 56, "resized_width": 84}),
        make_row(prompt="<video>", video=[["c.png"] * 5], meta={"frame_times": [0, 1, 5, 6, 10]}),
    ]
    dataset = load_dataset(str(write_rows(rows)), base_interval=0.5, video_min_frames=2)
    estimate = LengthEstimate(dataset.records, dataset.rule, collator.ruler)
    for turn in range(4):  # the frames of the second are drawn anew in each
        for index in range(len(rows)):
            length = collator([dataset[turn, index]])["prompts"].input_ids.shape[1]
            assert estimate((turn, index)) == length
    assert len({estimate((turn, 1)) for turn in range(4)}) > 1


def test_media_that_cannot_be_opened_count_as_their_bounds(make_row, write_rows, collator):
    rows = [
        make_row(prompt="<video>", video="none.mp4"),
        make_row(prompt="<image>", image="none.png"),
        make_row(prompt=""),
    ]
    dataset = load_dataset(str(write_rows(rows)), on_bad_sample="skip")
    estimate = LengthEstimate(dataset.records, dataset.rule, collator.ruler)
    video, image, empty = (estimate((0, index)) for index in range(3))
    # 8 frames of 158 x 158 pixels, to 140 x 140: 4 pairs of 25 tokens, and two around them
    assert video - empty == 4 * 25 + 2
    # 672 x 672 pixels: 24 x 24 tokens, and two around them
    assert image - empty == 576 + 2


def test_media_that_are_too_thin_count_as_their_bounds(make_row, write_rows, collator, tmp_path):
    Image.new("RGB", (3000, 10)).save(tmp_path / "thin.png")
    rows = [
        make_row(prompt="<image>", image=str(tmp_path / name), video=None) for name in ("thin.png", "none.png")
    ]
    rows.append(make_row(prompt="<video>", video=[[str(tmp_path / "thin.png")] * 4]))
    rows.append(make_row(prompt="<video>", video="none.mp4"))
    dataset = load_dataset(str(write_rows(rows)), on_bad_sample="skip")
    estimate = LengthEstimate(dataset.records, dataset.rule, collator.ruler)
    thin_image, no_image, thin_clip, no_clip = (estimate((0, index)) for index in range(4))
    assert (thin_image, thin_clip) == (no_image, no_clip)
