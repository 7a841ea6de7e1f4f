import base64
import http.server
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.media.source import fetch, forget_folders, frame_list, media_path, store_bytes

PICTURE = b"\x89PNG and the rest of a picture" * 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
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
)
def test_bytes_in_every_dress_become_one_file(medium, tmp_path, cache):
    path = media_path(medium, "d.image", tmp_path)
    with open(path, "rb") as file:
        assert file.read() == PICTURE
    assert media_path(PICTURE, "d.image", tmp_path) == path
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 1


def test_a_path_within_a_dict(tmp_path):
    assert media_path({"bytes": None, "path": "a.png"}, "d", tmp_path) == str(tmp_path / "a.png")


def test_a_list_of_frames_is_kept_in_its_order(tmp_path):
    path = media_path(["2.png", "sub/1.png"], "d.video", tmp_path)
    assert frame_list(path) == [str(tmp_path / "2.png"), str(tmp_path / "sub" / "1.png")]
    with pytest.raises(RecordError, match=r"d.video\[1\]: '../x.png' leads out of the media root"):
        media_path(["2.png", "../x.png"], "d.video", tmp_path)


def test_a_list_written_by_hand_outside_the_cache_is_not_one(tmp_path):
    (tmp_path / "evil.frames.json").write_text('["/etc/hostname"]')
    assert frame_list(str(tmp_path / "evil.frames.json")) is None


def test_what_is_no_medium(tmp_path):
    for medium in (7, "", [], [1], {"url": "x"}, "data:image/png;base64,%%%"):
        with pytest.raises(RecordError):
            media_path(medium, "d.image", tmp_path)


@pytest.mark.parametrize("address", ["file:///data/a.mp4", "s3://bucket/a.mp4", "GS://bucket/a.mp4"])
def test_an_address_is_no_path(tmp_path, address):
    scheme = address.split(":")[0]
    advice = "write the path itself" if scheme == "file" else "download it, and write the path of the copy"
    with pytest.raises(RecordError, match=f"d.video: '{address}': media can't be read from {scheme}://; {advice}"):
        media_path(address, "d.video", tmp_path, allow_remote=True, allow_outside=True)


def test_links_of_folders_and_files_are_followed_and_looked_at_anew(tmp_path):
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
    forget_folders()
    with pytest.raises(RecordError, match=r"leads out of the media root .* by a link"):
        media_path("folder/b.mp4", "d", root)
    assert media_path("/outer/b.mp4", "d", Path("/")) == "/outer/b.mp4", "the root of all folders"


def test_many_writers_of_the_same_bytes(cache):
    data = bytes(200_000)
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(store_bytes, [data] * 32))
    assert len(paths) == 1
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 1, "no temporary file is left"


class TestRemote:
    @pytest.fixture
    def server(self, tmp_path):
        (tmp_path / "www").mkdir()
        (tmp_path / "www" / "a.png").write_bytes(b"remote")

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args):
                super().__init__(*args, directory=str(tmp_path / "www"))

            def log_message(self, *args):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()

    def test_only_by_leave(self, tmp_path):
        with pytest.raises(RecordError, match="is remote; download it, or pass --allow_remote_media"):
            media_path("https://example.org/a.png", "d.image", tmp_path)
        assert media_path("https://example.org/a.png", "d", tmp_path, allow_remote=True) == "https://example.org/a.png"

    def test_fetched_once(self, server, tmp_path):
        path = fetch(f"{server}/a.png")
        (tmp_path / "www" / "a.png").unlink()
        assert fetch(f"{server}/a.png") == path
        with open(path, "rb") as file:
            assert file.read() == b"remote"

    def test_errors_name_the_address(self, server):
        with pytest.raises(BadMediaError, match=rf"{server}/none.png: can't be fetched: .*404"):
            fetch(f"{server}/none.png")
