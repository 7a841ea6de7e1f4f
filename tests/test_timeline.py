"""Texts that are read as a timeline, texts that are not, and the form in which timelines are written."""

import pytest

from qwenvl.rewards.functions.text import normalized, unified
from qwenvl.timeline import TimedStep, merged, named_step, seconds_of, timeline_in, written_timeline

FAN = [(0.0, 3.5, 2, "insert the fan")]
TIMES_IN_JSON = ('"start_time": 0.0, "end_time": "3.5 s"', '"timestamp": [0, 3.5]', '"segment": ["0:00", "0:03.5"]')
STEPS_IN_JSON = ('"step_number": 2, "description": "Insert the fan"', '"event": "(2) insert the fan"')
READ = [
    ("0.0-3.5 (2) insert the fan", FAN),
    ("0 - 3.5 s: (2) Insert  the fan.", FAN),
    ("(2) insert the fan: 0:00-0:03.5", FAN),
    ("(2) insert the fan, from 0 to 3.5 seconds", FAN),
    ("00:00:00 --> 00:00:03.5 (2) insert the fan", FAN),
    ("<0.0 seconds> - <3.5 seconds> (2) insert the fan", FAN),
    ("[0, 3.5] (2) insert the fan", FAN),
    ("* step 2: insert the fan (0.0\N{EN DASH}3.5)", FAN),
    ("2. 0.0-3.5 insert the fan", FAN),
    *((text, FAN) for text in ("**Step 2** (0.0 - 3.5 s): insert the fan", "**(2) insert the fan**: 0.0-3.5")),
    *((f"{times}:(2) insert the fan", FAN) for times in ("0.0-3.5秒", "从0.0秒到3.5秒", "0.0秒至3.5秒", "0.0秒-3.5秒")),
    *((f"1. {entry}", [(5.0, 8.0, 2, "")]) for entry in ("5-8: step 2", "Step 2 (5-8)", "5-8 #2")),  # on line 1
    ("1. step 2, insert the fan: 0-3.5", FAN),
    ("frame mounting 0-3", [(0.0, 3.0, None, "frame mounting")]),
    ("(0.0-3.5) (2) insert the fan", FAN),
    ("- 0.0 s to 3.5 s | 2 | insert the fan", FAN),
    ("0-3.5 2", [(0.0, 3.5, 2, "")]),
    *((f"0-3.5 {step} insert the fan", FAN) for step in ("(step 2)", "(#2)", "(Step 2)")),
    ("2: 0-3.5", [(0.0, 3.5, 2, "")]),
    ("1:02:03-1:02:04.25 #7", [(3723.0, 3724.25, 7, "")]),
    ("0:01:500-0:02:000 (1)", []),
    ("1:75-2:00 (1)", []),
    ("1:60:00-1:61:00 (1)", []),
    ("4-6 (1); 0-3 (2)\n1-2 (1)", [(0.0, 3.0, 2, ""), (1.0, 2.0, 1, ""), (4.0, 6.0, 1, "")]),  # they may overlap
    ("0-3 (1) a, 3-5 (2) b, c", [(0.0, 3.0, 1, "a"), (3.0, 5.0, 2, "b")]),
    ("0-3 (1) hold, and turn", [(0.0, 3.0, 1, "hold, and turn")]),  # one range: the comma is of the name
    ("0-3 fan cable", [(0.0, 3.0, None, "fan cable")]),
    ("0-3 M8 minor screw", [(0.0, 3.0, None, "m8 minor screw")]),
    ("0-3 (2) 5 min break", [(0.0, 3.0, 2, "5 min break")]),
    ("0-3 2.5 mm screw", [(0.0, 3.0, None, "2.5 mm screw")]),
    ('```json\n[{"step": 2, "start": 3, "end": 7}]\n```', [(3.0, 7.0, 2, "")]),
    ('{"timeline": [{"step": "(2) fan", "start": "0:03", "end": "7 s"}]}', [(3.0, 7.0, 2, "fan")]),
    *((f'[{{{times}, "label": "(2) insert the fan"}}]', FAN) for times in TIMES_IN_JSON),
    *((f'{{"start": 0, "end": 3.5, {step}}}', FAN) for step in STEPS_IN_JSON),
    ('{"step": 2, "description": "4 screws", "start": 0, "end": 3.5, "segment": [1, 2]}', [(0.0, 3.5, 2, "screws")]),
    ("| Start | End | Step |\n|---|---|---|\n| 0.0 | 3.5 s | (2) insert the fan |", FAN),
    ("| Step | Start (s) | End (s) |\n|---|---|---|\n| (2) insert the fan | 0:00 | 0:03.5 |", FAN),
    ("| # | Step | Duration | Start | End |\n|---|---|---|---|---|\n| 1 | 2 | 3.5 | 0.0 | 3.5 |", [(0.0, 3.5, 2, "")]),
    ("| Step | Start | End |\n| 1 | 5 | 7 |\n\n| 2 | 8 | 9 |", [(5.0, 7.0, 1, "")]),
    *((text, []) for text in ("| Step | Time |\n| (2) insert the fan | 0.0 | 3.5 |", "| 1 | 5 | 7 |")),
    ("| Step | Time |\n| (2) insert the fan | 0.0-3.5 |", FAN),
    ("0.0 => 3.5 (2) insert the fan", FAN),
    ('{"step": 3, "label": "Fan", "start": 1, "end": 2}\n5-6 (1)', [(1.0, 2.0, 3, "fan")]),  # objects alone count
]


@pytest.mark.parametrize(("text", "spans"), READ)
def test_entries_are_read_in_many_forms(text, spans):
    assert [(span.start, span.end, span.number, span.name) for span in timeline_in(text)] == spans


@pytest.mark.parametrize(
    "text",
    [
        *("", "(2) insert the fan", "0.0-3.5", "3 (2)"),  # no times, no step, one time
        *("7-3 (1)", "3-3 (1)"),  # reversed and empty
        *("-3-5 (1)", "3 - -5 (1)", "1e5-2e5 (1)", "NaN-3 (1)", "0-inf (1)", "12345678-12345679 (1)"),
        *("3,5-7 (1)", "3-7,5 (1)", "00:00:03,005 --> 00:00:07,000 (1)"),  # decimal commas
        *("500-1500 ms (1)", "0-3 min (1)", "1 min - 2 min (1)", "0-3 m (1)", "0-3 h", "0-9 frames (1)", "0-9% (1)"),
        *("1-2分 (1)", "从1分到2分 (1)", "从3到7帧 (1)"),
        # A range of parts of the times.
        *("3 min 52 s - 335 s (1)", "1 h, 2 s to 3700 s (1)", "1.2e+02 to 313 (1)", "3.5 - 4'20 (1)"),
        *("2, 3: 5-8", "2 and 3: 5-8", "5-8 2, 3", "step 2 and step 3: 5-8", "| 1 | 5-8 | 2 |", "1. 5-8: 2. screw"),
        *("(2) insert the fan: frames 0-35", "frames [0, 35] (2)", "500-900 (ms) (2)", "25-40 percent (2)"),
        *("2 - 5 to 8", "Step 2 - 5.0 to 8.0", "close valve 3 - 5 until 8"),
        *("2-3-7", "2 - 3 - 7"),  # which of the three is the step?
        *("0-3 (1) (2)", "3 and 7 (1)"),
        *('{"step": 2, "start": 3, "end": NaN}', '{"step": 2, "start": -3, "end": 5}', '{"start": 3, "end": 5}'),
        *('{"step": true, "start": 3, "end": 5}', '{"step": 2, "start": 1e400, "end": 5}', "{}", "{" * 5_000),
        '{"step": 2, "start": 3, "end": ' + "9" * 5_000 + "}",
    ],
)
def test_a_text_that_cannot_be_read_has_no_span(text):
    assert timeline_in(text) == []


@pytest.mark.parametrize(
    "text",
    [
        *("(1) 拿起螺丝：0.0-3.5", "拿起螺丝：0.0-3.5秒", "拿起螺丝0.0-3.5秒", "0.0-3.5拿起螺丝", "从0.0到3.5拿起螺丝"),
        *("0.0-3.5 拿起螺丝。", "【0.0-3.5】拿起螺丝", "0.0——3.5 (1)", "(1):0.0-3.5", "**(1)**:0.0-3.5"),
        *("第1步：0.0秒-3.5秒", "步骤1：0.0-3.5", "Step 1:0.0-3.5"),
        *("0.0-3.5 步骤1", "(1) → 0.0-3.5", "0.0-3.5 (1) 步进电机", "拿起螺丝 at 0.0-3.5", "0.0-3.5 “拿起螺丝”"),
    ],
)
def test_chinese_has_no_spaces_around_times_and_colons_need_none(text):
    listed = {"拿起螺丝": 1, "拧紧螺丝": 2}
    assert [(span.start, span.end, span.step) for span in timeline_in(unified(text), listed)] == [(0.0, 3.5, 1)]


@pytest.mark.parametrize("text", ["拿起螺丝 第2-3步", "转2-3圈", "1-2步 x", "1-2分拿起螺丝", "3:0.0-3.5 (1)"])
def test_numbers_of_steps_and_times_in_minutes_are_no_seconds(text):
    assert timeline_in(text, {"拿起螺丝": 1}) == []


@pytest.mark.parametrize("text", ["转2-3圈 0-5", "0-5 拧到10-20度", "步骤1-2 0-5", "将2-3颗螺丝拧紧 0:00-0:05"])
def test_amounts_in_chinese_names_are_no_times(text):
    assert [(span.start, span.end) for span in timeline_in(text)] == [(0.0, 5.0)]


def test_quotes_and_dots_around_listed_names_do_not_matter():
    listed = {normalized("拿起螺丝。"): 1, normalized("press “Start”"): 2, normalized("„Start“ drücken"): 3}
    text = unified("0-1 拿起螺丝。\n1-2 press “Start”\n2-3 „Start“ drücken\n3.0-4.0 (1)、4.0-5.0 (2)")
    assert [span.step for span in timeline_in(text, listed)] == [1, 2, 3, 1, 2]


def test_a_listed_name_may_end_in_a_unit():
    listed = {"heat for 5 min": 1, "mount the frame": 2}
    assert [span.step for span in timeline_in("heat for 5 min from 0.0 to 3; mount the frame: 3-4", listed)] == [1, 2]
    assert timeline_in("heat for 5 min from 0.0 to 3; mount the frame: 3-4") == []


def test_names_that_differ_in_a_sign_are_not_one_step():
    listed = {"5 V": 1, "-5 V": 2, "grade A": 3, "grade A-": 4}
    assert [span.step for span in timeline_in("0-1 5 V; -5 V: 1-2; - 5 V: 2-3", listed)] == [1, 2, 1]
    assert [span.step for span in timeline_in("0-1 grade A; 1-2 (4) grade A-", listed)] == ["grade a", 4]


def test_names_of_the_list_are_read_as_its_numbers():
    listed = {"insert the fan (left)": 1, "10 mm screw": 2}
    text = "0-1 Insert the fan (left).; 1-2 10 mm screw; 2-3 (3) insert the fan (left); 3-4 insert a fan"
    assert [span.step for span in timeline_in(text, listed)] == [1, 2, 3, "insert a fan"]
    assert named_step("10 mm screw", {}) == (10, "mm screw"), "without a list it is a number and a name"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("0.0-1.0 screw\n1.0-2.0 second screw", [1, 2]),
        ("0-1 Frame  mounting, 1-2 screw; 2-3 s S-hook", [3, 1, 4]),
        ("<1.0> to <2.0> second screw.", [2]),
        ("5 s - 8 s frame mounting; 8-9 frame mounting (3)", [3, 3]),
        ("1-2 seconds screw; 2-3 s second screw", [1, 2]),
        ("1-2 (1) second screw; 3-4 second screws", [1, "screws"]),
        ("[0, 3.5] second screw, [3.5, 7] (3)", [2, 3]),
        ("(2) [0, 3.5], (3) [3.5, 7]", [2, 3]),
    ],
)
def test_a_name_of_the_list_that_begins_as_a_unit_is_read_whole(text, steps):
    listed = {"screw": 1, "Second screw": 2, "frame mounting": 3, "s-hook": 4}
    assert [span.step for span in timeline_in(text, listed)] == steps


def test_spans_are_written_in_one_form_which_is_read_again():
    spans = [TimedStep(3.5, 7.25, 3), TimedStep(0, 3.5, 2, "insert the fan"), TimedStep(8, 9.0625, None, "lid")]
    text = written_timeline(spans)
    assert text == "0.0-3.5 (2) insert the fan\n3.5-7.25 (3)\n8.0-9.062 lid"
    assert written_timeline(timeline_in(text)) == text


def test_spans_of_a_step_that_touch_or_overlap_are_one():
    spans = [TimedStep(0, 2, 1), TimedStep(1, 3, 2), TimedStep(2, 4, 1), TimedStep(3.5, 5, 1), TimedStep(6, 7, 1)]
    assert merged(reversed(spans)) == [TimedStep(0, 5, 1), TimedStep(1, 3, 2), TimedStep(6, 7, 1)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((3, 3.0), (2.5, 2.5), ("2.5", 2.5), ("2.5 s", 2.5), ("0:07.5", 7.5), ("1:00:07", 3607.0)),
        *((-1, None), (True, None), (None, None), (float("nan"), None), (10**400, None), ("3 m", None), ("", None)),
    ],
)
def test_seconds_are_read_from_numbers_and_clock_times(value, seconds):
    assert seconds_of(value) == seconds
