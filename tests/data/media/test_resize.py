"""Frames resized part by part, as they are decoded, are those that are resized all together."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.open import open_clip
from qwenvl.data.media.reader import PART_BYTES
from qwenvl.data.media.resize import read_resized, resize

PROCESSOR = SimpleNamespace(resample=Image.Resampling.BICUBIC)
FRAME = 3 * 64 * 96
WANTED = [2, 3, 11, 12, 12, 24]


def pixels_of(*parts):
    """F x 3 x H x W."""
    return torch.cat([torch.from_numpy(part).permute(0, 3, 1, 2) for part in parts])


@pytest.mark.parametrize("timeout", [0, 60])
@pytest.mark.parametrize(
    ("most", "parts"),
    [(10**9, [6]), (2 * FRAME, [2, 2, 2]), (4 * FRAME, [4, 2]), (1, [1] * 6)],
    ids=["at once", "two at a time", "four at a time", "one by one"],
)
def test_frames_read_in_parts_equal_frames_read_at_once(make_clip, timeout, most, parts):
    path = str(make_clip(size=(96, 64)))
    with open_clip(path, timeout=timeout) as clip:
        whole = clip.read(WANTED)
        found = [part.copy() for part in clip.parts(WANTED, most)]  # the next one takes its memory
        assert [len(part) for part in found] == parts
        assert torch.equal(pixels_of(*found), whole)
        plain = clip.parts
        clip.parts = lambda indices: plain(indices, most)
        frames, decoded = read_resized(clip, WANTED, lambda size: (28, 56), PROCESSOR)
        assert torch.equal(frames, resize(whole, (28, 56), PROCESSOR)) and decoded == (64, 96)
        assert torch.equal(clip.read([5]), clip.read([5]))
        with pytest.raises(IndexError, match="expected frames from 0 to 24"):
            list(plain([25]))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("resample", [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR])
def test_a_frame_is_resized_the_same_alone_and_among_others(layout, resample):
    """Of any size to any other: smaller, larger, along one side, by odd steps, not at all."""
    draw, processor = torch.Generator().manual_seed(0), SimpleNamespace(resample=resample)
    pairs = list(itertools.product((2, 17, 64, 140), repeat=2))
    for (height, width), (to_height, to_width) in zip(pairs, reversed(pairs[5:] + pairs[:5]), strict=True):
        pixels = torch.randint(0, 256, (7, 3, height, width), dtype=torch.uint8, generator=draw)
        pixels = pixels.contiguous(memory_format=layout)
        rows = pixels.permute(0, 2, 3, 1).split([1, 3, 2, 1])
        clip = SimpleNamespace(path="a.mp4", parts=lambda indices, rows=rows: (part.numpy() for part in rows))
        frames, decoded = read_resized(clip, range(7), lambda size, to=(to_height, to_width): to, processor)
        assert decoded == (height, width)
        assert torch.equal(frames, resize(pixels, (to_height, to_width), processor))


def test_the_child_shares_the_memory_of_a_part_and_sends_larger_ones(make_clip):
    frame = 3 * 1920 * 1080
    path = str(make_clip("large.mp4", 4, size=(1920, 1080), codec_options={"preset": "ultrafast"}))
    with open_clip(path, timeout=60) as clip, open_clip(path) as plain:
        whole, places = plain.read([0, 1, 2]), set()
        for part, expected in zip(clip.parts([0, 1, 2]), whole, strict=True):
            assert torch.equal(pixels_of(part)[0], expected)
            places.add(part.ctypes.data)
        assert len(places) == 1 and 2 * frame > PART_BYTES
        (part,) = clip.parts([0, 1, 2], 3 * frame)
        assert torch.equal(pixels_of(part), whole)


def test_a_clip_of_images_comes_in_parts_too(tmp_path):
    for i in range(5):
        Image.new("RGB", (96, 64), (i, 0, 0)).save(tmp_path / f"{i}.png")
    clip = open_clip(str(tmp_path))
    assert torch.equal(pixels_of(*clip.parts(range(5))), clip.read(range(5)))
    Image.new("RGB", (90, 64)).save(tmp_path / "5.png")
    with pytest.raises(BadMediaError, match=r"5.png: 90 x 64 pixels in a clip whose first frame has 96 x 64"):
        read_resized(open_clip(str(tmp_path)), range(6), lambda size: (28, 28), PROCESSOR)
