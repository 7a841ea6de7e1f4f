import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from qwenvl.data.media.unpacked import unpacked


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
    first = unpacked(source, unpack)
    assert unpacked(source, unpack) == first
    assert (first.read_text(), len(calls)) == ("xx", 1)
    source.write_text("longer")
    assert unpacked(source, unpack).read_text() == "longerlonger"


def test_what_fails_leaves_nothing(tmp_path, cache):
    (tmp_path / "a").write_text("x")

    def unpack(target):
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        unpacked(tmp_path / "a", unpack)
    assert [name for _, _, files in os.walk(cache) for name in files] == []


def test_several_at_once_find_a_whole_copy(tmp_path, cache):
    (tmp_path / "a").write_text("x")
    with ThreadPoolExecutor(8) as pool:
        copies = set(pool.map(lambda _: unpacked(tmp_path / "a", lambda to: to.write_bytes(bytes(9**6))), range(8)))
    (copy,) = copies
    assert copy.stat().st_size == 9**6
    assert len(list(copy.parent.iterdir())) == 1
