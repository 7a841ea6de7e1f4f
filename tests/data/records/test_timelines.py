"""The field ``timeline``: the solution that it makes, and what is wrong with one."""

import json

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.parse import ReadOptions, Row, read_row
from qwenvl.data.records.sources import open_rows

LIST = "Which steps, when?\n(1) Insert the fan\n(2) Fasten the screw"
SPANS = [{"step": 2, "start": 3.5, "end": 7.25}, {"step": "insert the Fan", "start": 0, "end": "0:03.5"}]
SOLUTION = "<answer>0.0-3.5 (1) Insert the fan\n3.5-7.25 (2) Fasten the screw</answer>"


def parsed(prompt=LIST, options=None, **row):
    return read_row(Row("d.json[4]", "d-4", {"prompt": prompt, "video": "a.mp4", **row}), "/media", options)


def test_the_field_makes_the_solution_in_the_words_of_the_list():
    record = parsed(timeline=SPANS)
    assert record.solution == SOLUTION
    assert record.fields["timeline"] == SPANS


def test_the_list_may_be_in_the_template():
    template = "{prompt}\n(1) Insert the fan\n(2) Fasten the screw"
    assert parsed("Which?", ReadOptions(prompt_template=template), timeline=SPANS).solution == SOLUTION


def test_without_a_list_steps_are_as_the_label_says():
    spans = [*SPANS, {"step": "(3) lid", "start": 8, "end": 9}]
    expected = "0.0-3.5 insert the Fan\n3.5-7.25 (2)\n8.0-9.0 (3) lid"
    assert parsed("Which?", timeline=spans).solution == f"<answer>{expected}</answer>"


def test_a_table_holds_a_timeline_as_json(tmp_path):
    quoted = json.dumps(SPANS).replace('"', '""')
    (tmp_path / "d.csv").write_text(f'prompt,video,timeline\n"{LIST}",a.mp4,"{quoted}"\n')
    assert read_row(open_rows(str(tmp_path / "d.csv")).row(0), tmp_path).solution == SOLUTION


def test_another_solution_has_the_same_spans_or_none():
    assert parsed(timeline=SPANS, solution=SOLUTION).solution == SOLUTION
    named = "3.5-7.25 (2); 0-3.5 insert the fan"
    assert parsed(timeline=SPANS, solution=named).solution == named, "the spans are the same"
    assert parsed(timeline=SPANS, solution="(1) (2)").solution == "(1) (2)", "the answer to another question"
    assert parsed(timeline="a key of one's own", solution="yes").solution == "yes"
    with pytest.raises(RecordError, match=r"d\.json\[4\].*timeline"):
        parsed(timeline=SPANS, solution="<answer>0-3.5 (1)</answer>")


@pytest.mark.parametrize(
    ("timeline", "place"),
    [
        *(([], r"\.timeline: .*\[\]"), ("0-3 (1)", r"\.timeline: .*0-3"), ([3], r"timeline\[0\]: .*number 3")),
        ([SPANS[0], {"step": 1, "start": 0}], r"timeline\[1\]"),
        *(([{"step": 1, "start": bad, "end": 5}], r"timeline\[0\]: start: .*") for bad in (-1, None, "soon", 1e9)),
        ([{"step": 1, "start": 5, "end": 5}], r"timeline\[0\]: .*5\.0 to 5\.0 s is empty"),
        ([{"step": 1, "start": 5, "end": 4}], r"timeline\[0\]: .*5\.0 to 4\.0 s ends before"),
        ([{"step": 1, "start": 5, "end": 12.2}], r"timeline\[0\]: .*12\.2 s .*12\.0 s"),
        *(([{"step": bad, "start": 0, "end": 5}], r"timeline\[0\]: .*1 to 2") for bad in (3, "(2) insert the fan")),
        ([{"step": "insert the fun", "start": 0, "end": 5}], r"timeline\[0\]: .*did you mean insert the fan"),
        *(([{"step": bad, "start": 0, "end": 5}], r"timeline\[0\]: step: ") for bad in (None, "", 1.5, "(1) (2)")),
    ],
)
def test_a_bad_timeline_is_refused_with_its_entry(timeline, place):
    with pytest.raises(RecordError, match=r"d\.json\[4\].*" + place):
        parsed(timeline=timeline, duration=12.0)


def test_a_span_may_exceed_the_clip_by_a_rounding():
    assert parsed(timeline=[{"step": 1, "start": 5, "end": 12.05}], duration=12.0).solution


def test_a_name_that_could_not_be_read_again_is_refused():
    for name in ("hold; turn", "turn 3-4"):
        with pytest.raises(RecordError, match=r"d\.json\[4\]\.timeline"):
            parsed("Which?", timeline=[{"step": name, "start": 0, "end": 5}])


@pytest.mark.parametrize("name", ["2 bolts inserted", "turn (2) screws", "insert fan (1)"])
def test_a_number_within_a_name_is_no_number_of_a_step(name):
    with pytest.raises(RecordError, match=r"timeline\[0\]: step: .*has a number that rewards would take"):
        parsed("Which?", timeline=[{"step": name, "start": 0, "end": 5}])


def test_a_name_of_the_list_may_begin_with_a_number():
    spans = [{"step": "2 bolts inserted", "start": 0, "end": 5}]
    solution = parsed("Which?\n(1) 2 bolts inserted\n(2) 2 washers inserted", timeline=spans).solution
    assert solution == "<answer>0.0-5.0 (1) 2 bolts inserted</answer>"


def test_names_that_differ_in_signs_are_told_apart_or_refused():
    asked = "Which?\n(1) 5 V\n(2) -5 V\n(3) cable\n(4) cable *"
    spans = [{"step": "5 V", "start": 0, "end": 3}, {"step": "-5 V", "start": 3, "end": 5}]
    assert parsed(asked, timeline=spans).solution == "<answer>0.0-3.0 (1) 5 V\n3.0-5.0 (2) -5 V</answer>"
    with pytest.raises(RecordError, match="is no step: expected a number of the list"):
        parsed(asked, timeline=[{"step": "cable", "start": 0, "end": 3}])
    assert parsed(asked, timeline=[{"step": 3, "start": 0, "end": 3}]).solution == "<answer>0.0-3.0 (3) cable</answer>"


@pytest.mark.parametrize("label", ["(2) lid", "2. lid", "2: lid", "2) lid", "step 2 lid", "#2 lid", "Step 2: lid"])
def test_without_a_list_a_label_begins_with_its_number(label):
    spans = [{"step": label, "start": 0, "end": 5}]
    assert parsed("Which?", timeline=spans).solution == "<answer>0.0-5.0 (2) lid</answer>"


@pytest.mark.parametrize(
    ("name", "message"), [("盖（2）", "has a number"), ("盖②", "has a number"), ("取；装", "semicolon")]
)
def test_a_name_is_read_as_rewards_read_it(name, message):
    """In full-width signs too: they would take another step for it."""
    with pytest.raises(RecordError, match=message):
        parsed("Which?", timeline=[{"step": name, "start": 0, "end": 5}])


@pytest.mark.parametrize("name", ["2.5 mm screw", "2nd screw", "the 2 screws"])
def test_other_numbers_stay_in_names(name):
    spans = [{"step": name, "start": 0, "end": 5}]
    assert parsed("Which?", timeline=spans).solution == f"<answer>0.0-5.0 {name}</answer>"
