import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from qwenvl.files import cache_root, cached_copy, check_installed, require, written_whole


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_made_once_for_each_state_of_the_file(tmp_path):
    source, calls = tmp_path / "a", []

    def unpack(target):
        calls.append(target)
        target.write_text(source.read_text() * 2)

    source.write_text("x")
    first = cached_copy(source, unpack, ".x")
    assert cached_copy(source, unpack, ".x") == first
    assert (first.read_text(), len(calls)) == ("xx", 1)
    source.write_text("longer")
    assert cached_copy(source, unpack, ".x").read_text() == "longerlonger"


def test_what_fails_leaves_nothing(tmp_path, cache):
    (tmp_path / "a").write_text("x")

    def unpack(target):
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached_copy(tmp_path / "a", unpack, ".x")
    assert [name for _, _, files in os.walk(cache) for name in files] == []


def test_several_at_once_find_a_whole_copy(tmp_path, cache):
    (tmp_path / "a").write_text("x")
    write = lambda target: target.write_bytes(bytes(9**6))
    with ThreadPoolExecutor(8) as pool:
        copies = set(pool.map(lambda _: cached_copy(tmp_path / "a", write, ".x"), range(8)))
    (copy,) = copies
    assert copy.stat().st_size == 9**6
    assert len(list(copy.parent.iterdir())) == 1


def test_the_cache_folder(tmp_path, monkeypatch):
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("QWENVL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "qwenvl"


def test_two_forms_of_a_file_are_two_copies(tmp_path):
    (tmp_path / "a").write_text("x")
    copies = [cached_copy(tmp_path / "a", lambda to, s=s: to.write_text(s), s) for s in (".x", ".y")]
    assert [copy.read_text() for copy in copies] == [".x", ".y"]


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "folder" / "a"
    with written_whole(path) as partial:
        partial.write_text("old")
        assert not path.exists()
    with pytest.raises(OSError, match="disk full"), written_whole(path) as partial:
        partial.write_text("ne")
        raise OSError("disk full")
    assert (path.read_text(), list(path.parent.iterdir())) == ("old", [path])


def test_a_folder_is_whole_too(tmp_path):
    path = tmp_path / "made"
    with pytest.raises(OSError, match="disk full"), written_whole(path) as partial:
        (partial / "inside").mkdir(parents=True)
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []
    with written_whole(path) as partial:
        partial.mkdir()
        (partial / "a").write_text("a")
    assert [file.name for file in path.iterdir()] == ["a"]


def test_a_written_file_may_be_read_by_whoever_may_read_new_files(tmp_path):
    (tmp_path / "plain").write_text("x")
    with written_whole(tmp_path / "whole") as partial:
        partial.write_text("x")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_package_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    assert require("os.path", "none") is os.path
    for call in (require, check_installed):
        with pytest.raises(ImportError, match=r"package missing_one is not installed: pip install 'qwenvl\[some\]'"):
            call("missing_one", "some")
    (tmp_path / "broken_one.py").write_text("import missing_two\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing_two'"):
        require("broken_one", "some")
    check_installed("broken_one", "some")
