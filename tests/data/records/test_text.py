"""Rows of text files: JSON arrays, JSON lines and CSV, sound and damaged."""

import csv
import gzip
import io
import itertools
import json
import os
import random
import re
import zipfile

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records import text as text_module
from qwenvl.data.records.sources import open_rows

ROWS = [{"id": "a", "prompt": "Naïve, “quoted”\nlines?", "solution": "1"}, {"id": "b", "prompt": "x", "solution": "2"}]


def rows_of(path):
    rows = open_rows(path)
    return [rows.row(i) for i in range(rows.length)]


def values(path):
    return [row.content for row in rows_of(path)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_json_is_recognized_by_content(tmp_path):
    for data in (json.dumps(ROWS, indent=1).encode(), lines(ROWS)):
        (tmp_path / "rows.txt").write_bytes(data)
        assert values(tmp_path / "rows.txt") == ROWS


@pytest.mark.parametrize("first", ["sep=;\r\n", '\ufeff"sep=;"\n', "SEP=;\n"])
def test_the_first_line_of_csv_may_name_the_sign_between_cells(tmp_path, first):
    """As Excel reads and other programs write it."""
    (tmp_path / "s.csv").write_text(f"{first}a,b;c\n1,5;x\n2;", encoding="utf-8", newline="")
    rows = rows_of(tmp_path / "s.csv")
    assert [row.content for row in rows] == [{"a,b": "1,5", "c": "x"}, {"a,b": "2"}]
    assert rows[1].where.endswith("s.csv:4")


@pytest.mark.parametrize(("name", "delimiter"), [("s.csv", ","), ("s.tsv", "\t")])
def test_csv_comes_back_to_the_letter_and_counts_lines_as_editors_do(tmp_path, name, delimiter):
    names = ["prompt", "solution", '50 %s of "é"']
    cells = [['a "b"', "c\\n%d\t", "ü\n日"], ["Naïve, “quoted”\nlines?", "", "%"], ["x", "y", "z"]]
    with open(tmp_path / name, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *cells])
    rows = rows_of(tmp_path / name)
    found = [{key: cell for key, cell in zip(names, row, strict=True) if cell} for row in cells]
    assert [row.content for row in rows] == found, "an empty cell is a missing value"
    assert [row.where.rpartition(":")[2] for row in rows] == ["2", "4", "6"]


def test_places_of_rows_count_blank_bad_and_multi_line_rows(tmp_path):
    """A row that spans lines, a blank line and a bad row all count."""
    (tmp_path / "s.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n"1\r\n2",x\r\n\r\nbad\r\n,"\xe2\x80\xa8"\r\n\xff,y\r\n')
    (tmp_path / "s.json").write_bytes(b'\xef\xbb\xbf[{"a":\r\n1}, NaN,\n\n"\\ud800", 123456789012345678901, "\xff"]')
    (tmp_path / "s.jsonl").write_bytes(b'\xef\xbb\xbf\n{"a": 1}\r\n \n{"a"\n"\xc2\x85"\n"\xff"')
    places = {"csv": [":2", ":5", ":6", ":7"], "json": [f"[{i}]" for i in range(5)], "jsonl": [":2", ":4", ":5", ":6"]}
    for kind, expected in places.items():
        path = tmp_path / f"s.{kind}"
        rows, found, ids = open_rows(path), [], {}
        for i in range(rows.length):
            try:
                row = rows.row(i)
                ids[i] = row.default_id
                found.append(row.where)
            except RecordError as error:
                found.append(str(error).partition(": ")[0])
        assert found == [f"{path}{place}" for place in expected]
        assert ids == {i: f"s-{int(expected[i][1:]) - 1 if kind == 'jsonl' else i}" for i in ids}
        with pytest.raises(RecordError, match=r"expected UTF-8 text, found b'\\xff'"):
            rows.row(rows.length - 1)


def test_a_file_replaced_while_open_is_read_as_it_was(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_bytes(lines(ROWS))
    rows = open_rows(path)
    (tmp_path / "new").write_bytes(lines([{"other": 1}] * 9))
    os.replace(tmp_path / "new", path)
    assert [rows.row(i).content for i in (1, 0)] == [ROWS[1], ROWS[0]]
    assert len(values(path)) == 9


def workbook():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("xl/workbook.xml"), "<workbook/>")  # of 1980, whatever the clock says
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("s.json.gz", gzip.compress(b"[1, 2, 3]"), "s.json.gz: no file of records: .*: unpack it"),
        ("s.csv", "é,b\nc,d\n".encode("latin-1"), "s.csv: expected UTF-8 text, found b'\\\\xe9'"),
        ("s.csv", b"video,prompt,video\na,b,c\n", "s.csv:1: video: a name of several columns"),
        ("s.csv", b"prompt,solution\na,b,c\n", "s.csv:2: expected 2 cells .*got 3$"),
        ("s.csv", b'a,b\n"1\n2",x\n3,"M5 screw\n4,lid\n', "s.csv:4: the quote before '\"M5 screw' .*nothing closes"),
        ("s.csv", b'a,b\n3,"M5 screw\n4,"lid"\n', "s.csv:2: the quote in '\"M5 screw' .*line 3 in front of 'lid"),
        ("s.csv", b'a,b\n3,"<answer>lid</ans', "s.csv:2: the quote before '\"<answer>lid</ans'"),
        ("s.csv", b'a,"b\n1,2\n', "s.csv:1: the quote before '\"b'"),
        ("s.csv", b'a,b\n1,"x""\n', "s.csv:2: .*nothing closes"),
        ("s.tsv", b'a\tb\n1\t"Lid" on\n', "s.tsv:2: the quote in .* in front of ' on'; .*twice"),
        ("s.csv", workbook(), "s.csv: no file of records: .*b'PK.*export the sheet"),
        ("s.json", json.dumps(ROWS).encode("utf-16"), "no file of records: .*expected JSON, JSON lines or CSV"),
        ("s.json", b"version https://git-lfs.github.com/spec/v1", "fetch the file itself with `git lfs pull`"),
        ("s.jsonl", b"1" * 5000, "s.jsonl:1: not valid JSON: .*4,300 digits"),
        ("s.json", b"[%s]" % (b"1" * 5000), r"s.json\[0\]: not valid JSON: an integer of .* at line 1 column 1"),
        ("s.jsonl", b'{}\n{"a": "\\ud800"}\n', r"s.jsonl:2: .*found \\ud800, half of a pair"),
        ("s.jsonl", b'"\\uD83D\\uDE00\\uDE00"', r"s.jsonl:1: .*found \\ude00, half of a pair"),
        ("s.jsonl", b'{"a": 1, "b": 2, "a": 3}', 's.jsonl:1: .*key "a" stands twice'),
        ("s.jsonl", b'{"meta": {"x": 1, "x": 1}}', 'the key "x" stands twice'),
    ],
    ids=itertools.count(),  # archives hold the time, by which processes would name the tests differently
)
def test_damaged_files_and_files_of_other_kinds_are_refused_with_the_reason(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecordError, match=message):
        values(tmp_path / name)


def test_a_pipe_or_a_device_is_not_read_from(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.symlink("/dev/zero", tmp_path / "zero.jsonl")
    for name in ("pipe.jsonl", "zero.jsonl"):
        with pytest.raises(RecordError, match=f"{name}: expected a regular file"):
            open_rows(tmp_path / name)


def test_more_than_fits_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "MAX_BYTES", 2**20)
    for name, data in (("a.csv", b"a,b\n" + b"a,bcdefgh\n" * 2**16), ("a.json", b'["' + b" " * 2**21)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordError, match=f"{name}: more than 0 GB; .* write JSON lines"):
            rows_of(tmp_path / name)


# Elements of arrays, compared with the standard library's reading of the whole text


def elements(tmp_path, text: str) -> list:
    (tmp_path / "s.json").write_text(text, encoding="utf-8")
    return values(tmp_path / "s.json")


def some_value(draw: random.Random, depth: int = 0):
    kind = draw.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [some_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {f"k{i}é": some_value(draw, depth + 1) for i in range(draw.randrange(4))}
    text = "".join(draw.choice('a"\\\n\u2028é🎬[]{},:') for _ in range(draw.randrange(30)))
    return [None, True, draw.random() * 10 ** draw.randrange(-30, 30), draw.randrange(10**9), text][kind]


def test_every_element_of_a_json_array_is_found(tmp_path):
    for seed in range(20):
        draw = random.Random(seed)
        found = [some_value(draw) for _ in range(draw.randrange(8))]
        plain = {"ensure_ascii": draw.random() < 0.5, "indent": draw.choice([None, 3])}
        assert elements(tmp_path, json.dumps(found, **plain)) == found
    odd = [1, 1.7e308, 2**100, -0.0, {"a": [-1e-300, 10**-300]}]
    assert elements(tmp_path, json.dumps(odd)) == odd
    assert repr(elements(tmp_path, "[NaN, 1e-400]")) == "[nan, 0.0]"


@pytest.mark.parametrize(
    ("text", "found", "message"),
    [
        ("[1, 23", [1, 23], "the file ends within the array at line 1 column 7"),
        ('["a" "b"]', ["a"], "expected , or ], found '\"' at line 1 column 6"),
        ("[1] [2]", [1], "text after the end of the array at line 1 column 5"),
        ('[{"a": tru}]', [], "Expecting value at line 1 column 8"),
        ('[{"a": 1},\n\r\n {"b": "c', [{"a": 1}], "Unterminated string starting at line 3 column 8"),
        ("[1,\n ", [1], "Expecting value at line 2 column 2"),
        ("[1,\n]", [1], "Expecting value at line 2 column 1"),
        ('["é🎬", x]', ["é🎬"], "Expecting value at line 1 column 8"),
        ("[" + "[" * 200_000, [], "nested too deeply at line 1 column 1"),
    ],
)
def test_a_damaged_json_array_is_refused_at_its_line_and_column(text, found, message, tmp_path):
    (tmp_path / "s.json").write_bytes(text.encode())
    with pytest.raises(RecordError, match=re.escape(f"s.json[{len(found)}]: not valid JSON: {message}")):
        open_rows(tmp_path / "s.json")
