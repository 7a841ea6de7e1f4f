"""Shapes of rows and files that other tools write: read as they are meant, or refused in a sentence that says how."""

import json
from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, Row, read_row, record_hints
from qwenvl.data.records.record_file import RecordFile
from qwenvl.data.records.sources import open_rows
from qwenvl.types import LibraryCount, Message

ASKED = {"prompt": "<video>What moves?", "videos": ["c.mp4"], "solution": "a block"}
CLIP = {"videos": ["c.mp4"]}


def parsed(row, form=None):
    return read_row(Row("d[0]", "d-0", row), Path("/media"), ReadOptions(format=form))


def refused(row, form=None):
    with pytest.raises(RecordError) as caught:
        parsed(row, form)
    return str(caught.value)


# ---- system turns


@pytest.mark.parametrize(
    "system",
    [
        {"system": "Be brief."},
        {"system": ["Be brief."]},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"system": {"type": "text", "text": "Be brief."}},
        {"system_prompt": "Be brief."},
        {"system_message": "Be brief."},
        {"system_prompt": ["Be brief."], "system": None},
        {"system": "Be brief.", "system_prompt": ""},
    ],
    ids=str,
)
def test_a_system_turn_beside_the_turns_is_read_in_every_form(system):
    record = parsed(ASKED | system)
    assert record.messages == (Message("system", "Be brief."), Message("user", "<video>What moves?"))
    assert record.unread == ()


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({"system": ["Be brief.", "Be kind."]}, "d[0].system: expected a string, got list"),
        ({"system": 3}, "d[0].system: expected a string, got number 3"),
        ({"system": "a", "system_prompt": "b"}, "given as system and as system_prompt"),
        ({"system": "<|im_start|>"}, "d[0].system: it holds '<|im_start|>'"),
    ],
)
def test_a_system_turn_of_another_type_is_refused_with_its_key(system, message):
    assert message in refused(ASKED | system)


def test_two_system_turns_are_refused_unless_they_are_the_same():
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    row = {"messages": turns, "solution": "x"} | CLIP
    assert parsed(row | {"system": "Be brief."}).messages[0].text == "Be brief."
    assert "a system turn stands in `messages` and beside it" in refused(row | {"system": "Be kind."})


# ---- the oldest forms


@pytest.mark.parametrize(
    ("row", "texts", "solution"),
    [
        ({"instruction": "What?", "input": "", "output": "x"}, ["<video>What?"], "x"),
        ({"instruction": "What?", "input": "In red.", "output": "x"}, ["<video>What?\nIn red."], "x"),
        ({"instruction": "<video>What?", "output": "x"}, ["<video>What?"], "x"),
        ({"query": "What?", "response": "x"}, ["<video>What?"], "x"),
        ({"query": "What?", "response": 3}, ["<video>What?"], "3"),
        ({"query": "What?", "response": [16, 12, 32, 24]}, ["<video>What?"], "[16, 12, 32, 24]"),
        ({"query": "And?", "response": "x", "history": [["What?", "y"]]}, ["<video>What?", "y", "And?"], "x"),
        ({"instruction": "And?", "output": "x", "history": [["What?", "y"]]}, ["<video>What?", "y", "And?"], "x"),
        ({"query": "What?", "response": "x", "history": None}, ["<video>What?"], "x"),
        ({"query": "What?", "response": "x", "system": "Be brief."}, ["Be brief.", "<video>What?"], "x"),
    ],
)
def test_instruction_and_query_rows_are_read(row, texts, solution):
    record = parsed(row | CLIP)
    assert ([message.text for message in record.messages], record.solution) == (texts, solution)
    assert record.unread == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "What?", "response": "x", "history": ["What?"]}, "d[0].history: expected pairs"),
        ({"query": "What?", "response": ""}, "the solution is empty"),
        ({"instruction": 3, "output": "x"}, "expected a string, got number 3"),
    ],
)
def test_bad_instruction_and_query_rows_are_refused(row, message):
    assert message in refused(row)


def test_history_beside_turns_is_reported_with_advice():
    record = parsed(ASKED | {"history": [["a", "b"]]})
    assert record.unread == ("history",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"video": "c.mp4", "label": "pick"}, "the row has no question"),
        ({"video": {"bytes": b"\0" * 99, "path": None}, "label": 0}, "the keys video, label; the row has no question"),
        ({"caption": "It falls.", "video": "c.mp4"}, "the row has no answer: --columns caption=prompt,NAME=solution"),
        ({"problem": "What?", "target": "x"}, "--columns problem=prompt,target=solution renames keys"),
        ({"text": "What?", "label": "x"}, "--columns text=prompt,label=solution renames keys"),
        ({"question": "?", "options": ["a", "b"], "gt": "a"}, "--columns gt=answer renames keys"),
        ({"vid": "a", "query": "?", "relevant_windows": []}, "--columns vid=video_id,query=sentence,relevant_windows="),
    ],
)
def test_a_row_of_no_form_is_refused_with_its_own_keys(row, message):
    text = refused(row)
    assert message in text
    assert "x00" not in text, "no bytes of a clip"


# ---- typed parts, media objects, turns of numbers


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video", "video": "c.mp4"},
        {"type": "video", "path": "c.mp4"},
        {"type": "video", "url": "c.mp4"},
        {"type": "video", "video_url": {"url": "c.mp4"}},
        {"type": "video_url", "video_url": {"url": "c.mp4"}},
        {"type": "video_url", "video_url": "c.mp4"},
        {"type": "video", "url": "file:///media/c.mp4"},
        {"type": "video", "video": {"path": "c.mp4"}},
        {"video": "c.mp4"},
    ],
    ids=str,
)
def test_a_typed_part_holds_its_clip_under_any_key_of_the_processors(part):
    content = [part, {"type": "text", "text": "What moves?"}]
    record = parsed({"messages": [{"role": "user", "content": content}], "solution": "x"})
    assert (record.messages[0].text, record.videos) == ("<video>What moves?", ("/media/c.mp4",))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "path": "a.png"},
        {"type": "image", "url": "a.png"},
        {"type": "image", "image_url": "a.png"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image", "image": {"url": "a.png"}},
        {"image": "a.png"},
    ],
    ids=str,
)
def test_a_typed_part_holds_its_picture_under_any_key_of_the_processors(part):
    content = [part, {"text": "Which colour?"}]
    record = parsed({"messages": [{"role": "user", "content": content}], "solution": "x"})
    assert (record.messages[0].text, record.images) == ("<image>Which colour?", ("/media/a.png",))


@pytest.mark.parametrize("key", ["video_path", "file", "clip", "source"])
def test_a_part_whose_medium_has_another_key_is_refused_by_it(key):
    row = {"messages": [{"role": "user", "content": [{"type": "video", key: "c.mp4"}]}], "solution": "x"}
    assert f"d[0].messages[0].content[0].{key}: the medium of a part is named by `video`" in refused(row)


def test_an_object_in_the_place_of_a_clip_keeps_its_settings():
    clips = [{"video": "a.mp4", "fps": 2, "max_frames": 32}, {"path": "b.mp4"}]
    record = parsed({"prompt": "<video><video>Which?", "videos": clips, "solution": "x"})
    assert record.videos == ("/media/a.mp4", "/media/b.mp4")
    assert record.clip_meta[0].count == LibraryCount(fps=2.0, max_frames=32)
    assert record.clip_meta[1] is None
    record = parsed({"prompt": "<image>Which?", "images": [{"image": "a.png"}], "solution": "x"})
    assert record.images == ("/media/a.png",)


def test_a_list_of_pictures_is_one_clip():
    frames = ["1.jpg", "2.jpg", "3.JPG"]
    for value in (frames, [frames]):
        record = parsed({"prompt": "<video>What?", "videos": value, "solution": "x"})
        assert json.loads(Path(record.videos[0]).read_text()) == [f"/media/{name}" for name in frames]
    record = parsed({"prompt": "<video><video>Which?", "videos": [frames[:2], frames[1:]], "solution": "x"})
    assert len(record.videos) == 2
    record = parsed({"prompt": "<image><image>Which?", "images": frames[:2], "solution": "x"})
    assert len(record.images) == 2


@pytest.mark.parametrize(
    ("value", "solution"),
    [
        ([16, 12, 32, 24], "[16, 12, 32, 24]"),
        ([[1, 2], [3, 4.5]], "[[1, 2], [3, 4.5]]"),
        (3, "3"),
        (0.5, "0.5"),
        ("three", "three"),
        ([{"type": "text", "text": "three"}], "three"),
    ],
)
def test_an_answer_turn_of_numbers_is_their_json(value, solution):
    turns = [{"from": "human", "value": "<video>Where?"}, {"from": "gpt", "value": value}]
    assert parsed({"conversations": turns, "video": "c.mp4"}).solution == solution


def test_a_completion_of_text_is_the_solution():
    record = parsed({"prompt": "<video>What?", "completion": "a block"} | CLIP)
    assert (record.solution, record.messages) == ("a block", (Message("user", "<video>What?"),))
    assert "d[0].completion: expected a text" in refused({"prompt": "a", "completion": 3})


# ---- placeholders, empty questions


@pytest.mark.parametrize(
    ("asked", "answered", "name"),
    [
        ("Find the <ref-object>.", "there", "<ref-object>"),
        ("Where is it?", "<bbox>", "<bbox>"),
        ("What is in <bbox>?", "a cat", "<bbox>"),
        ("What is said in <audio>?", "hello", "<audio>"),
    ],
)
def test_placeholders_of_other_libraries_are_refused_by_name(asked, answered, name):
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    objects = {"ref": ["block"], "bbox": [[16, 12, 32, 24]]}
    assert f"{name} is not filled in here" in refused({"messages": turns, "images": ["a.png"], "objects": objects})


@pytest.mark.parametrize(
    "text", ["<image1>", "<image 2>", "<IMAGE>", "<Video>", "<video_1>", "<img>", "<|image|>", "<ImageHere>"]
)
def test_text_that_is_nearly_a_tag_is_hinted_at(text):
    [hint] = record_hints(parsed(ASKED | {"prompt": f"<video>What is in {text}?"}))
    assert hint.kind == "text like a tag" and text in hint.message


@pytest.mark.parametrize("content", ["", "<video>", " <video>\n", [{"type": "video", "video": "a.mp4"}]], ids=str)
def test_a_prompt_without_a_question_is_hinted_at(content):
    clip = {} if isinstance(content, list) else CLIP
    [hint] = record_hints(parsed({"messages": [{"role": "user", "content": content}], "solution": "x"} | clip))
    assert hint.kind == "no question"


# ---- files of one object, labels of tables


def rows_of(path):
    return [open_rows(path).row(i).content for i in range(open_rows(path).length)]


def test_a_file_of_one_object_with_a_list_of_records_is_read(tmp_path):
    record = {"prompt": "a", "solution": "b"}
    for key in ("data", "questions", "annotations"):
        (tmp_path / "rows.json").write_text(json.dumps({"version": "1", "info": {}, key: [record]}, indent=1))
        assert rows_of(tmp_path / "rows.json") == [record]


def test_a_file_of_one_record_over_several_lines_is_read(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps({"prompt": "a", "solution": "b"}, indent=1))
    assert rows_of(tmp_path / "rows.json") == [{"prompt": "a", "solution": "b"}]


@pytest.mark.parametrize(
    "record",
    [
        {"id": "a", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
        {"video": "a.mp4", "prompt": "When?", "timeline": [{"start": 0, "end": 1, "caption": "pick"}]},
        {"question": "a", "answer": "b", "tools": [{"name": "zoom"}]},
    ],
    ids=lambda record: "-".join(record),
)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "ROWS.JSON"])
def test_a_file_of_one_record_with_a_list_is_not_taken_apart(record, indent, name, tmp_path):
    (tmp_path / name).write_text(json.dumps(record, indent=indent))
    assert rows_of(tmp_path / name) == [record]


def test_a_clip_beside_the_list_of_an_object_is_not_lost(tmp_path):
    asked = [{"question": "Which?", "answer": "a"}, {"question": "When?", "answer": "b"}]
    for key in ("video", "video_path"):
        (tmp_path / "a.json").write_text(json.dumps({key: "a.mp4", "qas": asked}))
        with pytest.raises(RecordError, match=f"a.json: one object with `{key}` beside the list `qas`"):
            open_rows(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(json.dumps({"path": "v1.json", "qas": asked}))
    assert open_rows(tmp_path / "a.json").length == 2


def test_records_in_an_object_may_have_a_text_beside_them(tmp_path):
    records = [{"prompt": "a", "solution": "b"}]
    for content in ({"text": "about this file", "data": records}, {"conversations": records}):
        (tmp_path / "rows.json").write_text(json.dumps(content))
        assert rows_of(tmp_path / "rows.json") == records


def test_the_ending_of_a_table_may_be_in_capitals(tmp_path):
    (tmp_path / "ROWS.CSV").write_text("question,answer\nWhere?,left\n")
    (tmp_path / "ROWS.Tsv").write_text("question\tanswer\nWhere?\tleft\n")
    for name in ("ROWS.CSV", "ROWS.Tsv"):
        assert rows_of(tmp_path / name) == [{"question": "Where?", "answer": "left"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"clip_1": {"mc_question": []}}, indent=1), "one object with the keys clip_1, and not a list"),
        (json.dumps({"a": [{}], "b": [{}]}, indent=1), "one object with the keys a, b, and not a list"),
        (json.dumps({"a": {}, "b": {}, "c": {}, "d": {}}), "one object with the keys a, b, c, ..., and not a list"),
        ('{\n "prompt": "a"\n}\n{\n "prompt": "b"\n}\n', "jq -c . IN.json"),
        ('{\n "prompt": "a"\n "solution": "b"\n}', "not valid JSON: Expecting ',' delimiter at line 3 column 2"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_file_of_one_object_over_several_lines_is_refused_in_one_sentence(text, message, suffix, tmp_path):
    if suffix == ".jsonl" and not text.startswith("{\n"):
        pytest.skip("JSON lines of one line, whose row is refused")
    path = tmp_path / f"rows{suffix}"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        open_rows(path)
    assert str(caught.value).startswith(f"{path}: ") and message in str(caught.value)


def test_class_labels_of_a_table_are_read_by_their_names(tmp_path):
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["pick", "place"])
    features = datasets.Features(
        {
            "question": datasets.Value("string"),
            "video": datasets.Value("string"),
            "answer": labels,
            "seen": datasets.Sequence(labels),
        }
    )
    rows = {"question": ["What is done?"] * 3, "video": ["c.mp4"] * 3, "answer": [0, 1, -1], "seen": [[0, 1], [1], []]}
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "table.parquet")
    for name in ("saved", "table.parquet"):
        file = RecordFile(DatasetSource(name, tmp_path / name, tmp_path), seed=0)
        assert [file[i].solution for i in (0, 1)] == ["<answer>pick</answer>", "<answer>place</answer>"]
        assert file[0].fields["problem_type"] == "free-form"
        assert file[0].fields["seen"] == ["pick", "place"]
        with pytest.raises(RecordError, match="answer: expected text or a number, got nothing"):
            file[2]


def test_a_cell_may_hold_a_list_of_options(tmp_path):
    (tmp_path / "rows.csv").write_text("question,options,answer,video\nWhere?,\"['left', 'right']\",right,a.mp4\n")
    file = RecordFile(DatasetSource("rows", tmp_path / "rows.csv", tmp_path), seed=0)
    assert file[0].solution == "<answer>B</answer>"
