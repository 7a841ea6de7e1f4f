import json
import pickle

import pytest

from qwenvl.data.catalog import DatasetSource
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.record_file import JoinedRecords, RecordFile, is_large
from qwenvl.data.records import ReadOptions, read_records


@pytest.fixture
def lines(tmp_path, make_row):
    path = tmp_path / "data.jsonl"
    rows = [json.dumps(make_row(prompt=f"Naïve {i}?", id=i if i % 2 else None), ensure_ascii=False) for i in range(9)]
    path.write_text("\ufeff" + "\n\n".join(rows), encoding="utf-8")  # a byte order mark, blank lines, no last line end
    return DatasetSource("data", path, tmp_path)


def test_every_row_is_the_one_that_a_full_reading_gives(lines):
    records, lazy = read_records(lines, seed=0), RecordFile(lines, seed=0)
    assert [lazy[i] for i in (8, 0, 3)] == [records[i] for i in (8, 0, 3)]
    assert list(lazy) == records
    assert list(pickle.loads(pickle.dumps(lazy))) == records


def test_the_same_share_of_the_rows(lines):
    third = DatasetSource("data", lines.annotation_path, lines.media_root, 33.0)
    assert list(RecordFile(third, seed=4)) == read_records(third, seed=4)


def test_bad_rows_are_errors_when_asked_for(lines):
    path = lines.annotation_path
    path.write_text(path.read_text() + '\n{"a": \n{"prompt": "b"}\n')
    lazy = RecordFile(lines, seed=0, check_record=lambda record: "no" if "8" in record.messages[0].text else None)
    assert len(lazy) == 11
    assert lazy[7].messages
    for index, message in (
        (8, "data.jsonl:17: no"),
        (9, "data.jsonl:18: not valid JSON"),
        (10, "expected a `solution`"),
    ):
        with pytest.raises(RecordError, match=message):
            lazy[index]


def test_options_reach_the_rows(lines):
    assert RecordFile(lines, seed=0, options=ReadOptions(system="Be brief."))[0].messages[0].text == "Be brief."


def test_a_data_set_of_lazy_and_read_files(lines, write_rows, make_row):
    names = f"{lines.annotation_path},{write_rows([make_row(id='z')], 'other.jsonl')}"
    whole, lazy = load_dataset(names), load_dataset(names, stream=True)
    assert [record.id for record in lazy.records] == [record.id for record in whole.records]
    assert lazy[9].record.id == lazy[-1].record.id == "z"
    with pytest.raises(IndexError, match="expected a record from 0 to 9, got 10"):
        JoinedRecords([whole.records])[10]


def test_what_counts_as_large(lines, monkeypatch, tmp_path):
    assert not is_large(lines.annotation_path)
    monkeypatch.setattr("qwenvl.data.record_file.STREAM_BYTES", 100)
    assert is_large(lines.annotation_path)
    (tmp_path / "array.json").write_text("[" + " " * 200 + "]")
    assert not is_large(tmp_path / "array.json")


def test_only_json_lines_can_be_streamed(write_rows, make_row):
    with pytest.raises(RecordError, match=r"data.json: only JSON lines.* convert it: qwenvl data convert"):
        load_dataset(str(write_rows([make_row()])), stream=True)


def test_an_empty_file(tmp_path):
    (tmp_path / "data.jsonl").write_text("{}\n")
    assert len(RecordFile(DatasetSource("data", tmp_path / "data.jsonl", tmp_path), seed=0)) == 1
    (tmp_path / "data.jsonl").write_text("\n \n")
    with pytest.raises(RecordError, match="no records in the file"):
        RecordFile(DatasetSource("data", tmp_path / "data.jsonl", tmp_path), seed=0)
