from functools import partial

import pytest

from qwenvl.rewards.functions.grounding import (
    box_giou,
    box_iou,
    boxes_in,
    check_boxes,
    check_spans,
    spans_in,
    temporal_contrast,
    temporal_iou,
)

TWO = "[0, 0, 10, 10] [20, 20, 30, 30]"


def score(reward, answer, solution, **columns):
    return reward([f"<answer>{answer}</answer>"], solution=[solution], **columns)[0]


def test_boxes_in_a_text():
    text = (
        'x [1, 2, 3, 4], {"bbox_2d": [ 5.5,6,7,8 ]} <|box_start|>(30,40),(10,20)<|box_end|> [1, 2, 3] [1, 2, 3, 4, 5]'
    )
    assert boxes_in(text).tolist() == [[1, 2, 3, 4], [5.5, 6, 7, 8], [10, 20, 30, 40]]
    assert boxes_in("none").shape == (0, 4)


@pytest.mark.parametrize(
    ("answer", "solution", "iou"),
    [
        ("[0, 0, 10, 10]", "[0, 0, 10, 10]", 1.0),
        ("[10, 10, 0, 0]", "(0,0),(10,10)", 1.0),
        ("[5, 0, 15, 10]", "[0, 0, 10, 10]", 50 / 150),
        ("[20, 20, 30, 30] [0, 0, 10, 10]", TWO, 1.0),  # any order
        ("[0, 0, 10, 10]", TWO, 0.5),  # one missed
        (TWO + "[50, 50, 60, 60]", TWO, 2 / 3),  # one extra
        ("none", TWO, 0.0),
    ],
)
def test_box_iou_by_hand(answer, solution, iou):
    assert score(box_iou, answer, solution) == pytest.approx(iou)


def test_matching_is_the_best_one_to_one():
    """Greedy matching would give the first box its best partner and leave nothing for the second."""
    answer, solution = "[0, 0, 10, 10] [0, 0, 10, 6]", "[0, 0, 10, 8] [0, 0, 10, 16]"
    # 10 with 8: .8 and 6 with 16: .375 = 1.175; 10 with 16: .625 and 6 with 8: .75 = 1.375.
    assert score(box_iou, answer, solution) == pytest.approx(1.375 / 2)


@pytest.mark.parametrize(
    ("answer", "solution", "giou"),
    [
        ("[0, 0, 10, 10]", "[0, 0, 10, 10]", 1.0),
        # Apart by their own width: hull 30 x 10, union 200: 0 - 100 / 300.
        ("[20, 0, 30, 10]", "[0, 0, 10, 10]", -1 / 3),
        ("[0, 0, 10, 10]", TWO, 0.0),  # (1 - 1) / 2
        ("none", TWO, -1.0),
    ],
)
def test_box_giou_by_hand(answer, solution, giou):
    assert score(box_giou, answer, solution) == pytest.approx(giou)


@pytest.mark.parametrize(
    ("answer", "solution", "iou", "giou"),
    [
        ("[3, 3, 3, 3]", "[3, 3, 3, 3]", 1.0, 1.0),  # the same point
        ("[3, 0, 3, 9]", "[3, 0, 3, 9]", 1.0, 1.0),  # the same line
        ("[3, 3, 3, 3]", "[4, 4, 4, 4]", 0.0, 0.0),  # two points: union 0
        ("[3, 3, 3, 3]", "[0, 0, 9, 9]", 0.0, 0.0),  # a point inside: hull 81, union 81
    ],
)
def test_boxes_without_area_by_hand(answer, solution, iou, giou):
    assert score(box_iou, answer, solution) == iou
    assert score(box_giou, answer, solution) == giou


def test_thousandths_are_scaled_to_pixels():
    reward, check = partial(box_iou, units="thousandths"), partial(check_boxes, units="thousandths")
    assert score(reward, "[0, 0, 500, 500]", "[0, 0, 320, 240]", width=[640], height=[480]) == 1.0
    assert check("[0, 0, 9, 9]", {"width": 640, "height": 480}) is None
    assert "'width' and 'height'" in check("[0, 0, 9, 9]", {})


def test_solutions_without_boxes_are_refused():
    for bad in ("none", "[0, 0, 0, 9]", "[0, 0, 9]"):
        assert "must hold boxes" in check_boxes(bad, {})


def score_of_spans(answer, solution, duration=None, boundary=False):
    text = f"<think>0 to 9</think><answer>{answer}</answer>"
    return temporal_iou([text], solution=[solution], duration=[duration], boundary=boundary)[0]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("12.5 to 20", [(12.5, 20.0)]),
        ("from 0:12 - 0:20", [(12.0, 20.0)]),
        ("1:02:03.5–1:02:10", [(3723.5, 3730.0)]),
        ("<3-5> and 7s to 9s", [(3.0, 5.0), (7.0, 9.0)]),
        ("between 1:05 and 70 seconds", [(65.0, 70.0)]),
        ("1e5", []),
        ("2 to 1.5E+3 or 12e-2 to 4", [(2.0, 4.0)]),
        ("3", []),
        ("3, 4, 5", []),
    ],
)
def test_spans_in_a_text(text, spans):
    assert spans_in(text) == spans


@pytest.mark.parametrize(
    ("answer", "solution", "iou"),
    [
        ("3 to 8", "3 to 8", 1.0),
        ("0:03 - 0:08", "<answer>3 to 8</answer>", 1.0),
        ("0 to 10", "5 to 10", 0.5),
        ("0 to 6", "4 to 10", 0.2),
        ("8 to 3", "3 to 8", 0.0),
        # United 0..2 and 4..6 against 1..5: common 1 + 1, together 6.
        ("0 to 2, 4 to 6", "1 to 5", 1 / 3),
        # The same second named twice counts once.
        ("0 to 5, 0 to 5", "0 to 10", 0.5),
    ],
)
def test_temporal_iou_by_hand(answer, solution, iou):
    assert score_of_spans(answer, solution) == pytest.approx(iou)


def test_boundary_by_hand():
    # 2..8 against 4..10 of 20 s: 4/8, times (1 - 2/20)(1 - 2/20).
    assert score_of_spans("2 to 8", "4 to 10", 20.0, boundary=True) == pytest.approx(0.5 * 0.9 * 0.9)
    # An end that is off by more than the whole clip leaves nothing, not something negative.
    assert score_of_spans("4 to 100", "4 to 10", 20.0, boundary=True) == 0.0
    with pytest.raises(ValueError, match="duration"):
        score_of_spans("2 to 8", "4 to 10", None, boundary=True)


def test_records_without_a_span_are_refused():
    check, strict = check_spans, partial(check_spans, boundary=True)
    assert check("3 to 8", {}) is None
    for bad in ("never", "8 to 3", "5 to 5", "3"):
        assert "name a span" in check(bad, {})
    assert strict("3 to 8", {"duration": 12.5}) is None
    for bad in ({}, {"duration": 0}, {"duration": "12"}):
        assert "'duration'" in strict("3 to 8", bad)


def test_a_completion_that_correctness_says_nothing_of_counts_nowhere():
    # Without it the first group is right in 1 of 2, which beats .4; the second group has no value.
    got = temporal_contrast([1.0, None, 0.0, None, None, None], [0.4, 0.0], margin=0.0, bonus=0.2)
    assert got == [0.2, None, 0.0, None, None, None]
