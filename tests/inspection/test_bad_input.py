"""One bad row between two good ones, for every way we know of: it is named rightly, and its neighbours are read."""

import json
import os
import re
import struct

import av
import numpy as np
import pytest
from PIL import Image

from qwenvl.data.records.catalog import DatasetSource
from qwenvl.inspection.check import examine
from tests.made_clips import write_clip

ANSWER = {"from": "gpt", "value": "(1) a"}
GOOD = {"conversations": [{"from": "human", "value": "<video>?"}, ANSWER], "video": "good.mp4"}


def with_video(name, **keys):
    return GOOD | {"video": name} | keys


def with_image(name):
    turns = [{"from": "human", "value": "<image>?"}, ANSWER]
    return {"conversations": turns, "image": name}


def turns(text):
    return {"conversations": [{"from": "human", "value": text}, ANSWER]}


BAD_ROWS = {
    "a list": ([GOOD], "expected an object"),
    "null": (None, "expected an object .* got nothing"),
    "numbers as strings": (with_video("good.mp4", meta={"frame_cnts": ["25"]}), "expected a list of numbers above 0"),
    "a tag too few": (GOOD | turns("which?"), "has 0 <video> tags but `video` names 1"),
    "a tag too many": (GOOD | turns("<video><video>"), "has 2 <video> tags but `video` names 1"),
    "a path with dots": (with_video("../outside.mp4"), "leads out of the media root"),
    "an absolute path": (with_video("/etc/hostname"), "leads out of the media root"),
    "a link out of the root": (
        with_video("link.mp4"),
        r"leads out of the media root \S+ by a link, to \S+/outer\d*/outside.mp4; ",
    ),
    "a device": (with_video("/dev/zero"), "leads out of the media root"),
    "a link to a device": (with_video("zero.mp4"), "leads out of the media root"),
    "a pipe": (with_video("pipe.mp4"), "pipe, socket or device"),
    "a folder": (with_video("folder"), "a folder without images"),
    "a missing file": (with_video("none.mp4"), "No such file"),
    "no bytes": (with_video("empty.mp4"), "the file is empty"),
    "words": (with_video("words.mp4"), "not a video: it begins with b'"),
    "a playlist": (with_video("playlist.mp4"), "not a video: it begins with b'#EXTM3U"),
    "a picture": (with_video("picture.mp4"), r"not a video: it begins with b'\\x89PNG"),
    "cut in the middle": (with_video("cut.mp4"), "is cut short"),
    "sound alone": (with_video("sound.mp4"), "has no video stream, only audio"),
    "a bomb": (with_image("bomb.png"), "8000 x 8000 pixels; expected at most"),
    "a pipe for a picture": (with_image("pipe.mp4"), "pipe, socket or device"),
    "a folder for a picture": (with_image("folder"), "this is a folder, pipe, socket or device"),
    "no bytes for a picture": (with_image("empty.mp4"), "the file is empty"),
    "frames with a pipe among them": (with_video([["pixel.png", "pipe.mp4"]]), "pipe, socket or device"),
    "frames from elsewhere": (with_video([["pixel.png", "../outside.mp4"]]), "leads out of the media root"),
    "a span without frames": (with_video("good.mp4", video_start=99), "no frames"),
    "half a picture": (with_image("half.png"), "damaged image"),
    "a clip for a picture": (with_image("good.mp4"), "not an image"),
    "an empty answer": (
        GOOD | {"conversations": [GOOD["conversations"][0], {"from": "gpt", "value": ""}]},
        "the solution is empty",
    ),
    "a zero byte in the path": (with_video("a\0b.mp4"), "expected a path"),
    "an endless name": (with_video("x" * 5000), "File name too long"),
}
ODD_ROWS = [
    with_video("one.mp4"),  # one frame
    with_video("disguised.jpg"),  # another extension
    with_video("pixel.avi"),
    with_video("名前 with späces & 'quotes' #1%.mp4"),
    with_image("pixel.png"),
    with_image("🎬.png"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Clips and other files with every kind of damage and odd name."""
    root = tmp_path_factory.mktemp("outer") / "root"
    clip = lambda name, *args, **options: write_clip(root / name, *args, **options)
    clip("good.mp4")
    clip("one.mp4", 1)
    clip("pixel.avi", 3, codec="ffv1", size=(1, 1), pix_fmt="bgr0")
    clip("名前 with späces & 'quotes' #1%.mp4")
    clip("disguised.mp4").rename(root / "disguised.jpg")
    cut = clip("cut.mp4", 60, size=(128, 128), container_options={"movflags": "faststart"})
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 6 // 10])
    billion = bytearray(clip("billion.avi", codec="mpeg4").read_bytes())
    length = billion.index(b"strh") + 8 + 32
    billion[length : length + 4] = struct.pack("<I", 10**9)
    (root / "billion.avi").write_bytes(billion)
    with av.open(str(root / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 16000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    (root / "folder").mkdir()
    (root / "empty.mp4").write_bytes(b"")
    (root / "words.mp4").write_text("nothing but words here")
    (root / "playlist.mp4").write_text("#EXTM3U\n#EXTINF:1\ngood.mp4\n")
    (root.parent / "outside.mp4").write_bytes((root / "good.mp4").read_bytes())
    os.symlink(root.parent / "outside.mp4", root / "link.mp4")
    os.symlink("/dev/zero", root / "zero.mp4")
    os.mkfifo(root / "pipe.mp4")
    Image.new("RGB", (1, 1)).save(root / "pixel.png")
    Image.new("RGB", (9, 9)).save(root / "🎬.png")
    Image.new("RGB", (9, 9)).save(root / "picture.mp4", format="png")
    Image.new("1", (8000, 8000)).save(root / "bomb.png")
    Image.effect_noise((64, 64), 80).save(root / "half.png")
    (root / "half.png").write_bytes((root / "half.png").read_bytes()[:2000])
    return root


def look_at(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return examine([DatasetSource("rows", path, folder)], jobs=1)


@pytest.fixture(scope="module")
def bad_rows(folder):
    """The report on every bad row, each between two good ones. The k-th bad row is on line 2 k + 2."""
    return look_at(folder, [GOOD, *(row for bad, _ in BAD_ROWS.values() for row in (bad, GOOD))])


@pytest.mark.parametrize("number", range(len(BAD_ROWS)), ids=list(BAD_ROWS))
def test_a_bad_row_is_named(folder, bad_rows, number):
    message = bad_rows.problems[number]["message"]
    assert re.match(rf"{folder}/rows.jsonl:{2 * number + 2}\b", message)
    assert re.search(list(BAD_ROWS.values())[number][1], message), message


def test_the_neighbours_of_bad_rows_are_read(folder, bad_rows):
    assert len(bad_rows.problems) == len(BAD_ROWS)
    places = [f"{folder}/rows.jsonl:{line}" for line in range(1, 2 * len(BAD_ROWS) + 2, 2)]
    assert [record.where for record in bad_rows.good] == places


def test_odd_but_valid_rows_are_read(folder):
    report = look_at(folder, [GOOD, *ODD_ROWS])
    assert report.problems == [] and len(report.good) == len(ODD_ROWS) + 1


def test_a_clip_whose_header_promises_a_billion_frames_is_read(folder):
    report = look_at(folder, [GOOD, with_video("billion.avi")])
    assert len(report.good) == 2 and not report.problems
