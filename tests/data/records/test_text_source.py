"""Files that hold no records, or too much of nothing, are refused before memory is spent on them."""

import gzip
import io
import json
import os
import zipfile

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records import json_array, text_source
from qwenvl.data.records import text as text_rows
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.formats import open_rows
from qwenvl.data.records.record_file import RecordFile, open_records

ROW = {"prompt": "a", "solution": "1"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(path):
    return open_records(DatasetSource(path.name, path, path.parent), seed=0)


def test_a_pipe_or_a_device_is_not_read_from(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.symlink("/dev/zero", tmp_path / "zero.jsonl")
    for name in ("pipe.jsonl", "zero.jsonl"):
        with pytest.raises(RecordError, match=f"{name}: expected a regular file, this is a pipe, socket or device"):
            open_rows(tmp_path / name)


def workbook():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (workbook(), r"it is a workbook \(.xlsx\) or another zip archive: export the sheet as CSV"),
        (json.dumps([ROW]).encode("utf-16"), "it is UTF-16 text: save it as UTF-8"),
        (b"\x28\xb5\x2f\xfd....", "it is a zstd file: unpack it"),
        (b"\x01\x02\0\0", r"it holds binary data, such as b'\\x01\\x02\\x00\\x00'"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_first_bytes(tmp_path, data, message):
    for name, written in (("a.csv", data), ("a.jsonl.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(RecordError, match=f"{name}: no file of records: {message}"):
            read(tmp_path / name)


def test_gigabytes_of_spaces_in_a_small_file_end_at_the_first_megabyte(tmp_path, cache, monkeypatch):
    for module in (text_source, text_rows):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 2**22)
    nothing = b" " * (3 * 2**20)
    row = json.dumps(ROW).encode()
    files = {
        "alone.jsonl.gz": (nothing * 3, "more than 1 MB of white space"),
        "after.jsonl.gz": (row + b'\n"' + nothing * 3, "the row is longer than 4 MB"),
        "lines.jsonl.gz": (row + b"\n" * 2**22, "more than 1 MB of white space"),
        "array.json.gz": (
            b"[" + row + b"," + nothing * 3 + row + b"]",
            "more than a million characters of white space",
        ),
        "cells.csv.gz": (b"prompt,solution\na," + nothing * 3 + b"\n", "the row is longer than 4 MB"),
    }
    for name, (data, message) in files.items():
        (tmp_path / name).write_bytes(gzip.compress(data, 1))
        for stream_above in (2**40, 0):
            with pytest.raises(RecordError, match=message):
                source = DatasetSource(name, tmp_path / name, tmp_path)
                open_records(source, seed=0, stream_above=stream_above)
    assert not [file for file in cache.rglob("*") if file.is_file()], "no part of a copy is left"


def test_an_element_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "MAX_CHARACTERS", 2**20)
    (tmp_path / "a.json").write_text('[{"prompt": "' + "a" * 2**22)
    with pytest.raises(RecordError, match=r"a.json\[0\]: not valid JSON: an element of more than 1 million characters"):
        read(tmp_path / "a.json")


def test_rows_that_python_would_read_otherwise_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    good = json.dumps(ROW)
    for text, message in (
        ('{"id": "\\ud800", "prompt": "a", "solution": "1"}', r"found \\ud800, half of a pair without the other"),
        ('{"id": "\\uD83D\\uDE00\\uDE00", "prompt": "a", "solution": "1"}', r"found \\ude00, half of a pair"),
        (f'{{"id": {"1" * 5000}, "prompt": "a", "solution": "1"}}', "an integer of more than 4,300 digits"),
        ('{"prompt": "a", "solution": "1", "prompt": "b"}', 'the key "prompt" stands twice in one object'),
        ('{"prompt": "a", "solution": "1", "meta": {"x": 1, "x": 1}}', 'the key "x" stands twice'),
    ):
        path.write_text(f"{good}\n{text}\n")
        with pytest.raises(RecordError, match=rf"a.jsonl:2: .*{message}"):
            read(path)
    path.write_text('{"id": "\\ud83d\\ude00", "prompt": "a", "solution": "1"}\n')
    assert read(path)[0].id == "😀"


def test_the_places_of_lines_are_those_of_reading_them(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "_BLOCK", 7)
    path = tmp_path / "lines"
    for data in (b"", b"\n", b"a", b"\xef\xbb\xbfab\n\n  \r\n  cdefghijkl\r\nm", b"a\n" * 9, b"\n\nabcdefghijklmnop\n"):
        path.write_bytes(data)
        with open(path, "rb") as file:
            expected = [(number, line) for number, line in text_source.lines_of(file, "lines")]
        found = [(number, data[start:].split(b"\n")[0]) for number, start in text_source.line_places(path).tolist()]
        assert found == [(number, line.removesuffix(b"\n")) for number, line in expected]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.csv"])
def test_a_file_of_many_records_is_streamed(tmp_path, name):
    rows = [{"id": f"{i:04}", "prompt": "which?", "solution": "1"} for i in range(40)]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    text = json.dumps(rows) if name == "a.json" else lines
    if name == "a.csv":
        text = "id,prompt,solution\n" + "".join(f"{row['id']},which?,1\n" for row in rows)
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    source = DatasetSource(name, tmp_path / name, tmp_path)
    assert isinstance(open_records(source, seed=0, stream_above_records=40), list)
    streamed = open_records(source, seed=0, stream_above_records=39)
    assert isinstance(streamed, RecordFile)
    assert [record.id for record in streamed] == [row["id"] for row in rows]


def test_records_spread_over_a_streamed_file_are_checked_at_once(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(ROW) for _ in range(30)) + '\n{"prompt": "a"}\n')
    with pytest.raises(RecordError, match=r"a.jsonl:31: expected a `solution`"):
        open_records(DatasetSource("a", path, tmp_path), seed=0, stream_above_records=9)
