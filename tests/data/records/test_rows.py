"""The same rows in every kind of file."""

import gzip
import json

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.rows import open_rows

ROWS = [{"id": "a", "prompt": "Naïve, “quoted”\nlines?", "solution": "1"}, {"id": "b", "prompt": "x", "solution": "2"}]


def values(path):
    return [row.value for row in open_rows(path)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("name", ["array.txt", "lines.txt", "array.gz", "lines.gz"])
def test_json_is_told_by_content_zipped_or_not(tmp_path, name):
    data = json.dumps(ROWS, indent=1).encode() if "array" in name else lines(ROWS)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert values(tmp_path / name) == ROWS


def test_places_and_default_ids(tmp_path):
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(b"\n" + lines(ROWS)))
    rows = list(open_rows(tmp_path / "s.jsonl.gz"))
    assert [row.where for row in rows] == [f"{tmp_path}/s.jsonl.gz:2", f"{tmp_path}/s.jsonl.gz:3"]
    assert [row.default_id for row in rows] == ["s-1", "s-2"]


@pytest.mark.parametrize(("name", "delimiter"), [("s.csv", ","), ("s.tsv", "\t")])
def test_csv_with_quoted_line_breaks_counts_lines_as_editors_do(tmp_path, name, delimiter):
    import csv

    with open(tmp_path / name, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "prompt", "solution", "image"])
        writer.writerows([*row.values(), ""] for row in ROWS)
    rows = list(open_rows(tmp_path / name))
    assert [row.value for row in rows] == ROWS, "an empty cell is a missing value"
    assert [row.where.rpartition(":")[2] for row in rows] == ["2", "4"]


def test_a_csv_line_of_another_length_is_an_error_of_that_line(tmp_path):
    (tmp_path / "s.csv").write_text("prompt,solution\na,b,c\nd,e\n")
    first, second = open_rows(tmp_path / "s.csv")
    assert isinstance(first.value, RecordError)
    assert str(first.value).endswith("s.csv:2: expected 2 cells as in the first line, got 3")
    assert second.value == {"prompt": "d", "solution": "e"}


def test_parquet_and_saved_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{**ROWS[0], "image": {"bytes": b"\x89PNG", "path": None}}, ROWS[1]])
    table.to_parquet(tmp_path / "s.parquet")
    table.save_to_disk(tmp_path / "saved")
    for source in ("s.parquet", "saved"):
        first, second = open_rows(tmp_path / source)
        assert first.value == {**ROWS[0], "image": {"bytes": b"\x89PNG", "path": None}}
        assert second.value == ROWS[1], "a column without a value is one that the row does not have"
        assert (first.where, second.default_id) == (f"{tmp_path / source}[0]", f"{source.partition('.')[0]}-1")


def test_pictures_of_a_saved_data_set_stay_the_bytes_they_are(tmp_path):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    Image.new("RGB", (2, 2), "red").save(tmp_path / "a.png")
    features = datasets.Features({"images": datasets.List(datasets.Image()), "image": datasets.Image()})
    row = {"images": [str(tmp_path / "a.png")], "image": str(tmp_path / "a.png")}
    datasets.Dataset.from_list([row], features=features).save_to_disk(tmp_path / "saved")
    (read,) = values(tmp_path / "saved")
    png = (tmp_path / "a.png").read_bytes()
    assert read["images"][0]["bytes"] == png
    assert read["image"]["bytes"] == png


def test_splits_are_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(RecordError, match="holds the splits train; name the folder of one of them"):
        open_rows(tmp_path / "saved")
    assert values(tmp_path / "saved" / "train") == ROWS


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("s.parquet", b"PAR1 and then nonsense", "s.parquet: not a readable parquet file"),
        ("s.json.gz", gzip.compress(b"[1, 2, 3]" * 1000)[:40], "s.json.gz: damaged gzip file"),
        ("s.csv", "é,b\nc,d\n".encode("latin-1"), "s.csv: expected UTF-8 text, found b'\\\\xe9'"),
        ("s.csv", b"video,prompt,video\na,b,c\n", "s.csv:1: video: a name of several columns; rename them"),
        ("s", None, "s: expected a data set written by `save_to_disk`"),
    ],
)
def test_damaged_files(tmp_path, name, data, message):
    (tmp_path / name).mkdir() if data is None else (tmp_path / name).write_bytes(data)
    with pytest.raises(RecordError, match=message):
        list(open_rows(tmp_path / name))


def test_a_damaged_array_gives_the_rows_before_the_damage(tmp_path):
    (tmp_path / "s.json").write_text('[{"a": 1},\n {"a": 2},\n {"a"; 3}]')
    rows = open_rows(tmp_path / "s.json")
    assert [row.value for row in rows] == [{"a": 1}, {"a": 2}]
    place = "s.json[2]: not valid JSON: Expecting ':' delimiter at line 3 column 6;"
    assert place in str(rows.damage)


def test_a_very_long_line_is_a_line_like_others(tmp_path):
    long = {"prompt": "x" * 20_000_000, "solution": "1"}
    (tmp_path / "s.jsonl").write_bytes(lines([long, ROWS[0]]))
    assert [len(value["prompt"]) for value in values(tmp_path / "s.jsonl")] == [20_000_000, len(ROWS[0]["prompt"])]
