import os

import numpy as np
import pytest
from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.mediafile import check_regular_file, video_format


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("a.mp4", "mov"),
        ("a.mkv", "matroska"),
        ("a.avi", "avi"),
        ("a.ts", "mpegts"),
        ("a.flv", "flv"),
        ("a.mpg", "mpeg"),
    ],
)
def test_containers_are_told_by_content_and_not_by_name(make_clip, tmp_path, name, container):
    codec = {"a.avi": "mpeg4", "a.mpg": "mpeg2video"}.get(name, "libx264")
    disguised = tmp_path / "disguised.dat"
    make_clip(name, 25, codec=codec, fps=25).rename(disguised)
    assert video_format(str(disguised)) == container


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not a video at all, but some words", "it is text"),
        (b"<!DOCTYPE html><html>404</html>", "probably the error page of a failed download"),
        (b"#EXTM3U\nother.mp4\n", "it is a playlist"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"\x00\x01\x02\x03\xfe\xff" * 10, r"it begins with b'\\x00\\x01"),
        (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1", "not a video"),
    ],
)
def test_other_files_named_mp4_are_named_for_what_they_are(tmp_path, content, reason):
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(BadMediaError, match=reason) as caught:
        video_format(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_a_picture_named_mp4(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "clip.mp4", format="png")
    with pytest.raises(BadMediaError, match="it is a PNG image"):
        video_format(str(tmp_path / "clip.mp4"))


def test_a_photograph_is_no_clip_and_motion_jpeg_is_one(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8)  # more than a block of a read
    Image.fromarray(noise).save(tmp_path / "one.jpg", quality=100)
    one, path = (tmp_path / "one.jpg").read_bytes(), tmp_path / "clip.mp4"
    assert len(one) > 2**20
    path.write_bytes(one + one)
    assert video_format(str(path)) == "mjpeg"
    path.write_bytes(one)
    with pytest.raises(BadMediaError, match="it is a JPEG image"):
        video_format(str(path))
    picture = Image.fromarray(noise[:8, :8])
    picture.save(path, format="MPO", save_all=True, append_images=[picture])
    with pytest.raises(BadMediaError, match="it is a JPEG image"):
        video_format(str(path))


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")  # opening one for reading would wait for a writer
    for path, reason in (
        (tmp_path / "pipe.mp4", "a pipe, socket or device"),
        ("/dev/zero", "a pipe, socket or device"),
        (tmp_path, "this is a folder"),
        (tmp_path / "none.mp4", "No such file"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(BadMediaError, match=reason):
            check_regular_file(str(path))


def test_the_error_survives_the_way_out_of_a_worker():
    # A DataLoader rebuilds it from its text alone; pickling is what process pools do.
    import pickle

    error = BadMediaError("a.mp4", "is empty")
    assert str(BadMediaError(str(error))) == "a.mp4: is empty"
    assert str(pickle.loads(pickle.dumps(error))) == "a.mp4: is empty"
