"""Records written in every kind of file are read again as they were."""

import datetime
import itertools
import json
from pathlib import Path

import pytest
from PIL import Image

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.frame_settings import META_KEYS, ROW_KEYS
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.record_file import RecordFile
from qwenvl.inspection.convert import write_records
from qwenvl.rewards.function import reward_columns
from qwenvl.types import Record

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


def columns(record):
    """What rewards get of a record, without the keys of its turns and media, which they get under other names."""
    renamed = {"conversations", "messages", "prompt", "video", "videos", "image", "images"}
    return {name: value for name, value in reward_columns([record], 1).items() if name not in renamed}


CLIP = {"prompt": "<video>q", "video": "a.mp4", "solution": "1"}
ROWS_FOR_REWARDS = [
    {**CLIP, "meta": {"max_frames": 4, "station": "A", "difficulty": 3}, "completion": "x"},
    {**CLIP, "meta": {"station": "A"}},
    {**CLIP, "meta": {}, "answer": "d", "extra": [1, {"a": None}]},
    {"prompt": "text alone", "solution": "1", "meta": {"station": "A"}},
    {"prompt": "text alone", "completion": [{"role": "assistant", "content": "said"}]},
    {"messages": [{"role": "user", "content": "q"}], "prompt": "left over", "solution": "1", "completion": "c"},
    {"conversations": [{"from": "human", "value": "q"}], "completion": "c", "solution": "c"},
    {"prompt": "q", "system": [{"type": "text", "text": "Be brief."}], "solution": "1", "system_prompt": ""},
    {"prompt": "q", "system": "Be brief.", "reward_model": {"ground_truth": "1", "style": "rule"}},
    {**CLIP, "frame_cnts": [14, 11], "dynamic_sample": True, "min_frames": 2, "max_frames": 4},
    {**CLIP, "video_start": 0.2, "video_end": "0:01", "video_fps": 2},
    {
        "prompt": "<video><video>q",
        "video": ["a.mp4", {"video": "b.mp4", "fps": 1}],
        "solution": "1",
        "meta": [{"station": 1}, None],
    },
    {
        "messages": [{"role": "user", "content": [{"type": "video", "video": "a.mp4", "start": 0.5, "max_frames": 6}]}],
        "solution": "1",
        "meta": {"station": "A", "video_fps": 1},
    },
    {**CLIP, "video": [{"video": ["1.png", "2.png"], "max_frames": 4}], "fps": 0.5},
    {**CLIP, "prompt": "<image>q", "video": None, "image": {"image": "c.png", "max_pixels": 784}, "thinking": "so"},
    {**CLIP, "prompt": "<image>q", "id": 7, "solution": " as written \n"},
    {"prompt": "<video>q (1) lid (2) fan", "video": "a.mp4", "timeline": [{"step": 1, "start": 0, "end": 0.5}]},
]


@pytest.mark.parametrize("row", ROWS_FOR_REWARDS)
def test_rewards_get_the_same_fields_of_a_converted_row(tmp_path, write_rows, row):
    records = read(write_rows([row], "a.json"))
    write_records(records, tmp_path / "b.jsonl")
    again = read(tmp_path / "b.jsonl")
    assert parts(again) == parts(records)
    (before,), (after,) = records, again
    assert columns(after) == columns(before)


def test_a_system_turn_that_a_flag_has_replaced_is_no_field(tmp_path, write_rows):
    records = read(write_rows([{"prompt": "q", "system": "Be brief.", "solution": "1"}], "a.json"), system="Be long.")
    write_records(records, tmp_path / "b.jsonl")
    (again,) = read(tmp_path / "b.jsonl")
    assert again.messages[0].text == "Be long." and "system" not in again.fields


def test_frame_settings_of_all_places_are_read_again(tmp_path, write_rows):
    """Every pair of settings, in an object, in ``meta`` and beside the turns, of a file and of a folder of frames."""
    (tmp_path / "folder").mkdir()
    values = dict.fromkeys(ROW_KEYS, 2) | {"frame_cnts": [1, 2], "frame_times": [0, 0.5], "dynamic_sample": True}
    values |= {"video_end": 3.5, "max_frames": 4, "resized_height": 28, "resized_width": 56}
    said = [("object", key) for key in sorted(ROW_KEYS)] + [("row", key) for key in sorted(ROW_KEYS)]
    said += [("meta", key) for key in META_KEYS]
    rows = []
    for clip, two in itertools.product(("a.mp4", "folder"), itertools.combinations(said, 2)):
        row = {"prompt": "<video>q", "solution": "1", "video": {"video": clip}}
        for place, key in two:
            holder = {"object": row["video"], "row": row, "meta": row.setdefault("meta", {"station": "A"})}[place]
            holder[key] = values[key]
        rows.append(row)
    records = read_good(write_rows(rows, "a.jsonl"))
    assert len(records) > 1500
    write_records(records, tmp_path / "b.jsonl")
    again = read(tmp_path / "b.jsonl")
    assert parts(again) == parts(records)
    assert [columns(record) for record in again] == [columns(record) for record in records]


def read_good(path):
    """The records of a file, without the rows that are refused."""
    file = RecordFile(DatasetSource("d", path, path.parent), seed=0)
    return [record for record in file.iterate() if isinstance(record, Record)]


def test_ids_of_clips_that_rows_share_stay_apart(tmp_path, write_rows):
    """A tag of a picture in a row with a clip: the id is that of the clip, as in LLaVA-Video-178K."""
    turns = [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "1"}]
    records = read(write_rows([{"id": 5, "conversations": turns, "video": "a.mp4"}] * 2, "a.json"))
    write_records(records, tmp_path / "b.jsonl")
    assert [record.id for record in read(tmp_path / "b.jsonl")] == [record.id for record in records] == ["a-0", "a-1"]


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


def test_numbers_that_json_lacks_are_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    row = {"prompt": "a", "solution": "b", "scores": [1.0, float("inf")]}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(RecordError, match=r"a.parquet\[0\]: has an infinite number or NaN, which JSON cannot hold"):
        write_records(read(tmp_path / "a.parquet"), tmp_path / "b.jsonl")


def first_records(tmp_path, *rows):
    """The records of files of one name in folders of their own, with a row each."""
    records = []
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "rows.json").write_text(json.dumps([{"prompt": "Which?", "solution": "x", **row}]))
        records.append(RecordFile(DatasetSource("rows", folder / "rows.json", folder), seed=0)[0])
    return records


def test_records_with_one_id_are_refused(tmp_path):
    rows = first_records(tmp_path, {}, {"id": "rows-0"})
    with pytest.raises(RecordError, match=r"1/rows.json\[0\]: has the id 'rows-0', as .*0/rows.json\[0\] has"):
        write_records(rows, tmp_path / "both.json")
    assert not (tmp_path / "both.json").exists()


def test_records_without_ids_in_files_of_one_name_get_ids_of_their_own(tmp_path):
    first, second, third = first_records(tmp_path, {}, {}, {"id": "rows-0-3"})
    write_records([first, second, first, third, second], tmp_path / "all.json")
    ids = [row["id"] for row in json.loads((tmp_path / "all.json").read_text())]
    assert ids == ["rows-0", "rows-0-2", "rows-0", "rows-0-3", "rows-0-2"]


def test_a_folder_of_frames_beside_its_clip_is_read_again(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (56, 56)).save(tmp_path / "a" / "1.png")
    (tmp_path / "a.mp4").touch()
    rows = [{"id": end, "prompt": "Which?", "solution": "1", "video": f"a{end}"} for end in ("/", ".mp4")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    read = lambda name: [*RecordFile(DatasetSource(name, tmp_path / name, tmp_path), seed=0)]
    records = read("rows.json")
    write_records(records, tmp_path / "made.json")
    assert [row["video"] for row in json.loads((tmp_path / "made.json").read_text())] == ["a/", "a.mp4"]
    assert [record.videos for record in read("made.json")] == [record.videos for record in records]
