import os

import pytest

from qwenvl.files import cache_root, check_installed, plain_file, require, written_whole


def test_the_cache_folder_follows_qwenvl_cache_and_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("QWENVL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "qwenvl"


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "folder" / "a"
    with written_whole(path) as partial:
        partial.write_text("old")
        assert not path.exists()
    with pytest.raises(OSError, match="disk full"), written_whole(path) as partial:
        partial.write_text("ne")
        raise OSError("disk full")
    assert (path.read_text(), list(path.parent.iterdir())) == ("old", [path])


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="disk full"), written_whole(tmp_path / "made") as partial:
        (partial / "inside").mkdir(parents=True)
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


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


def test_pipes_and_devices_are_refused_as_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for a writer
    (tmp_path / "words.txt").write_text("words")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match=f"{path}: expected a regular file, this is a pipe, socket or device"):
            plain_file(path)
    assert plain_file(str(tmp_path / "words.txt")).read_text() == "words"
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}/none: no such file$"):
        plain_file(tmp_path / "none")
