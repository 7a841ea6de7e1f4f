"""Tasks of Label Studio as questions: which annotation counts, what its answer is, and of which clip."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.label_studio import TaskAnswer, answer_of_task, medium_of
from qwenvl.data.records.parse import ReadOptions, Row, read_row, record_hints
from qwenvl.data.records.presets import PRESETS


def region(kind, control="step", **value):
    return {"type": kind, "from_name": control, "value": value}


def task(*annotations, **more):
    return {"data": {"video": "a.mp4"}, "annotations": [{"result": result, **more} for result in annotations]}


ONE = region("choices", choices=["insert fan"])
OTHER = region("choices", choices=["close lid"])
BOX = region("rectanglelabels", "box", x=1, y=2, width=3, height=4, rectanglelabels=["dent"])
COMMENT = region("textarea", "comment", text=["The hand hides it."])


def test_annotations_that_differ_are_refused_unless_one_is_the_truth():
    both = task([ONE], [OTHER])
    with pytest.raises(ValueError, match="has 2 with different answers; keep one, or mark one as ground truth"):
        answer_of_task(both)
    with pytest.raises(ValueError, match="has 2 with different answers"):
        answer_of_task(task([ONE], []))
    both["annotations"][1]["ground_truth"] = True
    assert answer_of_task(both)[0] == TaskAnswer("labels", "close lid")
    both["annotations"][1] = {"result": [OTHER], "was_cancelled": True, "ground_truth": True}
    assert answer_of_task(both)[0] == TaskAnswer("labels", "insert fan")
    assert answer_of_task(task([ONE], [ONE]))[0] == TaskAnswer("labels", "insert fan")


@pytest.mark.parametrize("result", [[COMMENT, ONE], [ONE, COMMENT]])
def test_labels_are_the_answer_and_not_the_comment_beside_them(result):
    row = task(result)
    assert answer_of_task(row) == (TaskAnswer("labels", "insert fan"), True)
    made = PRESETS["label-studio"].row(row, None)
    assert [hint.kind for hint in made.hints] == ["more than labels"]
    assert answer_of_task(task([ONE, BOX])) == (TaskAnswer("labels", "insert fan"), True)
    related = task([ONE, {"type": "relation", "from_id": "a"}])
    assert answer_of_task(related) == (TaskAnswer("labels", "insert fan"), False)
    assert answer_of_task(task([COMMENT])) == (TaskAnswer("text", "The hand hides it."), False)


def test_other_data_of_a_task_becomes_fields_but_for_what_means_something_else(tmp_path):
    row = task([ONE])
    row["data"] |= {"station": "A7", "options": "x", "fps": 25, "meta": {"a": 1}, "question": "Which step?"}
    record = read_row(Row("rows[0]", "rows-0", row), tmp_path, ReadOptions(format="label-studio"))
    assert record.fields["station"] == "A7" and record.fields["options"] == "x" and "fps" not in record.fields
    assert record.clip_meta == (None,) and record.messages[0].text.startswith("<video>Which step?")
    [hint] = record_hints(record)
    assert hint.message == "fps, meta of a task's data would have another meaning in a record: left out"


def test_the_answer_to_one_question_is_in_the_order_of_its_times():
    late = region("labels", start=4.5, end=6, labels=["close lid"])
    early = region("labels", start=0.5, end=2, labels=["insert fan"])
    assert answer_of_task(task([late, early]))[0].text == "insert fan, close lid"
    spans = [(9, "b"), (1, "a")]
    frames = [region("timelinelabels", ranges=[{"start": at}], timelinelabels=[name]) for at, name in spans]
    assert answer_of_task(task(frames))[0].text == "a, b"
    said = [region("textarea", text=text, start=start) for text, start in ((["of it."], 3), ("The end", 1))]
    assert answer_of_task(task(said))[0] == TaskAnswer("text", "The end of it.")
    nested = task([region("taxonomy", taxonomy=[["station", "fan"], ["lid"]])])
    assert answer_of_task(nested)[0].text == "station / fan, lid"
    twice = region("timelinelabels", ranges=[{"start": 1}, {"start": 50}], timelinelabels=["a"])
    once = region("timelinelabels", ranges=[{"start": 10}], timelinelabels=["b"])
    assert answer_of_task(task([twice, once]))[0].text == "a, b, a"
    assert answer_of_task(task([region("rating", rating=3)]))[0] == TaskAnswer("number", "3")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([ONE, region("choices", "quality", choices=["good"])], r"several questions \(step, quality\)"),
        ([ONE, region("rating", "quality", rating=3)], r"several questions \(step, quality\)"),
        ([COMMENT, region("textarea", "title", text="Fan")], r"several questions \(comment, title\)"),
        ([region("number", number=1), region("number", number=2)], "expected one number, got 1, 2"),
        ([COMMENT, BOX], r"regions of a kind that is not read \(rectanglelabels\)"),
        ([BOX], r"regions of a kind that is not read \(rectanglelabels\)"),
        ([region("choices", choices=["nut, bolt"])], "a label has a comma or a semicolon"),
        ([], "expected one that is not cancelled"),
        ([region("choices", choices=[])], "expected one that is not cancelled"),
        ([ONE, region("choices", choices=[])], "a region has no label; label it or delete it"),
        ("insert fan", "expected one that is not cancelled"),
        ([region("labels", labels=["a"], ranges=[3])], "expected them as Label Studio exports them"),
        ([region("choices", choices=3)], "expected them as Label Studio exports them"),
    ],
)
def test_an_annotation_without_one_answer_is_refused(result, message):
    with pytest.raises(ValueError, match=message):
        answer_of_task(task(result))


@pytest.mark.parametrize(
    ("data", "medium"),
    [
        ({"video": "/data/upload/1/0a1b-clip.mp4"}, ("videos", "upload/1/0a1b-clip.mp4")),
        ({"video": "/data/upload/1/0a1b-%C3%96l%201.mp4"}, ("videos", "upload/1/0a1b-\u00d6l 1.mp4")),
        ({"clip": "/data/local-files/?d=station/b.mp4"}, ("videos", "station/b.mp4")),
        ({"clip": "/data/local-files/?d=a+b/c #1&2.mp4"}, ("videos", "a+b/c #1&2.mp4")),
        ({"clip": "http://box/data/local-files/?d=a%2Bb/c%20%231.mp4"}, ("videos", "a+b/c #1.mp4")),
        ({"station": "7", "film": "b.mp4"}, ("videos", "b.mp4")),
        ({"image": "b.png", "question": "Which?"}, ("images", "b.png")),
        ({"film": "c"}, ("videos", "c")),
        ({"video": "c", "text": "d.mp4"}, ("videos", "c")),
    ],
)
def test_the_medium_of_a_task_is_found(data, medium):
    assert medium_of(data) == medium


def test_a_task_with_several_media_or_none_is_refused():
    with pytest.raises(ValueError, match=r"data: has several media \(before, after\); expected one"):
        medium_of({"before": "a.mp4", "after": "b.mp4"})
    with pytest.raises(ValueError, match=r"has several media \(video, part\)"):
        medium_of({"video": "a.mp4", "part": "fan.png"})
    for data in ({}, {"question": "a.mp4"}, {"station": "7", "shift": "2"}, {"video": 3}):
        with pytest.raises(ValueError, match="expected a clip or a picture"):
            medium_of(data)


def test_a_refused_task_is_named_with_its_row():
    for listed in (None, {}, [3]):
        row = {"data": {"video": "a.mp4"}, "annotations": listed}
        with pytest.raises(ValueError, match="annotations: expected the list of annotations of the task"):
            answer_of_task(row)
    with pytest.raises(RecordError, match=r"rows\[0\].*read as label-studio: annotations: has 2"):
        read_row(Row("rows[0]", "rows-0", task([ONE], [OTHER])), Path("."), ReadOptions(format="label-studio"))
