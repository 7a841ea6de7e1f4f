"""Files of others, as their authors write them, are told by their first row and become records that are scored."""

import json
import math
from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.choices import options_of
from qwenvl.data.records.chosen import chosen
from qwenvl.data.records.parse import ReadOptions, read_row
from qwenvl.data.records.presets import guessed, our_row
from qwenvl.data.records.record_file import RecordFile
from qwenvl.data.records.sources import open_rows
from qwenvl.rewards import build_rubric
from tests.foreign_files import CHOICE, FILES, VIDEO_MME, write_all


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file in the format of each preset, with its clips."""
    return write_all(tmp_path_factory.mktemp("foreign"))


def records_of(path, **options):
    [source] = resolve_datasets(str(path))
    return RecordFile(source, seed=0, options=ReadOptions(**options)).load()


@pytest.mark.parametrize("name", FILES)
def test_the_format_of_each_foreign_file_is_detected_and_its_records_read(name, files):
    expected = FILES[name]
    [source] = resolve_datasets(str(files[name]))
    file = RecordFile(source, seed=0)
    assert file.read_as == expected.format
    records = [record for record in file]
    assert len(records) == expected.count
    assert (records[0].messages[-1].text, records[0].solution) == (expected.prompt, expected.solution)
    rubric = build_rubric(["by_problem_type"])
    for record in records:
        assert len(record.videos) + len(record.images) == 1
        assert all(Path(path).is_file() for path in (*record.videos, *record.images)), "with the ending on the disk"
        assert all(path.startswith(str(files[name].parent)) for path in (*record.videos, *record.images))
        assert rubric.check_record(record) is None
        columns = {"solution": [record.solution], "problem_type": [record.fields["problem_type"]]}
        assert rubric.score([record.solution], columns).total.tolist() == [pytest.approx(1)], "the solution is right"
        assert "thinking" not in record.fields or record.fields["thinking"] == "It moves to the right."
    by_name = RecordFile(source, seed=0, options=ReadOptions(format=expected.format))
    assert [record for record in by_name] == records and by_name.read_as is None


def test_records_of_presets_keep_bounds_solutions_and_sources(files):
    [stretch] = records_of(files["mvbench"])
    assert (stretch.clip_meta[0].video_start, stretch.clip_meta[0].video_end) == (0.5, 1.5)
    turned = records_of(files["activitynet"])[1]
    assert turned.solution == "<answer>0.5 to 1.9</answer>", "an entry whose times are the wrong way round"
    assert turned.where.endswith("activitynet.json: v_QOlSCBRmfWY[1]") and turned.fields["duration"] == 2.0
    assert records_of(files["label-studio"])[0].fields["source_id"] == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            CHOICE | {"answer": "E"},
            "read as question-answer: answer: 'E' is none of the options A. Apples., B.",
        ),
        (CHOICE | {"options": "A. x"}, "read as question-answer: options: expected a list of options"),
        (CHOICE | {"question": 3}, "read as question-answer: question: expected text, got number 3"),
        (VIDEO_MME | {"videoID": None}, "read as videomme: videoID: expected text, got nothing"),
        (
            {"annotations": [], "data": {"video": "a.mp4"}},
            "read as label-studio: annotations: expected one that is not",
        ),
        ({"video_id": "1", "question": "Which?", "answer": "A"}, "video_id: seems to name a clip or picture"),
        (
            {"problem": "?", "problem_type": "OCR", "solution": "x", "path": "a.mp4"},
            'data_type: expected "video" or "image"',
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_format_and_key(row, message, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    with pytest.raises(RecordError) as caught:
        records_of(tmp_path / "rows.json")
    assert str(caught.value).startswith(f"{tmp_path}/rows.json[0]") and message in str(caught.value)


def test_a_row_that_several_formats_fit_is_not_guessed():
    row = {"problem": "Who?", "answer": "A man.", "problem_type": "free-form", "solution": "A man."}
    with pytest.raises(RecordError, match=r"video-r1 or as easyr1; .*--format video-r1"):
        guessed(row, "rows.json[0]")


def test_a_text_file_of_another_encoding_is_refused(tmp_path):
    (tmp_path / "sta.txt").write_bytes("a 1.0 3.0##opens the caf\u00e9 door\n".encode("cp1252"))
    with pytest.raises(RecordError, match=r"sta.txt: expected UTF-8 text, found b'\\xe9'"):
        records_of(tmp_path / "sta.txt")


@pytest.mark.parametrize("row", [{"question": "Which?", "answer": math.nan}, {"prompt": "?", "solution": math.nan}])
def test_a_missing_value_of_a_table_is_none(row, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"video": "a.mp4", "score": math.nan}))
    if "answer" in row:
        with pytest.raises(RecordError, match="answer: expected text or a number, got nothing"):
            records_of(tmp_path / "rows.jsonl")
    else:
        [record] = records_of(tmp_path / "rows.jsonl")
        assert (record.solution, record.fields["score"]) == ("", None)


@pytest.mark.parametrize("solution", ["<answer>(1) a", "(1) a</answer>", "<answer>1</answer><answer>2</answer>"])
def test_a_solution_with_half_an_answer_block_or_two_is_refused(solution, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": "Which?", "solution": solution}]))
    with pytest.raises(RecordError, match=r"rows.json\[0\]: the solution has . <answer> and . </answer>; expected one"):
        records_of(tmp_path / "rows.json")
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "Which?", "answer": solution}]))
    with pytest.raises(RecordError, match=r"answer: has . <answer> and . </answer>; expected one"):
        records_of(tmp_path / "rows.json")


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("What was the score at half time?", "2-1", "free-form"),
        ("When was it built?", "1990-1995", "free-form"),
        ("When did the team win?", "2-1", "free-form"),
        ("How many at the moment?", "3 to 5", "free-form"),
        ("Which screws does he fasten in the first 10 seconds?", "1 and 3", "free-form"),
        ("Which steps are shown when the lid is open?", "[2, 4]", "free-form"),
        ("How many seconds does it take?", "3-5", "free-form"),
        ("What does the display show when it starts?", "12:30-13:00", "free-form"),
        ("When does it fall?", "3.5 to 8", "temporal grounding"),
        ("When does it fall?", "0:03 - 0:08", "temporal grounding"),
        ("At what time does it fall?", "3 s to 8 s", "temporal grounding"),
        ("When does it fall?", "[3, 8]", "temporal grounding"),
        ("When does it fall?", [3, 8], "temporal grounding"),
        ("When does it fall?", "12-15", "temporal grounding"),
        ("When does it fall?", "3 to 80", "temporal grounding"),
        ("In which seconds does it fall?", "3-8", "temporal grounding"),
    ],
)
def test_two_numbers_are_a_span_where_nothing_else_is_asked_for(question, answer, kind):
    made = our_row("question-answer", {"question": question, "answer": answer, "video": "a.mp4"}, "d")
    assert made.row["problem_type"] == kind
    expected = ["a span as words"] if kind == "free-form" else []
    if answer in ("12-15", "3 to 80"):
        expected = ["whole numbers as seconds"]
    assert [hint.kind for hint in made.hints] == expected


def test_a_clip_without_its_ending_is_the_one_file_of_that_name(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"video": "a", "prompt": "Which?", "solution": "1"}]))
    (tmp_path / "a.mkv").touch()
    assert records_of(tmp_path / "rows.json")[0].videos == (str(tmp_path / "a.mkv"),)
    (tmp_path / "a").mkdir()
    with pytest.raises(RecordError, match=r"rows.json\[0\].*'a' may be a or a.mkv; write the ending, or / behind a"):
        records_of(tmp_path / "rows.json")
    (tmp_path / "rows.json").write_text(json.dumps([{"video": "a/", "prompt": "Which?", "solution": "1"}]))
    assert records_of(tmp_path / "rows.json")[0].videos == (str(tmp_path / "a"),)
    (tmp_path / "a").rmdir()
    (tmp_path / "a.mp4").touch()
    (tmp_path / "rows.json").write_text(json.dumps([{"video": {"path": "a"}, "prompt": "Which?", "solution": "1"}]))
    with pytest.raises(RecordError, match=r"'a' may be a.mp4 or a.mkv"):
        records_of(tmp_path / "rows.json")


def test_format_names_a_preset_or_turns_detection_off(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(
        json.dumps([{"question": "Which?", "answer": "B", "choices": {"A": "x", "B": "y"}, "video": "a.mp4"}])
    )
    assert "\nB. y\n" in records_of(path)[0].messages[0].text
    with pytest.raises(RecordError, match="expected an object with `conversations`, `messages` or `prompt`"):
        records_of(path, format="qwenvl")
    with pytest.raises(RecordError, match="read as easyr1: problem: expected text, got nothing"):
        records_of(path, format="easyr1")
    with pytest.raises(ValueError, match="no format 'easyr'; did you mean easyr1"):
        records_of(path, format="easyr")


def test_a_catalog_names_the_format_of_a_data_set(tmp_path, files):
    catalog = tmp_path / "datasets.yaml"
    entry = f"annotation_path: {files['options']}"
    catalog.write_text(f"bench: {{{entry}, format: question-answer}}\nother: {{{entry}, format: qwenvl}}\n")
    bench, other = (resolve_datasets(name, catalog)[0] for name in ("bench", "other"))
    assert len(RecordFile(bench, seed=0, options=ReadOptions(format="question-answer")).load()) == 1, "before the flag"
    with pytest.raises(RecordError):
        RecordFile(other, seed=0).load()
    catalog.write_text(f"bench: {{{entry}, format: easyr}}\n")
    with pytest.raises(ValueError, match=r"datasets\.yaml: bench: format: no format 'easyr'; did you mean easyr1\?"):
        resolve_datasets("bench", catalog)


def test_columns_are_renamed_before_the_format_is_guessed(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"q": "Which?", "answer": "yes", "video": "a.mp4"}]))
    [record] = records_of(tmp_path / "rows.json", columns={"q": "question"})
    assert record.fields["problem_type"] == "yes or no"
    [record] = records_of(tmp_path / "rows.json", columns={"q": "prompt", "answer": "solution"})
    assert record.messages[0].text == "<video>Which?", "one of our own forms: nothing is added"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"data": 3}', '{"data": []}', '{\n"a": {"timestamps": [[1, 2]]}\n}', "{\n"]
)
def test_a_file_of_one_object_without_records_is_refused(text, tmp_path):
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(RecordError):
        records_of(tmp_path / "rows.json")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sta.txt", "3MSZA 1.0 2.0##a\n\n3MSZA 1.0##b\n", "sta.txt:3: read as charades-sta: start: expected seconds"),
        (
            "net.json",
            '{"v_a": {"timestamps": [[0, 1]], "sentences": ["a", "b"]}}',
            r"net.json: v_a\[1\]: read as activitynet: timestamp: .*got nothing",
        ),
    ],
)
def test_a_sentence_without_its_times_is_refused_with_its_place(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordError, match=message):
        records_of(tmp_path / name)


def test_letters_before_options_are_taken_off_only_where_they_are_in_order():
    assert options_of(["(A) x", "(B) y"]).texts == {"A": "x", "B": "y"}
    assert options_of(["J. x", "M. y"]).texts == {"A": "J. x", "B": "M. y"}
    options = options_of(["3", "1", "B"])
    assert [chosen(answer, options) for answer in ("3", 1, "Option B", "A", "(A) 3", "C. B", "A, C")] == [
        "A",
        "B",
        "B",
        "A",
        "A",
        "C",
        "A, C",
    ]
    with pytest.raises(ValueError, match="'B' is the letter of an option and the text of option C"):
        chosen("B", options)


def test_a_prompt_that_says_how_to_answer_gets_no_second_request(files, tmp_path):
    [record] = records_of(files["options"], prompt_template="{prompt}\nSay it as <answer>letter</answer>.")
    assert record.messages[0].text == "<video>What moves?\nA. Apples.\nB. Squares.\nSay it as <answer>letter</answer>."
    [record] = records_of(files["options"], system="Answer in <answer> </answer>.")
    assert record.messages[1].text == "<video>What moves?\nA. Apples.\nB. Squares."
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "In <answer>?", "answer": 3, "A": "1", "B": "3"}]))
    assert records_of(tmp_path / "rows.json")[0].messages[0].text == "In <answer>?\nA. 1\nB. 3"


@pytest.mark.parametrize(
    "answer", ["[[3.5, 8], [9, 12]]", "(3.5, 8)", "3.5 and 8", "1m20s to 1m40s", "from 3 s to 8 s and from 9 s to 12 s"]
)
def test_an_answer_of_times_alone_is_a_span_in_every_notation(answer):
    row = {"question": "When does it fall?", "answer": answer, "video": "a.mp4"}
    assert our_row("question-answer", row, "d").row["problem_type"] == "temporal grounding"


def test_small_numbers_are_numbers():
    row = {"question": "How much?", "answer": 1e-07, "video": "a.mp4"}
    assert our_row("question-answer", row, "d").row["problem_type"] == "numerical"
    assert our_row("question-answer", row | {"answer": "2.5E+3"}, "d").row["problem_type"] == "numerical"


def test_answers_of_several_people_are_no_options():
    row = {"question": "What?", "answer": "a cat", "answer1": "a cat", "answer2": "a dog", "video": "a.mp4"}
    assert our_row("question-answer", row, "d").row["problem_type"] == "free-form"
    assert our_row("question-answer", row | {"answer": "2"}, "d").row["solution"] == "<answer>B</answer>"


def test_a_key_that_stands_twice_in_a_file_of_one_object_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"data": [\n{"question": "a", "answer": "b",\n "answer": "c", "video": "a.mp4"}]}')
    with pytest.raises(RecordError, match="the key"):
        open_rows(path)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "-Infinity"])
def test_a_number_that_no_float_holds_is_refused(number, tmp_path):
    for name, text in (("a.jsonl", '{{"prompt": "a", "x": {}}}'), ("a.json", '[{{"prompt": "a", "x": {}}}]')):
        (tmp_path / name).write_text(text.format(number))
        with pytest.raises(RecordError, match="not valid JSON: "):
            open_rows(tmp_path / name).row(0)
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "solution": NaN}')
    assert read_row(open_rows(tmp_path / "a.jsonl").row(0), tmp_path).solution == ""


def test_cells_that_programs_write_for_missing_values_are_empty(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer,video\nWhat?,nan,a.mp4\nWhat?,#N/A,a.mp4\nWhat?,none,a.mp4\n")
    rows = open_rows(tmp_path / "a.csv")
    for number in (0, 1):
        with pytest.raises(RecordError, match="answer: expected text or a number"):
            read_row(rows.row(number), tmp_path, ReadOptions(format="question-answer"))
    assert "none" in read_row(rows.row(2), tmp_path, ReadOptions(format="question-answer")).solution
