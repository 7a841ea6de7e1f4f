import av
import numpy as np
import pytest

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip.look import changes, luma_of, small_picture
from qwenvl.data.media.open import open_clip


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
