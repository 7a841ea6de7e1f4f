"""Copies in the cache folder: whole, one for each state of a file, and within a bound."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from qwenvl.data.records import copies as copies_module
from qwenvl.data.records.copies import cached_copy


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(copies_module, "_held", {})
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


def test_two_forms_of_a_file_are_two_copies(tmp_path):
    (tmp_path / "a").write_text("x")
    copies = [cached_copy(tmp_path / "a", lambda to, s=s: to.write_text(s), s) for s in (".x", ".y")]
    assert [copy.read_text() for copy in copies] == [".x", ".y"]


@pytest.fixture
def copied(tmp_path):
    """``copied("a")`` -> the copy of a file of that name, ten bytes long."""

    def copy(name):
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text(name)
        return cached_copy(tmp_path / name, lambda target: target.write_bytes(bytes(10)), ".x")

    return copy


def unused_since(copy, seconds):
    os.utime(copy, (seconds, seconds))
    copies_module._held.clear()  # as the end of a process does


def test_the_copies_unused_for_longest_make_room(copied, monkeypatch):
    monkeypatch.setattr(copies_module, "MAX_BYTES", 25)
    first, second = copied("a"), copied("b")
    unused_since(first, 2000)
    unused_since(second, 1000)
    third = copied("c")
    assert first.exists() and not second.exists() and third.exists()
    unused_since(third, 3000)
    assert copied("a") == first, "which marks it as used now"
    copies_module._held.clear()
    fourth = copied("d")
    assert first.exists() and not third.exists() and fourth.exists()


def test_what_a_process_left_that_died_is_deleted(copied, cache):
    copied("a")
    torn, written = (cache / "unpacked" / f"b.x.part-{n}-0" for n in (1, 2))
    for file in (torn, written):
        file.write_bytes(bytes(5))
    os.utime(torn, (1000, 1000))
    copied("c")
    assert not torn.exists() and written.exists(), "the other may still be growing"


def test_a_copy_that_a_process_uses_stays(copied, tmp_path, monkeypatch):
    (tmp_path / "a").write_text("a")
    code = (
        "import sys; from pathlib import Path; from qwenvl.data.records.copies import cached_copy\n"
        "print(cached_copy(Path(sys.argv[1]), lambda to: to.write_bytes(bytes(10)), '.x'), flush=True); input()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    used = user.stdout.readline().strip()
    os.utime(used, (1000, 1000))
    monkeypatch.setattr(copies_module, "MAX_BYTES", 5)
    mine = copied("b")
    assert os.path.exists(used), "although both are above the bound"
    copies_module._held.clear()
    user.communicate("\n")
    assert copied("c").exists() and not os.path.exists(used) and not mine.exists()


def test_a_copy_that_is_deleted_by_hand_is_made_again(copied):
    copy = copied("a")
    copy.unlink()
    assert copied("a") == copy and copy.exists()
