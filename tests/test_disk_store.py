"""Values and copies are whole or not there, whoever else writes, and folders stay within their bounds."""

import multiprocessing
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from qwenvl import disk_store
from qwenvl.disk_store import CHECKSUM_BYTES, DiskStore, cached_copy

MIB = 2**20


def total_bytes(folder) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_value_comes_back(tmp_path):
    store = DiskStore(tmp_path / "new" / "folder", MIB, ".value")
    assert store.get("a") is None
    store.put("a", b"first")
    store.put("b", b"")
    assert (store.get("a"), store.get("b")) == (b"first", b"")
    store.put("a", b"second")
    assert DiskStore(tmp_path / "new" / "folder", MIB, ".value").get("a") == b"second"
    assert DiskStore(tmp_path / "new" / "folder", MIB, ".other").get("a") is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:2], lambda b: b"", lambda b: b[:-1] + b"\0"])
def test_a_damaged_value_is_none_and_logged_and_can_be_replaced(tmp_path, caplog, damage):
    store = DiskStore(tmp_path, MIB, ".value")
    store.put("a", b"a value")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("a") is None
    assert f"{path} is damaged: what it held is made anew" in caplog.text
    store.put("a", b"a value")
    assert store.get("a") == b"a value"


def test_the_longest_unused_go_first(tmp_path):
    store = DiskStore(tmp_path, 10 * 1000, ".value")
    for number in range(9):
        store.put(str(number), bytes(1000 - CHECKSUM_BYTES))
        os.utime(tmp_path / f"{number}.value", (number, number))
    (tmp_path / "x.other").write_bytes(bytes(5000))  # of another store
    assert store.get("0") is not None, "used again"
    fresh = DiskStore(tmp_path, 10 * 1000, ".value")  # 9,000 bytes are there; 1,500 more pass the bound
    fresh.put("new", bytes(1500 - CHECKSUM_BYTES))
    # Deleted until a tenth is free: 1, 2 (9,000 + 1,500 - 2,000 = 8,500)
    assert [n for n in range(9) if store.get(str(n)) is None] == [1, 2]
    assert fresh.get("new") is not None
    assert (tmp_path / "x.other").exists()


def test_what_exceeds_the_bound_by_itself_is_not_kept(tmp_path):
    store = DiskStore(tmp_path, 100, ".value")
    store.put("a", bytes(100))
    assert not list(tmp_path.iterdir())


def test_unfinished_files_of_dead_processes_go(tmp_path):
    old, new = tmp_path / "a.value.part-1-a", tmp_path / "b.value.part-2-b"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    DiskStore(tmp_path, MIB, ".value").put("c", b"value")
    assert [old.exists(), new.exists()] == [False, True]


def test_a_disk_that_takes_no_more_is_reported_once(tmp_path, caplog):
    store = DiskStore(tmp_path / "folder", MIB, ".value")
    (tmp_path / "folder").rmdir()
    for key in "ab":
        store.put(key, b"value")
        assert store.get(key) is None
    assert caplog.text.count("can't be stored: No such file") == 1
    (tmp_path / "a.value").mkdir()
    assert DiskStore(tmp_path, MIB, ".value").get("a") is None
    assert "can't be read: Is a directory" in caplog.text


def write_and_read(folder, seed: int) -> None:
    """Values tell their key; a reader that sees half of one, or another's, fails."""
    store, draw = DiskStore(folder, 40_000, ".value"), random.Random(seed)
    for _ in range(300):
        key = str(draw.randrange(60))
        expected = key.encode() * 500
        found = store.get(key)
        assert found in (None, expected)
        if found is None:
            store.put(key, expected)


def test_several_processes_at_once(tmp_path, caplog):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_and_read, args=(tmp_path, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    one_write_of_each = 4 * 1004  # that the others may not have seen
    assert 20_000 < total_bytes(tmp_path) <= 40_000 + one_write_of_each
    assert not list(tmp_path.glob("*.part-*"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_store, "_held", {})
    return tmp_path / "cache"


def test_a_copy_is_made_once_for_each_state_of_the_file(tmp_path, cache):
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
    assert cached_copy(source, unpack, ".y") != cached_copy(source, unpack, ".x"), "another form"


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


@pytest.fixture
def copied(tmp_path, cache):
    """``copied("a")`` -> the copy of a file of that name, ten bytes long."""

    def copy(name):
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text(name)
        return cached_copy(tmp_path / name, lambda target: target.write_bytes(bytes(10)), ".x")

    return copy


def unused_since(copy, seconds):
    os.utime(copy, (seconds, seconds))
    disk_store._held.clear()  # as the end of a process does


def test_the_copies_unused_for_longest_make_room(copied, monkeypatch):
    monkeypatch.setattr(disk_store, "MAX_COPIES_BYTES", 25)
    first, second = copied("a"), copied("b")
    unused_since(first, 2000)
    unused_since(second, 1000)
    third = copied("c")
    assert first.exists() and not second.exists() and third.exists()
    unused_since(third, 3000)
    assert copied("a") == first, "which marks it as used now"
    disk_store._held.clear()
    fourth = copied("d")
    assert first.exists() and not third.exists() and fourth.exists()


def test_a_copy_that_a_process_uses_stays(copied, tmp_path, monkeypatch):
    (tmp_path / "a").write_text("a")
    code = (
        "import sys; from pathlib import Path; from qwenvl.disk_store import cached_copy\n"
        "print(cached_copy(Path(sys.argv[1]), lambda to: to.write_bytes(bytes(10)), '.x'), flush=True); input()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    used = user.stdout.readline().strip()
    os.utime(used, (1000, 1000))
    monkeypatch.setattr(disk_store, "MAX_COPIES_BYTES", 5)
    mine = copied("b")
    assert os.path.exists(used), "although both are above the bound"
    disk_store._held.clear()
    user.communicate("\n")
    assert copied("c").exists() and not os.path.exists(used) and not mine.exists()


def test_a_copy_that_is_deleted_by_hand_is_made_again(copied):
    copy = copied("a")
    copy.unlink()
    assert copied("a") == copy and copy.exists()
