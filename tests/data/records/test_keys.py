"""Media under other names are found or refused by name, and every other key that nothing reads is counted."""

import json
from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.forms import draft_of
from qwenvl.data.records.keys import MEDIA_KEY, is_named_like_a_medium
from qwenvl.data.records.parse import ReadOptions, Row, media_hints, read_row, unread_keys_of, unread_text
from qwenvl.data.records.record_file import RecordFile
from qwenvl.rewards import build_rubric
from qwenvl.rewards.function import RewardFunction, adapt_verl, columns_named

QUESTION = {"question": "Which colour has the block?", "answer": "red"}
PROMPT = {"prompt": "What moves?", "solution": "a block"}
MESSAGES = {"messages": [{"role": "user", "content": "What moves?"}], "solution": "a block"}
TURNS = {"conversations": [{"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "a block"}]}


def parsed(row, form=None):
    return read_row(Row("d[0]", "d-0", row), Path("/media"), ReadOptions(format=form))


@pytest.mark.parametrize("key", ["path", "clip", "video_path", "video_name", "video_uid", "file_name", "vid"])
@pytest.mark.parametrize(
    ("row", "form"),
    [(QUESTION, "question-answer"), (PROMPT, None), (MESSAGES, None), (TURNS, None)],
    ids=["question", "prompt", "messages", "conversations"],
)
def test_a_clip_under_a_usual_name_is_the_clip_of_the_row(key, row, form):
    record = parsed(row | {key: "c.mp4"}, form)
    assert record.videos == ("/media/c.mp4",)
    assert record.messages[-1].text.startswith("<video>")
    assert key not in record.unread


@pytest.mark.parametrize(
    ("key", "value", "videos", "images"),
    [
        ("image_path", "a.png", [], ["a.png"]),
        ("imgPath", "a.JPG", [], ["a.JPG"]),
        ("image_paths", ["a.png", "b.png"], [], ["a.png", "b.png"]),
        ("filename", "sub/a b.mkv", ["sub/a b.mkv"], []),
        ("videoPath", "a.webm", ["a.webm"], []),
        ("clip_paths", ["a.mp4", "b.mp4"], ["a.mp4", "b.mp4"], []),
        ("rel_video_path", "a.avi", ["a.avi"], []),
        ("local-video-path", "a.mov", ["a.mov"], []),
        ("media", {"path": "a.mp4"}, ["a.mp4"], []),
        ("video_url", "a.mp4", ["a.mp4"], []),
        ("mp4", "a.mp4", ["a.mp4"], []),
    ],
)
def test_media_are_found_under_other_usual_keys(key, value, videos, images):
    record = parsed(PROMPT | {key: value})
    assert record.videos == tuple(f"/media/{name}" for name in videos)
    assert record.images == tuple(f"/media/{name}" for name in images)


def test_the_same_medium_under_two_names_is_one():
    record = parsed(PROMPT | {"path": "c.mp4", "video_path": "c.mp4"})
    assert record.videos == ("/media/c.mp4",)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"video_id": "3MSZA"}, "d[0].video_id: seems to name a clip"),
        ({"youtube_id": "abc"}, "d[0].youtube_id: seems to name a clip"),
        ({"image_id": "000123"}, "--columns image_id=image"),
        ({"source": "lectures/a.mp4"}, "d[0].source: seems to name a clip"),
        ({"thumbnail": "a.jpg"}, "--columns thumbnail=image"),
        ({"extra_info": {"video": "a.mp4"}}, "d[0].extra_info.video: seems to name a clip"),
        ({"metadata": {"files": ["a.mp4"]}}, "d[0].metadata.files[0]: seems to name a clip"),
        ({"path": "a.mp4", "clip": "b.mp4"}, "`path` and `clip` each name a medium"),
        ({"video_path": "a.mp4", "image_path": "b.png"}, "`video_path` and `image_path` each name a medium"),
        ({"video_url": "https://youtu.be/abc"}, "d[0].video_url: seems to name a clip"),
        ({"frames_dir": "frames/0001"}, "d[0].frames_dir: seems to name a clip"),
        ({"clip": b"ftyp"}, "d[0].clip: seems to name a clip"),
        ({"frames": ["1.jpg", "2.jpg"]}, "--columns frames=video reads a list of pictures as one clip"),
        ({"url": "https://a.org/b.mp4"}, "download it"),
    ],
)
def test_a_key_that_seems_to_name_a_medium_is_refused_by_name(more, message):
    with pytest.raises(RecordError) as caught:
        parsed(PROMPT | more)
    assert message in str(caught.value)
    assert caught.value.kind == MEDIA_KEY


def test_the_columns_that_the_refusal_names_lead_to_the_clip(tmp_path):
    (tmp_path / "3MSZA.mkv").write_bytes(b"")
    options = ReadOptions(columns={"video_id": "video"})
    record = read_row(Row("d[0]", "d-0", PROMPT | {"video_id": "3MSZA"}), tmp_path, options)
    assert record.videos == (str(tmp_path / "3MSZA.mkv"),), "with the ending of the file that is there"


def test_a_row_of_text_alone_gets_no_media():
    row = {"prompt": "Use 3, 7, 8 to make 80.", "nums": [3, 7, 8], "target": 80, "video_length": "short"}
    record = parsed(row | {"image": None, "videos": [], "clip_score": 0.8, "file": "notes.txt"})
    assert (record.videos, record.images) == ((), ())


def test_a_medium_of_the_row_makes_other_names_plain_fields():
    record = parsed(PROMPT | {"video": "c.mp4", "path": "original.mp4", "thumbnail": "c.jpg"})
    assert record.videos == ("/media/c.mp4",)
    assert record.unread == ("path", "thumbnail")


def test_media_within_parts_are_enough():
    content = [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "What?"}]
    record = parsed({"messages": [{"role": "user", "content": content}], "solution": "x", "video_path": "b.mp4"})
    assert (record.videos, record.unread) == (("/media/a.mp4",), ("video_path",))


def test_a_key_is_named_like_a_medium_by_its_words():
    yes = ["videoID", "video_file_name", "clipUid", "img", "photos", "raw_video", "video path", "jpg"]
    no = ["video_length", "video_duration", "image_size", "clip_score", "question_id", "uid", "name", "url", "source"]
    assert [key for key in yes + no if is_named_like_a_medium(key)] == yes


# ---- keys that nothing reads


@pytest.mark.parametrize(
    ("row", "form", "unread"),
    [
        (PROMPT | {"level": 3, "note": None, "tags": []}, None, ("level",)),
        (PROMPT | {"answer": "b"}, None, ("answer",)),
        ({"prompt": "a", "answer": "b"}, None, ()),
        (PROMPT | {"messages": MESSAGES["messages"]}, None, ("prompt",)),
        (TURNS | {"video": "a.mp4", "reward_model": {"ground_truth": "a"}}, None, ("reward_model",)),
        ({"prompt": "a", "reward_model": {"ground_truth": "a"}, "answer": "b"}, None, ("answer",)),
        ({"prompt": "a", "completion": [{"role": "assistant", "content": "x"}], "answer": "b"}, None, ("answer",)),
        (MESSAGES | {"chat_template_kwargs": {"enable_thinking": False}}, None, ("chat_template_kwargs",)),
        (QUESTION | {"level": 3, "id": 7, "type": "colour"}, "question-answer", ("level", "type")),
        (QUESTION | {"solution": "since it is red"}, "question-answer", ("solution",)),
        (QUESTION | {"meta": {"source": "web"}}, "question-answer", ("meta",)),
        (QUESTION | {"video": "a.mp4", "meta": {"max_frames": 4}}, "question-answer", ()),
        (QUESTION | {"system": "Be brief."}, "question-answer", ()),
        (QUESTION | {"reward": 0.3}, "question-answer", ("reward",)),
        ({"sentence": "It falls.", "video_id": "a", "start": 1, "end": 2, "duration": 9}, "charades-sta", ()),
        ({"instruction": "What?", "input": "", "output": "x", "history": [], "split": "a"}, None, ("split",)),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict | tuple) else None,
)
def test_keys_of_a_row_that_nothing_reads_are_listed(row, form, unread):
    assert parsed(row, form).unread == unread


def test_a_meta_or_a_system_turn_beside_a_question_is_read():
    row = QUESTION | {"video": "a.mp4", "meta": {"max_frames": 4}, "system": "Be brief."}
    record = parsed(row, "question-answer")
    assert record.clip_meta[0].max_frames == 4
    assert record.messages[0].text == "Be brief."


def test_a_column_that_a_reward_names_is_known():
    def near(completions, station, **columns):
        return [float(line == 7) for line in columns["line"]]

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return 1.0

    assert {"station", "line"} <= columns_named(RewardFunction("near", near))
    verl = columns_named(RewardFunction("verl", adapt_verl(compute_score)))
    assert {"data_source", "extra_info", "reward_model"} <= verl
    assert {"problem_type", "duration"} <= build_rubric(["by_problem_type"]).columns
    assert {"nums", "target"} <= build_rubric(["countdown"]).columns
    assert "level" not in build_rubric(["format", "accuracy", "by_problem_type"]).columns


def test_unread_keys_are_counted_by_record_with_a_remedy():
    records = [parsed(PROMPT | {"level": n, "line": 7}) for n in (1, 2)]
    records += [parsed(PROMPT | {"enable_thinking": True, "thinking": "so", "reward": "accuracy"})]
    counts = unread_keys_of(records, {"line"})
    assert counts == {"level": 2, "enable_thinking": 1}, "a warm-up reads `thinking`, and `reward` routes"
    text = unread_text(counts, len(records))
    assert "level (2 of 3), enable_thinking (1 of 3)" in text
    assert "--chat_template_kwargs" in text


def test_many_keys_and_long_ones_are_a_short_line():
    counts = {f"key-{n}-{'z' * 200}": 1 for n in range(3000)} | {"\x1b]0;owned\x07\x1b[2J": 9}
    text = unread_text(counts, 3000)
    assert "\ufffd]0;owned\ufffd\ufffd[2J (9 of 3,000), key-0-" in text and "and 2,981 more" in text
    assert len(text) < 2500 and "\x1b" not in text


def test_rows_without_media_are_reported():
    assert [hint.kind for hint in media_hints(5, 5)] == ["text alone"]
    [some] = media_hints(5, 4)
    assert some.message.startswith("4 of 5 records")
    assert list(media_hints(5, 0)) == list(media_hints(0, 0)) == []


def test_a_mixed_file_is_read_row_by_row(tmp_path):
    names = ["video", "clip", "video_path", "video_name", "file_name"]
    rows = [QUESTION | {name: "c.mp4"} for name in names]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    file = RecordFile(DatasetSource("rows", tmp_path / "rows.json", tmp_path), seed=0)
    assert [record.videos for record in file] == [(str(tmp_path / "c.mp4"),)] * 5


def test_a_draft_names_the_key_where_a_tag_is_missing():
    turns = [{"from": "human", "value": "Which colour?"}, {"from": "gpt", "value": "red"}]
    with pytest.raises(RecordError, match="0 <video> tags but `clip` names 1 files"):
        draft_of({"conversations": turns, "clip": "c.mp4"}, "d[0]")
