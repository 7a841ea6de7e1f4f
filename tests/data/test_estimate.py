"""Against the prompts that are made of the same records."""

import random

import pytest
from PIL import Image

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.estimate import LengthEstimate, read_header
from qwenvl.demo.tiny import make_processor

META = {"frame_cnts": [10, 15], "min_frames": 2, "max_frames": 6, "dynamic_sample": True}


@pytest.fixture(scope="module")
def collator():
    return GRPOCollator(make_processor("qwen2_5_vl"))


def test_headers_of_all_kinds(make_clip, tmp_path):
    assert read_header(str(make_clip("a.mp4", 25, size=(64, 48)))) == (25, 2.5, (48, 64))
    matroska = read_header(str(make_clip("a.mkv", 25)))
    assert matroska.duration == pytest.approx(2.5, abs=0.11) and matroska.frame_count in (24, 25, 26)
    (tmp_path / "frames").mkdir()
    for number in range(3):
        Image.new("RGB", (30, 20)).save(tmp_path / "frames" / f"{number}.png")
    assert read_header(str(tmp_path / "frames"), 4.0) == (3, 0.75, (20, 30))
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
    ]
    dataset = load_dataset(str(write_rows(rows)), base_interval=0.5, video_min_frames=2)
    estimate = LengthEstimate(dataset, collator.ruler)
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
    video, image, empty = (LengthEstimate(dataset, collator.ruler)((0, index)) for index in range(3))
    # 8 frames of 158 x 158 pixels, to 140 x 140: 4 pairs of 25 tokens, and two around them
    assert video - empty == 4 * 25 + 2
    # 672 x 672 pixels: 24 x 24 tokens, and two around them
    assert image - empty == 576 + 2


def test_never_above_what_prompts_are_made_to_fit(make_row, write_rows, collator):
    dataset = load_dataset(str(write_rows([make_row(prompt="<image>", image="none.png")])), on_bad_sample="skip")
    assert LengthEstimate(dataset, collator.ruler, most=100)((0, 0)) == 100


def test_a_header_that_claims_a_billion_frames_costs_nothing():
    from qwenvl.data.estimate import EvenTimes

    times = EvenTimes(10**9, 0.1)
    assert len(times) == 10**9
    numbers = random.Random(0).sample(range(10**9), 3)
    assert [times[n] for n in numbers] == pytest.approx([n / 10 for n in numbers])
