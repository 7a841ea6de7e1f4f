"""Rewards for timelines: values by hand, and against the published definitions written out on frames."""

import math
import random
from itertools import groupby, pairwise

import pytest

from qwenvl.rewards.function import RewardError
from qwenvl.rewards.functions import timelines
from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.table import reading
from qwenvl.rewards.values import inner_values
from qwenvl.timeline import TimedStep, timeline_in, written_timeline

TWO = "<answer>0-4 (1)\n4-8 (2)</answer>"
BY_HAND = {  # answer, solution, value
    "segment_f1": [
        ("0-4 (1); 4-8 (2)", TWO, 1),
        ("0-4 (1); 4-7 (2)", TWO, 1),  # IoU 3/4
        ("0-4 (1); 4-6 (2)", TWO, 1),  # IoU exactly 1/2
        ("0-4 (1); 4-5.9 (2)", TWO, 1 / 2),  # one of two and two
        ("0-4 (1)", TWO, 2 / 3),  # TP 1, FN 1
        ("0-4 (1); 4-8 (3)", TWO, 1 / 2),  # the right span with the wrong step
        ("0-4 (1); 4-8 (2); 8-9 (3)", TWO, 4 / 5),  # FP 1
        ("0-2 (1); 2-4 (1); 4-8 (2)", TWO, 1),  # spans that touch are one
        ("0-4 (1)", "<answer>0-3 (1); 3.5-4 (1)</answer>", 2 / 3),
        ("0-3 (1); 3.5-4 (1)", "0-4 (1)", 2 / 3),  # the second takes the same span: FP
        ("4-8 (1); 0-4 (2)", TWO, 0),
        ("7-3 (1)", TWO, 0),
        ("", TWO, 0),
    ],
    "segment_f1(iou=[0.1, 0.25, 0.5])": [
        ("0-4 (1); 4-5 (2)", TWO, (1 + 1 + 1 / 2) / 3),  # IoU 1/4
        ("0-4 (1); 4-4.8 (2)", TWO, (1 + 1 / 2 + 1 / 2) / 3),  # IoU 1/5
    ],
    "edit_score": [
        ("0-1 (1); 7-8 (2)", TWO, 1),  # times do not matter
        ("0-1 (2); 7-8 (1)", TWO, 0),  # two substitutions of two
        ("0-1 (1)", TWO, 1 / 2),
        ("0-1 (1); 2-3 (2); 3-4 (3)", TWO, 2 / 3),
        ("0-1 (1); 1-3 (1); 3-4 (2)", TWO, 1),
        ("0-1 (1); 2-3 (1); 3-4 (2)", TWO, 2 / 3),  # with a pause between them they are two
        ("(1) (2)", TWO, 0),  # no span
        ("0-3 (2); 0-3 (1)", "0-3 (1); 0-3 (2)", 1),  # at once: the order of the lines says nothing
    ],
    "frame_accuracy": [  # of 10 s
        ("0-4 (1); 4-8 (2)", TWO, 1),
        ("0-4 (1)", TWO, 0.6),
        ("0-5 (1); 5-8 (2)", TWO, 0.9),
        ("0-4 (1); 4-10 (2)", TWO, 0.8),  # two seconds without a step
        ("0-4 (1); 4-20 (2)", TWO, 8 / 20),  # the frames reach to the end of the last span
        ("0-8 (1); 4-8 (2)", TWO, 0.6),  # two steps in place of one
        ("9-10 (3)", TWO, 0.1),  # the second from 8 to 9
        ("", TWO, 0),
    ],
    "frame_accuracy(fps=1)": [  # frames at 0, 1, 2, ...
        *(("0-4.5 (1); 4.5-8 (2)", TWO, 0.9), ("0-3.2 (1); 4-8 (2)", TWO, 1)),
    ],
    "step_order": [
        ("0-1 (1); 2-3 (2); 4-5 (3)", "0-1 (1); 1-2 (2); 2-3 (3)", 1),
        ("0-1 (1); 2-3 (3); 4-5 (2)", "0-1 (1); 1-2 (2); 2-3 (3)", 2 / 3),
        ("0-1 (3); 2-3 (2); 4-5 (1)", "0-1 (1); 1-2 (2); 2-3 (3)", 0),
        ("0-1 (1); 2-3 (3)", "0-1 (1); 1-2 (2); 2-3 (3)", 1 / 3),  # one pair of three
        ("0-1 (1); 2-3 (2); 4-5 (4)", "0-1 (1); 1-2 (2)", 1 / 3),  # the extra span makes three pairs of one
        ("0-1 (1); 1-2 (2); 2-3 (1)", "0-1 (1); 1-2 (2); 2-3 (1)", 1),  # a step twice
        ("1-2 (2); 0-1 (1)", "0-1 (1); 0-2 (2)", 1),  # together
        *(("3-4 (1)", "0-1 (1)", 1), ("3-4 (2)", "0-1 (1)", 0), ("", "0-1 (1)", 0)),
    ],
    "timeline_iou": [
        ("0-4 (1); 4-8 (2)", TWO, 1),
        ("0-4 (1); 4-7 (2)", TWO, (1 + 3 / 4) / 2),
        ("0-4 (1); 4-6 (2)", TWO, (1 + 2 / 4) / 2),
        ("0-4 (1)", TWO, 1 / 2),
        ("0-4 (1); 4-8 (2); 8-9 (3); 9-10 (4)", TWO, 1 - 2 / 4),  # two of four are beyond the two
        ("0-4 (1); 4-8 (3)", TWO, 1 / 2),
        ("0-4 (1); 9-10 (2)", TWO, 1 / 2),
        ("8-9 (3)", TWO, 0),
    ],
    "timeline_iou(extra=0.5)": [("0-4 (1); 4-8 (2); 8-9 (3); 9-10 (4)", TWO, 1 - 0.5 * 2 / 4)],
}


def value_of(name, answer, solution, **columns):
    text = f"<think>0-9 (9)</think><answer>{answer}</answer>"
    [value] = inner_values(resolve(name), [text], {"solution": [solution], **{k: [v] for k, v in columns.items()}})
    return value


@pytest.mark.parametrize("name", BY_HAND)
def test_each_timeline_reward_gives_the_values_of_its_table(name):
    for answer, solution, value in BY_HAND[name]:
        assert value_of(name, answer, solution, duration=10.0) == pytest.approx(value), answer
    [without_block] = inner_values(resolve(name), ["0-4 (1)\n4-8 (2)"], {"solution": [TWO]})
    assert without_block == 0


def test_without_a_duration_the_frames_reach_to_the_last_end():
    assert value_of("frame_accuracy", "0-4 (1)", TWO) == pytest.approx(1 / 2)
    assert value_of("frame_accuracy", "0-8 (2)", TWO, duration=None) == pytest.approx(1 / 2)


@pytest.mark.parametrize("duration", ["12.5", "", None, math.nan, 12])
def test_a_duration_of_a_table_is_read_as_a_number(duration):
    solution = "<answer>0.0-3.0 (1) pick</answer>"
    assert timelines.check_frames(solution, {"duration": duration}) is None
    seconds = 12.5 if duration == "12.5" else 12 if duration == 12 else 3
    [value] = timelines.frame_accuracy(["<answer>0.0-3.0 (2) put</answer>"], [solution], duration=[duration])
    assert value == pytest.approx(1 - 3 / seconds)


@pytest.mark.parametrize("duration", ["long", -1, math.inf, True, [3]])
def test_a_duration_that_is_no_number_of_seconds_is_refused(duration):
    problem = timelines.check_frames("<answer>0.0-3.0 (1) pick</answer>", {"duration": duration})
    assert problem.startswith("the field 'duration' must be a number of seconds of at least 0")


def test_a_threshold_out_of_bounds_is_refused():
    for wrong in ("0", "1.5", "'half'"):
        with pytest.raises(RewardError, match="iou"):
            resolve(f"segment_f1(iou={wrong})")
    for wrong in ("[]", "[0.5, 2]", "[True]"):
        with pytest.raises(ValueError, match="iou"):
            value_of(f"segment_f1(iou={wrong})", "0-1 (1)", TWO)


PROMPT = [{"role": "user", "content": "<video>\nWhich steps, when?\n(1) Insert the fan\n(2) Fasten the screw"}]


def test_answers_in_names_are_read_by_the_list_of_the_prompt():
    answer = "0-4 insert the fan; 4-8 Fasten the screw."
    assert value_of("segment_f1", answer, TWO, prompts=PROMPT) == 1
    assert value_of("segment_f1", answer, TWO) == 0, "no prompt, no list"
    assert value_of("segment_f1", "0-4 (1) fasten the screw", "0-4 (1)", prompts=PROMPT) == 1, "the number counts"


def test_numbers_of_lines_are_not_those_of_steps_with_names_of_the_list():
    prompt = [{"role": "user", "content": "Which?\n(1) take the lid\n(2) insert the fan\n(3) plug"}]
    right = reading("segment_f1", "0-3 (2); 3-5 (3)", prompt)
    for lines in ("1. 0-3 insert the fan\n2. 3-5 plug", "Step 1: insert the fan 0-3\nStep 2: plug 3-5"):
        assert reading("segment_f1", lines, prompt) == right
    assert reading("segment_f1", "2. 0-3\n3: 3-5", prompt) == right  # without names they are
    assert reading("segment_f1", "0-3 (1) insert the fan", prompt) == reading("segment_f1", "0-3 (1)", prompt)


def test_a_solution_without_numbers_is_compared_by_names():
    assert value_of("segment_f1", "0-4 (3) Insert the fan; 4-8 screw", "0-4 insert the fan; 4-8 screw") == 1
    assert value_of("edit_score", "0-4 a", "0-4 (97)") == 0


def test_a_solution_that_is_no_timeline_is_refused():
    check = resolve("segment_f1").check
    assert check(TWO, {}) is None
    for solution in ("(1) (2)", "3 to 8", "<answer></answer>", "8-3 (1)"):
        assert "timeline" in check(solution, {})
    entry = check("0-3 (1) lid\n3-soon (2) fan; Then 8-9 (3)", {})
    assert entry is not None and entry.endswith("no span is '3-soon (2) fan'")
    assert check("Steps:\n0-3 (1) lid\n\n3-5 (2)", {}) is None
    assert "no span is" in check('[{"start": 0, "end": 3, "step": 1}, {"start": 3, "step": 2}]', {})


def test_answers_with_the_same_spans_read_the_same():
    one = reading("segment_f1", "0-4 (1) insert the fan", PROMPT)
    assert one == reading("segment_f1", "0:00 to 0:04 Insert the fan.", PROMPT)
    assert one != reading("segment_f1", "0-4.5 (1)", PROMPT)


# ---- the published definitions, on labels of frames


def labels_of(spans, frames):
    """A label for each frame, None where there is no step."""
    labels = [None] * frames
    for span in spans:
        labels[int(span.start) : int(span.end)] = [span.number] * int(span.end - span.start)
    return labels


def segments_of(labels):
    """(label, first frame, frame after the last) of each run of equal labels, those without a step left out."""
    segments, place = [], 0
    for label, run in groupby(labels):
        length = len(list(run))
        if label is not None:
            segments.append((label, place, place + length))
        place += length
    return segments


def f1_on_frames(threshold, named, true):
    hit = [False] * len(true)
    positives = 0
    for label, start, end in named:
        overlaps = []
        for other, true_start, true_end in true:
            common = len(set(range(start, end)) & set(range(true_start, true_end)))
            both = len(set(range(start, end)) | set(range(true_start, true_end)))
            overlaps.append(common / both if label == other else 0.0)
        best = overlaps.index(max(overlaps))
        if overlaps[best] >= threshold and not hit[best]:
            hit[best] = True
            positives += 1
    false_positives = len(named) - positives
    false_negatives = len(true) - positives
    precision = positives / (positives + false_positives)
    recall = positives / (positives + false_negatives)
    return 2 * precision * recall / (precision + recall) if positives else 0.0


def edit_on_frames(named, true):
    ours, theirs = [label for label, *_ in named], [label for label, *_ in true]
    distance = [[i + j if 0 in (i, j) else 0 for j in range(len(theirs) + 1)] for i in range(len(ours) + 1)]
    for i, one in enumerate(ours, start=1):
        for j, other in enumerate(theirs, start=1):
            replaced = distance[i - 1][j - 1] + (one != other)
            distance[i][j] = min(distance[i - 1][j] + 1, distance[i][j - 1] + 1, replaced)
    return 1 - distance[-1][-1] / max(len(ours), len(theirs))


def drawn_timeline(draw, frames):
    """Spans at whole seconds that do not overlap, with pauses or without."""
    edges = sorted(draw.sample(range(frames + 1), draw.randint(2, 9)))
    spans = [TimedStep(start, end, draw.randint(1, 4)) for start, end in pairwise(edges)]
    return [span for span in spans if draw.random() < 0.8] or spans[:1]


@pytest.mark.parametrize("seed", range(40))
def test_the_measures_agree_with_their_definitions_on_frames(seed):
    draw, frames = random.Random(seed), 60
    true = drawn_timeline(draw, frames)
    named = true if seed % 8 == 0 else drawn_timeline(draw, frames)
    ours, theirs = labels_of(named, frames), labels_of(true, frames)
    answer, solution = written_timeline(named), written_timeline(true)
    expected = {
        f"segment_f1(iou={share})": f1_on_frames(share, segments_of(ours), segments_of(theirs))
        for share in (0.1, 0.25, 0.5)
    }
    expected["edit_score"] = edit_on_frames(segments_of(ours), segments_of(theirs))
    expected["frame_accuracy(fps=1)"] = sum(map(lambda a, b: a == b, ours, theirs)) / frames
    expected["frame_accuracy(fps=25)"] = expected["frame_accuracy(fps=1)"]
    for name, value in expected.items():
        assert value_of(name, answer, solution, duration=float(frames)) == pytest.approx(value), name


def test_a_nearer_edge_has_a_larger_value():
    values = [value_of("timeline_iou", f"0-4 (1); {start}-8 (2)", TWO) for start in (7, 6, 5, 4.5, 4)]
    assert values == sorted(set(values))


def test_many_guesses_do_not_pay():
    guesses = "\n".join(f"{start}-{start + 0.9} ({step})" for start in range(10) for step in (1, 2))
    for name in ("timeline_iou", "segment_f1", "edit_score", "frame_accuracy"):
        assert value_of(name, guesses, TWO, duration=10.0) <= 0.2, name


TABLE = """| # | start | end | step |
|--|--|--|--|
| 1 | 0 | 3 | (2) bolt |
| 2 | 3.5 | 0:07 | **(1) take** |"""


@pytest.mark.parametrize("solution", [TABLE, "**Step 2:0-3**; **Step 1**: 3.5-0:07"])
def test_a_solution_may_have_every_form_that_an_answer_may_have(solution):
    assert timelines.check_timeline(solution) is None
    assert value_of("segment_f1", "0-3 (2); 3.5-7 (1)", solution) == 1


@pytest.mark.parametrize("headings", ["start_frame | end_frame", "start (min) | end (min)", "start % | end %"])
def test_columns_of_other_units_are_no_seconds(headings):
    table = f"| {headings} | step |\n|--|--|--|\n| 0 | 3 | (2) bolt |"
    assert timeline_in(table) == []
    assert timelines.check_timeline(table) is not None
