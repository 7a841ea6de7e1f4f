"""Records read when they are asked for are those of a full reading, and take no more memory than a few of them."""

import csv
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.records import record_file
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.record_file import RecordFile
from qwenvl.data.seeds import stable_random
from qwenvl.types import BadSample


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bounds(monkeypatch):
    """``bounds(bytes, records)``: up to which a file is loaded."""

    def set_bounds(most_bytes, most_records):
        monkeypatch.setattr(record_file, "LOADED_BYTES", most_bytes)
        monkeypatch.setattr(record_file, "LOADED_RECORDS", most_records)

    return set_bounds


@pytest.fixture
def lines(tmp_path, make_row):
    """A JSON lines file of nine rows, with a byte order mark and blank lines."""
    path = tmp_path / "data.jsonl"
    rows = [json.dumps(make_row(prompt=f"Naïve {i}?", id=i if i % 2 else None), ensure_ascii=False) for i in range(9)]
    path.write_text("\ufeff" + "\n\n".join(rows), encoding="utf-8")  # a byte order mark, blank lines, no last line end
    return DatasetSource("data", path, tmp_path)


def write_kinds_on_disk(folder, rows):
    """The same rows in each kind of file that is read row by row, by its name."""
    datasets = pytest.importorskip("datasets")
    (folder / "lines.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(folder / "table.parquet", batch_size=50)
    table.save_to_disk(folder / "saved")
    return ["lines.jsonl", "table.parquet", "saved"]


def write_all_kinds(folder, rows):
    """The same rows in a file of every kind, by its name."""
    (folder / "array.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(rows, indent=2).encode())
    with open(folder / "plain.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return ["array.json", "plain.csv", *write_kinds_on_disk(folder, rows)]


@pytest.fixture
def every_kind(tmp_path):
    """The same eleven rows in every kind of file."""
    rows = [{"id": f"é{i}", "prompt": f'“{i}”,\n"b"?', "solution": str(i)} for i in range(11)]
    names = write_all_kinds(tmp_path, rows)
    return [DatasetSource(name, tmp_path / name, tmp_path) for name in names]


def test_every_kind_of_file_can_be_read_in_any_order(every_kind):
    for source in every_kind:
        whole, lazy = RecordFile(source, seed=0).load(), RecordFile(source, seed=0)
        assert [record.solution for record in whole] == [str(i) for i in range(11)], source.name
        assert [lazy[i] for i in (8, 0, 10, 3, -1)] == [whole[i] for i in (8, 0, 10, 3, -1)]
        assert list(lazy) == list(lazy.iterate()) == whole
        assert list(pickle.loads(pickle.dumps(lazy))) == whole, "worker processes get it so"
        with pytest.raises(IndexError):
            lazy[11]


def test_a_share_of_the_rows_is_selected_by_the_seed_in_the_order_of_the_file(every_kind):
    def share(source, percent, seed):
        records = RecordFile(replace(source, name="data", percent=percent), seed=seed).load()
        return [int(record.solution) for record in records]

    for source in every_kind:
        expected = sorted(stable_random(4, "percent", "data").sample(range(11), 4))
        assert share(source, 33.0, 4) == expected
        third = RecordFile(replace(source, name="data", percent=33.0), seed=4)
        assert [int(record.solution) for record in third] == [int(third[i].solution) for i in range(4)] == expected
        assert len(share(source, 1.0, 0)) == 1, "never none"


def test_bad_rows_are_errors_when_asked_for(lines):
    path = lines.annotation_path
    path.write_text(path.read_text() + '\n{"a": \n{"prompt": "b", "solution": ""}\n')
    lazy = RecordFile(lines, seed=0, check_record=lambda record: "no" if "8" in record.messages[0].text else None)
    assert len(lazy) == 11
    assert lazy[7].messages
    for index, message in (
        (8, "data.jsonl:17: no"),
        (9, "data.jsonl:18: not valid JSON"),
        (10, "the solution is empty"),
    ):
        with pytest.raises(RecordError, match=message):
            lazy[index]


def test_only_files_above_the_bounds_are_read_by_index(tmp_path, bounds):
    data = "".join(json.dumps({"id": f"{i:04}", "prompt": "which?", "solution": "1"}) + "\n" for i in range(40))
    (tmp_path / "a.jsonl").write_text(data)
    file = RecordFile(DatasetSource("a", tmp_path / "a.jsonl", tmp_path), seed=0)
    bounds(len(data), 40)
    whole = file.load()
    assert isinstance(whole, list)
    for size, count in ((len(data), 39), (500, 40)):
        bounds(size, count)
        assert file.load() is file and list(file) == whole


def test_records_spread_over_a_large_file_are_checked_at_once(tmp_path, bounds):
    bounds(2**20, 9)
    path = tmp_path / "a.jsonl"
    good = json.dumps({"prompt": "a", "solution": "1"})
    path.write_text("\n".join([good] * 30) + '\n{"prompt": "a", "solution": ""}\n')
    with pytest.raises(RecordError, match=r"a.jsonl:31: the solution is empty"):
        RecordFile(DatasetSource("a", path, tmp_path), seed=0).load()


def test_a_wrong_column_or_a_cut_file_is_an_error_at_the_start(lines, write_rows, make_row, bounds):
    bounds(0, 0)
    with pytest.raises(RecordError, match="names 'q'; the row has"):
        RecordFile(lines, seed=0, options=ReadOptions(columns={"q": "prompt"})).load()
    path = write_rows([make_row(), make_row()])
    path.write_text(path.read_text()[:-20])
    cut = DatasetSource("cut", path, path.parent)
    with pytest.raises(RecordError, match=r"data.json\[1\]: not valid JSON"):
        RecordFile(cut, seed=0).load()


BAD_LINES = [
    '{"prompt": "a", "solution": ""}',
    '{"prompt": ',
    "[1]",
    '{"prompt": "a", "solution": "1", "video": "../b.mp4"}',
    '{"prompt": "a", "solution": "1", "path": "a.mp4", "clip": "b.mp4"}',
    '{"question": "a"}',
]


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "by index"])
@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_row_is_left_out_where_bad_rows_are_skipped(bad, lazy, tmp_path, bounds):
    bounds(2**20, 3 if lazy else 100)
    good = json.dumps({"prompt": "a", "solution": "1"})
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([good, good, bad, good]) + "\n")
    source = DatasetSource("a", path, tmp_path)
    with pytest.raises(RecordError):
        RecordFile(source, seed=0).load()
    dataset = load_dataset(str(path), on_bad_sample="skip")
    samples = [dataset[i] for i in range(4)]
    assert [isinstance(sample, BadSample) for sample in samples] == [False, False, True, False]
    assert str(path) in samples[2].error and str(path) in samples[2].record.where
    assert samples[2].record.index == 2 and dataset.parts[0].size == 4, "nothing takes its place"


def test_a_record_that_the_rewards_cannot_score_is_skipped_as_bad(tmp_path, bounds):
    bounds(2**20, 1)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a", "solution": str(n)}) + "\n" for n in range(3)))
    check = lambda record: "no" if record.solution == "1" else None
    dataset = load_dataset(str(path), on_bad_sample="skip", check_record=check)
    assert [bool(record.problem) for record in dataset.records] == [False, True, False]
    assert "a.jsonl:2: no" in dataset[1].error


@pytest.mark.parametrize("most", [2, 100])
def test_a_file_without_a_good_row_is_an_error_also_where_bad_rows_are_skipped(most, tmp_path, bounds):
    bounds(2**20, most)
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "solution": "1"}\n' * 3)
    with pytest.raises(RecordError, match=r"names 'q'.*none of the rows"):
        load_dataset(str(path), on_bad_sample="skip", columns={"q": "prompt"})


@pytest.mark.parametrize("nothing", ["\n \n", "", "[]"])
def test_a_file_without_records_is_refused(tmp_path, nothing):
    (tmp_path / "data.jsonl").write_text(nothing)
    with pytest.raises(RecordError, match="no records in the file"):
        RecordFile(DatasetSource("data", tmp_path / "data.jsonl", tmp_path), seed=0)


def test_the_same_id_twice_names_both_places(write_rows, make_row):
    path = write_rows([make_row(id=7), make_row(id="7")])
    with pytest.raises(RecordError, match=r"data.json\[1\].id: '7' is already the id of .*data.json\[0\]"):
        RecordFile(DatasetSource("data", path, path.parent), seed=0).load()


READER = """
import random, sys, threading
from pathlib import Path
import pyarrow
from qwenvl.data.records import record_file
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.record_file import RecordFile

def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) / 1024

def read(folder, name):
    source = DatasetSource(name, Path(folder, name), Path(folder))
    records = RecordFile(source, seed=0).load()
    return sum(len(records[i].messages[0].text) for i in random.Random(0).sample(range(len(records)), len(records)))

def watch():
    while not done.wait(0.002):
        anonymous.append(status("RssAnon"))

record_file.LOADED_BYTES = 0
# How much is read ahead of its use would depend on which threads the machine lets run.
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)
small, large, *names = sys.argv[1:]
for name in names:
    read(small, name)
before, anonymous, done = status("VmRSS"), [status("RssAnon")], threading.Event()
threading.Thread(target=watch, daemon=True).start()
for name in names:
    print(name, read(large, name), status("VmHWM") - before, max(anonymous) - anonymous[0])
done.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_far_below_the_size_of_the_file(tmp_path):
    """All rows in a random order, in a process that does nothing else.

    Arrow's threads have buffers of their own, more of them on some days, so the least of three tries counts.
    """
    count, length = 1000, 60_000
    rows = [{"prompt": f"{i:06}" + "word, " * (length // 6 - 1), "solution": "1"} for i in range(count)]
    (tmp_path / "small").mkdir()
    write_kinds_on_disk(tmp_path / "small", rows[:3])
    names = write_kinds_on_disk(tmp_path, rows)
    # Memory that is given back counts as given back.
    env = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "100000"}
    command = [sys.executable, "-c", READER, str(tmp_path / "small"), str(tmp_path), *names]
    size = count * length / 2**20
    least = dict.fromkeys(names, size)
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == len(names)
        for line in done.stdout.splitlines():
            name, total, peak, anonymous = line.split()
            assert int(total) == count * length
            # In the peak of tables are pages of mapped files, which the system takes back when it needs them.
            used = float(anonymous if name in ("table.parquet", "saved") else peak)
            least[name] = min(least[name], used)
        if max(least.values()) < size / 2:
            break
    assert max(least.values()) < size / 2, f"{size:.0f} MB of rows took {least} MB"
