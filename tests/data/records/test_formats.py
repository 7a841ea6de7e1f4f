"""The same rows in every kind of file."""

import csv
import gzip
import json

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.formats import open_rows

ROWS = [{"id": "a", "prompt": "Naïve, “quoted”\nlines?", "solution": "1"}, {"id": "b", "prompt": "x", "solution": "2"}]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))


def values(path):
    return [row.read() for row in open_rows(path)]


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

    with open(tmp_path / name, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "prompt", "solution", "image"])
        writer.writerows([*row.values(), ""] for row in ROWS)
    rows = list(open_rows(tmp_path / name))
    assert [row.read() for row in rows] == ROWS, "an empty cell is a missing value"
    assert [row.where.rpartition(":")[2] for row in rows] == ["2", "4"]


def test_cells_and_names_of_csv_are_kept_to_the_letter(tmp_path):
    names, full, gap = ["prompt", "solution", '50 %s of "é"'], ['a "b"', "c\\n%d\t", "ü\n日"], ["d", "", "%"]
    with open(tmp_path / "s.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, full, gap])
    first, second = open_rows(tmp_path / "s.csv")
    assert first.read() == dict(zip(names, full, strict=True))
    assert second.read() == {"prompt": "d", names[2]: "%"}


def test_a_csv_line_of_another_length_is_an_error_of_that_line(tmp_path):
    (tmp_path / "s.csv").write_text("prompt,solution\na,b,c\nd,e\n")
    first, second = open_rows(tmp_path / "s.csv")
    with pytest.raises(RecordError, match=r"s.csv:2: expected 2 cells as in the first line, got 3$"):
        first.read()
    assert second.read() == {"prompt": "d", "solution": "e"}


def test_parquet_and_saved_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{**ROWS[0], "image": {"bytes": b"\x89PNG", "path": None}}, ROWS[1]])
    table.to_parquet(tmp_path / "s.parquet")
    table.save_to_disk(tmp_path / "saved")
    for source in ("s.parquet", "saved"):
        first, second = open_rows(tmp_path / source)
        assert first.read() == {**ROWS[0], "image": {"bytes": b"\x89PNG", "path": None}}
        assert second.read() == ROWS[1], "a column without a value is one that the row does not have"
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
        ("s.json.gz", gzip.compress(b"[1, 2, 3]" * 1000, mtime=0)[:40], "s.json.gz: damaged gzip file"),
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
    rows, read = open_rows(tmp_path / "s.json"), []
    with pytest.raises(RecordError, match=r"s.json\[2\]: not valid JSON: Expecting ':' delimiter at line 3 column 6;"):
        read.extend(row.read() for row in rows)
    count, damage = rows.count()
    assert (read, count) == ([{"a": 1}, {"a": 2}], 2)
    assert "at line 3 column 6; what follows in the file can't be read" in str(damage)


def test_a_number_too_long_for_python_is_named(tmp_path):
    (tmp_path / "s.jsonl").write_text("1" * 5000)
    (tmp_path / "s.json").write_text(f"[{'1' * 5000}]")
    with pytest.raises(RecordError, match=r"s.jsonl:1: not readable JSON: an integer of more than 4,300 digits"):
        values(tmp_path / "s.jsonl")
    with pytest.raises(
        RecordError, match=r"s.json\[0\]: not valid JSON: an integer of more than 4,300 digits at line 1 column 2;"
    ):
        values(tmp_path / "s.json")


def test_text_that_is_not_utf8_is_an_error_of_its_row(tmp_path):
    (tmp_path / "s.json").write_bytes(b'["\xff", "b"]')
    (tmp_path / "s.jsonl").write_bytes(b'"\xff"\n"b"\n')
    (tmp_path / "s.csv").write_bytes(b"a\n\xff\nb\n")
    for name, place, good in (("s.json", "[0]", "b"), ("s.jsonl", ":1", "b"), ("s.csv", ":2", {"a": "b"})):
        for rows in (list(open_rows(tmp_path / name)), open_rows(tmp_path / name).at_random()):
            with pytest.raises(RecordError) as error:
                rows[0].read()
            assert str(error.value) == f"{tmp_path / name}{place}: expected UTF-8 text, found b'\\xff'"
            assert rows[1].read() == good


def test_rows_read_at_random_are_those_read_in_order(tmp_path):
    """Also where a row spans lines, a line is blank, and a row is bad."""
    (tmp_path / "s.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n"1\r\n2",x\r\n\r\nbad\r\n,"\xe2\x80\xa8"\r\n')
    (tmp_path / "s.json").write_bytes(b'\xef\xbb\xbf[{"a":\r\n1}, NaN,\n\n"\\ud800", 123456789012345678901]')
    (tmp_path / "s.jsonl").write_bytes(b'\xef\xbb\xbf\n{"a": 1}\r\n \n{"a"\n"\xc2\x85"')
    for name in ("s.csv", "s.json", "s.jsonl"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    for name in ("s.csv", "s.json", "s.jsonl", "s.csv.gz", "s.json.gz", "s.jsonl.gz"):
        in_order, at_random = list(open_rows(tmp_path / name)), open_rows(tmp_path / name).at_random()
        assert open_rows(tmp_path / name).count() == (len(in_order), None)
        assert [shown(row) for row in in_order] == [shown(row) for row in at_random], name
        assert [row.where.rpartition(name)[2] for row in in_order] == {
            "csv": [":2", ":5", ":6"],
            "json": ["[0]", "[1]", "[2]", "[3]"],
            "jsonl": [":2", ":4", ":5"],
        }[name.split(".")[1]]
    assert list((tmp_path / "cache").rglob("*.jsonl")), "of all but plain JSON lines there is a copy"


def shown(row):
    try:
        return (row.where, row.default_id, repr(row.read()))
    except RecordError as error:
        return (row.where, row.default_id, str(error))


def test_a_very_long_line_is_a_line_like_others(tmp_path):
    long = {"prompt": "x" * 20_000_000, "solution": "1"}
    (tmp_path / "s.jsonl").write_bytes(lines([long, ROWS[0]]))
    assert [len(value["prompt"]) for value in values(tmp_path / "s.jsonl")] == [20_000_000, len(ROWS[0]["prompt"])]
