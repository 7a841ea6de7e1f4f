"""Records written in every kind of file are read again as they were."""

import datetime
import json
from pathlib import Path

import pytest
from PIL import Image

from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.record_file import RecordFile
from qwenvl.inspection.convert import write_records

PARTS = ("id", "messages", "solution", "videos", "images", "clip_meta", "image_sizes")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))


def read(path, **options):
    return RecordFile(DatasetSource("d", path, path.parent), seed=0, options=ReadOptions(**options)).load()


def parts(records):
    return [[getattr(record, name) for name in PARTS] for record in records]


@pytest.fixture
def records(tmp_path, write_rows, make_row):
    """Records with every kind of text, media, meta and key."""
    rows = [
        make_row(prompt='A, "b"?\nc\té', line=3, tags=["x"]),
        make_row(prompt="<video>", video="a.mp4", meta={"max_frames": 4, "dynamic_sample": True}),
        make_row(prompt="<video>", video="b.mp4", video_start=1.5),
        make_row(
            prompt="<video><video><image>", video=["a.mp4", "b.mp4"], image="c.png", meta=[None, {"video_fps": 2}]
        ),
        make_row(prompt="<video>", video=[["1.png", "2.png"]], meta={"frame_cnts": [1.5, 1]}),
        make_row(prompt="<video>", video=[["1.png", "2.png"]], meta={"frame_times": [0, 3.5]}),
        make_row(prompt="<video>", video=[{"video": ["1.png", "2.png"], "sample_fps": 1, "max_frames": 2}]),
        make_row(prompt="<video>", video="a.mp4", fps=0.5, min_frames=2, max_pixels=784),
        make_row(prompt="<video>", video="a.mp4", frame_cnts=[3, 4], dynamic_sample=True, max_frames=2),
        make_row(
            prompt="<video><video><image><image>",
            video=[{"video": "a.mp4", "nframes": 4, "total_pixels": 9999}, "b.mp4"],
            image=["c.png", {"image": "d.png", "resized_height": 28, "resized_width": 56}],
            meta=[{"video_start": 1}, None],
        ),
    ]
    return read(write_rows(rows, "a.json"))


@pytest.mark.parametrize("name", ["b.json", "b.jsonl"])
def test_converted_records_read_back_the_same(records, tmp_path, name, write_rows, make_row):
    rows = [make_row(id=1, system="Be brief."), {"conversations": make_row()["conversations"][:1]}, make_row(id=7)]
    records += read(write_rows(rows, "more.json"))
    assert write_records(records, tmp_path / name) == f"wrote {len(records)} records to {tmp_path / name}"
    again = read(tmp_path / name)
    assert parts(again) == parts(records)
    assert (again[0].fields["line"], again[0].fields["tags"]) == (3, ["x"])
    assert again[-1].fields["id"] == 7, "a number stays one"
    assert not list(tmp_path.glob("*.part-*"))


def test_media_that_are_part_of_rows_are_copied_beside_the_file(tmp_path):
    datasets = pytest.importorskip("datasets")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    rows = [{"prompt": "<image>", "images": [{"bytes": data, "path": None}], "solution": "1"}] * 2
    (tmp_path / "in").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "in" / "a.parquet")
    out = tmp_path / "out" / "b.jsonl"
    written = write_records(read(tmp_path / "in" / "a.parquet"), out)
    assert written.endswith(f"copied 1 media that were part of the records to {out}.media")
    first, second = read(out)
    assert first.images == second.images
    assert first.images[0].startswith(f"{tmp_path}/out/b.jsonl.media/")
    assert Path(first.images[0]).read_bytes() == data


def test_media_outside_of_the_folder_are_counted(tmp_path, write_rows, make_row):
    records = read(write_rows([make_row(prompt="<video>", video="a.mp4")] * 2, "in/a.json"))
    out = tmp_path / "out" / "b.json"
    assert "1 media lie outside of its folder" in write_records(records, out)
    assert parts(read(out, allow_outside_media=True)) == parts(records)


def test_values_that_json_lacks_become_text(tmp_path):
    datasets = pytest.importorskip("datasets")
    row = {"prompt": "a", "solution": "1", "made": datetime.date(2026, 1, 31), "key": b"\x00\x01"}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "a.parquet")
    records = read(tmp_path / "a.parquet")
    write_records(records, tmp_path / "b.jsonl")
    written = json.loads((tmp_path / "b.jsonl").read_text())
    assert (written["made"], written["key"]) == ("2026-01-31", "AAE=")
