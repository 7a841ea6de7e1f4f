"""Media as rows write them to paths, and what is refused before a decoder opens it."""

import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.media.source import frame_list, media_path, store_bytes, video_format

PICTURE = b"\x89PNG and the rest of a picture" * 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "medium",
    [
        PICTURE,
        {"bytes": PICTURE, "path": "ignored.png"},
        "data:image/png;base64," + base64.b64encode(PICTURE).decode(),
        base64.b64encode(PICTURE).decode(),
    ],
    ids=["bytes", "object", "data URL", "base64"],
)
def test_the_same_bytes_in_every_form_become_one_file(medium, tmp_path, cache):
    path = media_path(medium, "d.image", tmp_path)
    with open(path, "rb") as file:
        assert file.read() == PICTURE
    assert media_path(PICTURE, "d.image", tmp_path) == path
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 1


def test_an_object_with_a_path_alone_is_a_path_whatever_its_letters_spell(tmp_path, cache):
    text = base64.b64encode(PICTURE).decode()
    assert media_path({"path": text, "bytes": None}, "d.image", tmp_path) == str(tmp_path / text)
    assert not cache.exists()


def test_a_list_of_frames_is_kept_in_its_order(tmp_path):
    path = media_path(["2.png", "sub/1.png"], "d.video", tmp_path)
    assert frame_list(path) == [str(tmp_path / "2.png"), str(tmp_path / "sub" / "1.png")]
    with pytest.raises(RecordError, match=r"d.video\[1\]: '../x.png' leads out of the media root"):
        media_path(["2.png", "../x.png"], "d.video", tmp_path)


def test_a_list_of_frames_outside_the_cache_is_not_followed(tmp_path):
    (tmp_path / "evil.frames.json").write_text('["/etc/hostname"]')
    assert frame_list(str(tmp_path / "evil.frames.json")) is None


def test_values_that_name_no_medium_are_refused(tmp_path):
    for medium in (7, "", [], [1], {"url": "x"}, "data:image/png;base64,%%%"):
        with pytest.raises(RecordError):
            media_path(medium, "d.image", tmp_path)


@pytest.mark.parametrize("address", ["s3://bucket/a.mp4", "https://example.org/a.mp4"])
def test_an_address_is_no_path(tmp_path, address):
    scheme = address.split(":")[0]
    advice = "download it, and write the path of the copy"
    with pytest.raises(RecordError, match=f"d.video: '{address}': media can't be read from {scheme}://; {advice}"):
        media_path(address, "d.video", tmp_path, allow_outside=True)


def test_an_address_of_a_file_is_its_path(tmp_path):
    (tmp_path / "a b.mp4").write_bytes(b"")
    (tmp_path / "c%20d.mp4").write_bytes(b"")
    assert media_path(f"file://{tmp_path}/a%20b.mp4", "d.video", tmp_path) == str(tmp_path / "a b.mp4")
    assert media_path(f"FILE://{tmp_path}/c%20d.mp4", "d.video", tmp_path) == str(tmp_path / "c%20d.mp4")
    with pytest.raises(RecordError, match="leads out of the media root"):
        media_path("file:///data/a.mp4", "d.video", tmp_path)


def test_links_of_folders_and_files_are_followed(tmp_path):
    inner, outer = tmp_path / "root" / "clips", tmp_path / "outer"
    inner.mkdir(parents=True)
    outer.mkdir()
    os.symlink(inner, tmp_path / "root" / "folder")
    os.symlink(inner / "b.mp4", tmp_path / "root" / "file.mp4")
    root = tmp_path / "root"
    for name in ("folder/b.mp4", "file.mp4", "clips/../clips/b.mp4", "folder/../clips/b.mp4"):
        assert media_path(name, "d", root) == str(inner / "b.mp4") == os.path.realpath(root / name)
    (root / "folder").unlink()
    os.symlink(outer, root / "folder")
    with pytest.raises(RecordError, match=r"leads out of the media root .* by a link"):
        media_path("folder/b.mp4", "d", root)
    assert media_path("/outer/b.mp4", "d", Path("/")) == "/outer/b.mp4", "the root of all folders"


def test_a_folder_of_frames_follows_no_link_out_of_the_root(tmp_path):
    clip, outer = tmp_path / "root" / "clip", tmp_path / "outer"
    clip.mkdir(parents=True)
    outer.mkdir()
    (outer / "2.png").write_bytes(PICTURE)
    (clip / "1.png").write_bytes(PICTURE)
    (clip / "notes.txt").symlink_to(outer / "2.png")  # which is no frame
    (clip / "3.png").symlink_to(clip / "1.png")
    root = tmp_path / "root"
    assert media_path("clip", "d", root) == str(clip)
    (clip / "2.PNG").symlink_to(outer / "2.png")
    with pytest.raises(RecordError, match=rf"'clip' leads out of the media root .* to {outer}/2\.png"):
        media_path("clip", "d", root)
    assert media_path("clip", "d", root, allow_outside=True) == str(clip)


def test_many_writers_of_the_same_bytes_make_one_file(cache):
    data = bytes(200_000)
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(store_bytes, [data] * 32))
    assert len(paths) == 1
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 1, "no temporary file is left"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not a video at all, but some words", "it begins with b'not a video at all"),
        (b"#EXTM3U\nother.mp4\n", "begins with b'#EXTM3U.*; expected a clip"),
        (b"\0\0\1\xb3 and more", "a raw stream.*: ffmpeg -r RATE -i IN OUT.mp4"),
        (b"\x00\x01\x02\x03\xfe\xff" * 10, r"it begins with b'\\x00\\x01"),
        (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1", "not a video"),
    ],
)
def test_a_file_that_is_no_clip_is_refused_with_its_content(tmp_path, content, reason):
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(BadMediaError, match=reason) as caught:
        video_format(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_missing_files_are_named_at_the_start(tmp_path, monkeypatch):
    names = [f"gone{i}.mp4" if 4 <= i < 11 else "a.mp4" for i in range(30)]
    (tmp_path / "a.mp4").write_bytes(b"-")
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "<video>?", "video": name, "solution": "1"}) for name in names))
    with pytest.raises(RecordError, match="7 media files are missing") as error:
        load_dataset(path)
    lines = str(error.value).splitlines()[1:]
    assert (lines[0], lines[5:]) == (f"  {path}:5: no such file: {tmp_path}/gone4.mp4", ["  ..."])
    assert len(load_dataset(path, on_bad_sample="skip")) == 30
    monkeypatch.setattr("qwenvl.data.records.record_file.LOADED_RECORDS", 5)
    monkeypatch.setattr("qwenvl.data.records.record_file.SPOT_CHECKS", 7)
    with pytest.raises(RecordError, match=r"2 media files are missing; .*\n.*a.jsonl:5: .*\n.*a.jsonl:10: "):
        load_dataset(path)  # of a large file records spread over it are looked at: 0, 4, 9, 14, 19, 24, 29
