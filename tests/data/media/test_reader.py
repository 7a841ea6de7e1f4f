"""Clips of all kinds: each frame and each time is right, in order and not, whatever the file says of itself."""

from fractions import Fraction
from random import Random

import av
import numpy as np
import pytest
import torch
from torchvision.transforms.v2.functional import resize

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.index import times_when_played
from qwenvl.data.media.open import open_clip
from qwenvl.data.media.reader import changes, luma_of, small_picture
from qwenvl.data.prompt_length import read_header
from scripts.clips.sources import SIZE, encode_numbered, number_in
from tests.data.media.clip_kinds import Workshop, kinds

KINDS = list(kinds())
_FIRST = {(kind.cut, kind.container): kind for kind in reversed(KINDS)}
# Rules of the reader that hang on the codec.
_OF_CODECS = ("h264refresh", "h264fields", "vp8", "hevc10")


def _quick(kind) -> bool:
    return _FIRST[kind.cut, kind.container] is kind or kind.codec in _OF_CODECS


@pytest.mark.parametrize(
    ("pts", "expected"),
    [
        ([0, 40, 80, 10000, 10000, 10000], [0, 40, 80, 120, 160, 10000]),
        ([0, 40, 80, 10000, 10040, None, None], [0, 40, 80, 10000, 10040, 10080, 10120]),
        ([None, 10, 20, None, 32, 1000], [0, 10, 20, 26, 32, 1000]),
    ],
)
def test_frames_with_repeated_times_do_not_move_into_a_gap(pts, expected):
    assert times_when_played([(time, None) for time in pts], Fraction(40)) == expected


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=[] if _quick(kind) else pytest.mark.slow) for kind in KINDS],
)
def test_a_clip_is_what_a_player_shows(kind, workshop, tmp_path):
    path, shown = kind.write(workshop, tmp_path)
    with open_clip(str(path), "pyav") as clip:
        assert clip.frame_times == pytest.approx(shown.times, abs=2.1e-3)  # some containers have milliseconds
        frames = clip.read(range(clip.frame_count))
        pictures = resize(frames, SIZE[::-1])  # anamorphic ones are stretched
        assert [number_in(picture.permute(1, 2, 0).numpy()) for picture in pictures] == list(shown.numbers)
        draw = Random(0)
        for _ in range(4):
            some = sorted(draw.sample(range(clip.frame_count), min(4, clip.frame_count)))
            assert torch.equal(clip.read(some), frames[some])
    with open_clip(str(path), "pyav", strict=True) as clip:
        assert torch.equal(clip.read(some), frames[some])
        clip.check_all()  # nothing of it is taken for damage


@pytest.mark.parametrize(
    ("name", "codec", "shape", "size"),
    [
        ("wide.mp4", "h264", Fraction(16, 11), (96, 233)),  # 160 x 16 / 11 = 232.7
        ("high.mkv", "h264", Fraction(1, 2), (192, 160)),
        ("dvd.mpg", "mpeg2", Fraction(16, 15), (96, 171)),  # 16 : 9 of 160 x 96, as the format says it
        ("old.avi", "mpeg4plain", Fraction(12, 11), (96, 175)),
        ("square.mp4", "h264", Fraction(1), (96, 160)),
        ("nonsense.mp4", "h264", Fraction(1, 100), (96, 160)),
    ],
)
def test_pixels_that_are_not_square_are_made_so(tmp_path, name, codec, shape, size):
    path = str(encode_numbered(tmp_path / name, codec, 5, shape=shape))
    assert read_header(path).size == size
    with open_clip(path, "pyav") as clip:
        assert clip.size == size
        frames = clip.read([0, 4])
    assert frames.shape == (2, 3, *size)
    assert [number_in(picture.permute(1, 2, 0).numpy()) for picture in resize(frames, SIZE[::-1])] == [0, 4]


def test_there_are_many_kinds_and_no_two_are_the_same():
    assert len({kind.name for kind in KINDS}) == len(KINDS) > 120


def test_what_a_file_says_wrongly_is_noted(workshop, tmp_path):
    notes = {
        "whole-h264.mp4": [],
        "cut_at_a_key_frame-h264open.ts": ["2 frames at its beginning need others that were cut off"],
        "joined_midway-h264.ts": ["8 frames at its beginning need others that were cut off"],
        "concatenated_with_repeating_times-mpeg2.ts": ["it is 2 files in one"],
        "missing_times-h264.ts": ["40 frames have no time, or a wrong one"],
        "promises_more-h264.mkv": ["its header says that it ends at 602.40 s, and it ends at 2.40 s"],
        "promises_less-h264.mkv": ["its header says that it ends at 0.40 s, and it ends at 2.40 s"],
        "late_start-h264.mkv": [],
        "variable_rate-h264.avi": [],
    }
    for kind in KINDS:
        if kind.name in notes:
            path, _ = kind.write(workshop, tmp_path)
            with open_clip(str(path), "pyav") as clip:
                assert [note[: len(start)] for note, start in zip(clip.notes, notes[kind.name], strict=True)] == notes[
                    kind.name
                ], kind.name


def test_small_pictures_are_means_of_fields():
    picture = np.zeros((65, 96), np.uint8)  # fields of 2 x 3 pixels, and a line that is left over
    picture[:2, :3] = [[10, 20, 30], [40, 50, 61]]
    assert small_picture(picture).shape == (32, 32)
    assert small_picture(picture)[0].tolist()[:2] == [35, 0]  # 211 / 6


def test_a_picture_below_the_fields_is_taken_as_it_is():
    assert small_picture(np.arange(12, dtype=np.uint8).reshape(3, 4)).tolist() == np.arange(12).reshape(3, 4).tolist()


def test_change_by_hand():
    grey = np.full((32, 32), 100, np.uint8)
    moved = grey.copy()
    moved[3, 4:6] = 200
    # fields of a pixel: two of them by 100 - 4, there and back; 3 levels everywhere are noise
    assert changes([grey, moved, grey + 3, grey]) == (0, 192, 2 * (97 - 4), 0)


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "gray", "yuv420p10le", "rgb24", "nv12"])
def test_brightness_of_any_format(pix_fmt):
    plain = np.zeros((48, 64, 3), np.uint8)
    plain[:, 32:] = 200
    luma = luma_of(av.VideoFrame.from_ndarray(plain, format="rgb24").reformat(format=pix_fmt))
    assert luma.shape == (48, 64) and luma.dtype == np.uint8
    assert luma[:, :30].max() < 20 and luma[:, 34:].min() > 150


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.mp4", {}), ("a.webm", {"codec": "libvpx-vp9"}), ("a.mov", {"codec": "mjpeg", "pix_fmt": "yuvj420p"})],
)
def test_looks_see_where_the_picture_changes(make_clip, name, options):
    """Frames bear their number in 16 x 16 pixels for each bit: a change of one bit is that of 8 x 8 fields of 2 x 2."""
    path = str(make_clip(name, 9, **options))
    with open_clip(path) as here, open_clip(path, timeout=60) as child:
        found = here.look([0, 1, 2, 3, 7])
        assert child.look([0, 1, 2, 3, 7]) == found
    one = 64 * 200
    bits = [0, 1, 2, 1, 1]  # 0, 1, 10, 11, 111
    assert [round(change / one) for change in found] == bits


def test_a_folder_of_images(tmp_path):
    from PIL import Image

    for number, level in enumerate((0, 0, 104)):
        Image.new("RGB", (64, 64), (level, level, level)).save(tmp_path / f"{number}.png")
    with open_clip(str(tmp_path)) as clip:
        assert clip.look([0, 1, 2]) == (0, 0, 32 * 32 * 100)


def test_a_damaged_clip_is_named(make_clip):
    path = make_clip("a.mp4", 60, gop=60)
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + 200
    data[middle : middle + 1500] = bytes(1500)
    path.write_bytes(data)
    with pytest.raises(BadMediaError, match=r"a\.mp4"), open_clip(str(path)) as clip:
        clip.look(range(60))
