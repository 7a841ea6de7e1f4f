"""Records written in every kind of file are read again as they were."""

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.record_file import RecordFile
from qwenvl.doctor.convert import write_records

KINDS = ["b.json", "b.jsonl", "b.json.gz", "b.jsonl.gz", "b.parquet"]
PARTS = ("id", "messages", "solution", "videos", "images", "clip_meta")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))


def read(path, **options):
    return RecordFile(DatasetSource("d", path, path.parent), seed=0, options=ReadOptions(**options)).load()


def parts(records):
    return [[getattr(record, name) for name in PARTS] for record in records]


@pytest.fixture
def records(tmp_path, write_rows, make_row):
    rows = [
        make_row(prompt='A, "b"?\nc\té', line=3, tags=["x"]),
        make_row(prompt="<video>", video="a.mp4", meta={"max_frames": 4, "dynamic_sample": True}),
        make_row(prompt="<video>", video="b.mp4", video_start=1.5),
        make_row(
            prompt="<video><video><image>", video=["a.mp4", "b.mp4"], image="c.png", meta=[None, {"video_fps": 2}]
        ),
        make_row(prompt="<video>", video=[["1.png", "2.png"]], meta={"frame_cnts": [1.5, 1]}),
    ]
    return read(write_rows(rows, "a.json"))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_what_was_read(records, tmp_path, name):
    if name == "b.parquet":  # where a column of files can't hold lists of frames too
        write_records(records[4:], tmp_path / name)
        assert parts(read(tmp_path / name)) == parts(records[4:])
        records = records[:4]
    assert write_records(records, tmp_path / name) == (len(records), 0, 0)
    again = read(tmp_path / name)
    assert parts(again) == parts(records)
    assert (again[0].fields["line"], again[0].fields["tags"]) == (3, ["x"])
    assert not list(tmp_path.glob("*.part-*"))


@pytest.mark.parametrize("name", KINDS)
def test_prompts_of_several_turns(tmp_path, write_rows, make_row, name):
    records = read(write_rows([make_row(system="Be brief.")], "a.json"))
    write_records(records, tmp_path / name)
    assert parts(read(tmp_path / name)) == parts(records)


def test_media_that_are_part_of_rows_are_copied_beside_the_file(tmp_path):
    datasets = pytest.importorskip("datasets")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    rows = [{"prompt": "<image>", "images": [{"bytes": data, "path": None}], "solution": "1"}] * 2
    (tmp_path / "in").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "in" / "a.parquet")
    out = tmp_path / "out" / "b.jsonl"
    assert write_records(read(tmp_path / "in" / "a.parquet"), out) == (2, 1, 0)
    first, second = read(out)
    assert first.images == second.images
    assert first.images[0].startswith(f"{tmp_path}/out/b.jsonl.media/")
    assert Path(first.images[0]).read_bytes() == data


def test_media_outside_of_the_folder_are_counted(tmp_path, write_rows, make_row):
    records = read(write_rows([make_row(prompt="<video>", video="a.mp4")] * 2, "in/a.json"))
    out = tmp_path / "out" / "b.json"
    assert write_records(records, out) == (2, 0, 1)
    assert parts(read(out, allow_outside_media=True)) == parts(records)


def test_values_that_json_lacks_become_text(tmp_path):
    datasets = pytest.importorskip("datasets")
    row = {"prompt": "a", "solution": "1", "made": datetime.date(2026, 1, 31), "key": b"\x00\x01"}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "a.parquet")
    records = read(tmp_path / "a.parquet")
    write_records(records, tmp_path / "b.jsonl")
    written = json.loads((tmp_path / "b.jsonl").read_text())
    assert (written["made"], written["key"]) == ("2026-01-31", "AAE=")
    write_records(records, tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet")[0].fields["key"] == b"\x00\x01"


def test_a_column_of_parquet_has_one_type(tmp_path, write_rows, make_row):
    pytest.importorskip("pyarrow")
    records = read(write_rows([make_row(level=1), make_row(level="high")], "a.json"))
    with pytest.raises(ValueError, match=r"b.parquet: a column of parquet holds values of one kind: .*high"):
        write_records(records, tmp_path / "b.parquet")


CONVERTER = """
import resource, sys
from pathlib import Path
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.doctor.convert import write_records
from qwenvl.data.records import text
from qwenvl.data.records.record_file import RecordFile

text.IN_MEMORY_BYTES = 2**20

def convert(folder):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = Path(folder, "a.jsonl")
    for name in sys.argv[3:]:
        file = RecordFile(DatasetSource("a", path, path.parent), seed=0)
        assert write_records(file, path.with_name(name)).records == len(file)
        path = path.with_name(name)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

convert(sys.argv[1])
print(convert(sys.argv[2]) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_memory_stays_far_below_the_size_of_the_file(tmp_path):
    for folder, count in (("small", 3), ("large", 1000)):
        (tmp_path / folder).mkdir()
        with open(tmp_path / folder / "a.jsonl", "w") as file:
            for i in range(count):
                row = {"id": str(i), "prompt": f"{i}" + "word, " * 10_000, "solution": "1"}
                file.write(json.dumps(row) + "\n")
    names = ["b.json", "d.jsonl.gz", "e.jsonl"]
    command = [sys.executable, "-c", CONVERTER, str(tmp_path / "small"), str(tmp_path / "large"), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24, "megabytes, for a file of 57"
    first, last = (
        RecordFile(DatasetSource("a", tmp_path / "large" / n, tmp_path), seed=0) for n in ("a.jsonl", "e.jsonl")
    )
    assert parts(first) == parts(last)


@pytest.mark.parametrize("name", ["b.jsonl", "b.parquet"])
def test_an_id_that_is_a_number_stays_one(tmp_path, write_rows, make_row, name):
    write_records(read(write_rows([make_row(id=7), make_row(id=-1)], "a.json")), tmp_path / name)
    assert [record.fields["id"] for record in read(tmp_path / name)] == [7, -1]
    write_records(read(write_rows([make_row(id=7), make_row(id="x")], "a.json")), tmp_path / name)
    kept = [7, "x"] if name == "b.jsonl" else ["7", "x"]  # a column of parquet holds one kind
    assert [record.fields["id"] for record in read(tmp_path / name)] == kept
