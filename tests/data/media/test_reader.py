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
from qwenvl.data.prompt_length import read_header
from scripts.clips.sources import SIZE, encode_numbered, number_in
from tests.data.media.clip_kinds import Workshop, kinds

KINDS = list(kinds())
_FIRST = {(kind.cut, kind.container): kind for kind in reversed(KINDS)}
# Rules of the reader that hang on the codec.
_OF_CODECS = ("h264refresh", "h264fields", "vp8", "hevc10")
_LIKE_OTHERS = ("mov", "webm", "flv", "h264", "hevc", "m2v")  # read as mp4, mkv and raw streams are, once each


def _quick(kind) -> bool:
    first = _FIRST[kind.cut, kind.container] is kind and (kind.cut == "whole" or kind.container not in _LIKE_OTHERS)
    return first or kind.codec in _OF_CODECS


@pytest.mark.parametrize(
    ("pts", "expected"),
    [
        ([0, 40, 80, 10000, 10000, 10000], [0, 40, 80, 10000, 10040, 10080]),
        ([0, 40, 80, 10000, 10040, None, None], [0, 40, 80, 10000, 10040, 10080, 10120]),
        ([None, 10, 20, None, 32, 1000], [0, 10, 20, 26, 32, 1000]),
    ],
    ids=["equal times at the end", "no times at the end", "no times in between"],
)
def test_frames_without_a_time_are_spread_between_their_neighbours(pts, expected):
    assert times_when_played([(time, None) for time in pts]) == expected


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Writes clips of every kind into a folder that the tests of this file share."""
    return Workshop(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=[] if _quick(kind) else pytest.mark.slow) for kind in KINDS],
)
def test_a_clip_has_the_frames_and_times_that_a_player_shows(kind, workshop, tmp_path):
    path, shown = kind.write(workshop, tmp_path)
    if kind.refused:
        with pytest.raises(BadMediaError, match=kind.refused):
            open_clip(str(path))
        return
    with open_clip(str(path)) as clip:
        assert clip.frame_times == pytest.approx(shown.times, abs=2.1e-3)  # some containers have milliseconds
        frames = clip.read(range(clip.frame_count))
        pictures = resize(frames, SIZE[::-1])  # anamorphic ones are stretched
        assert [number_in(picture.permute(1, 2, 0).numpy()) for picture in pictures] == list(shown.numbers)
        draw = Random(0)
        for _ in range(4):
            some = sorted(draw.sample(range(clip.frame_count), min(4, clip.frame_count)))
            assert torch.equal(clip.read(some), frames[some])
    with open_clip(str(path), strict=True) as clip:
        assert torch.equal(clip.read(range(clip.frame_count)), frames), "nothing of it is taken for damage"


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
    assert read_header(path)[1] == size
    with open_clip(path) as clip:
        assert clip.size == size
        frames = clip.read([0, 4])
    assert frames.shape == (2, 3, *size)
    assert [number_in(picture.permute(1, 2, 0).numpy()) for picture in resize(frames, SIZE[::-1])] == [0, 4]


def test_colours_that_cannot_be_converted_are_named_with_their_frame(tmp_path):
    """They may begin in the middle of a clip that was joined of several."""
    options = {"preset": "ultrafast", "x264-params": "colormatrix=YCgCo"}
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options=options)
        stream.width = stream.height = 64
        for _ in range(4):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 90, np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    for timeout in (0.0, 60.0):
        reason = r"a\.mp4: the colours of the frame at 0\.200 s can't be converted to RGB: Operation not supported"
        with open_clip(str(tmp_path / "a.mp4"), timeout=timeout) as clip, pytest.raises(BadMediaError, match=reason):
            clip.read([2])


def test_more_than_120_kinds_of_clips_have_names_of_their_own():
    assert len({kind.name for kind in KINDS}) == len(KINDS) > 120
