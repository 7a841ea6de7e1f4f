import numpy as np
import pytest

from qwenvl.rewards.functions.boxes import BoxGIoUReward, BoxIoUReward, boxes_in, geometry

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
        ("[20, 0, 30, 10]", "[0, 0, 10, 10]", 0.0),
        ("[0, 0, 0, 10]", "[0, 0, 10, 10]", 0.0),
        ("[20, 20, 30, 30] [0, 0, 10, 10]", TWO, 1.0),  # any order
        ("[0, 0, 10, 10]", TWO, 0.5),  # one missed
        (TWO + "[50, 50, 60, 60]", TWO, 2 / 3),  # one extra
        ("none", TWO, 0.0),
    ],
)
def test_box_iou_by_hand(answer, solution, iou):
    assert score(BoxIoUReward(), answer, solution) == pytest.approx(iou)


def test_matching_is_the_best_one_to_one():
    """Greedy matching would give the first box its best partner and leave nothing for the second."""
    answer, solution = "[0, 0, 10, 10] [0, 0, 10, 6]", "[0, 0, 10, 8] [0, 0, 10, 16]"
    # 10 with 8: .8 and 6 with 16: .375 = 1.175; 10 with 16: .625 and 6 with 8: .75 = 1.375.
    assert score(BoxIoUReward(), answer, solution) == pytest.approx(1.375 / 2)


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
    assert score(BoxGIoUReward(), answer, solution) == pytest.approx(giou)


@pytest.mark.parametrize(
    ("answer", "solution", "iou", "giou"),
    [
        ("[3, 3, 3, 3]", "[3, 3, 3, 3]", 1.0, 1.0),  # the same point
        ("[3, 0, 3, 9]", "[3, 0, 3, 9]", 1.0, 1.0),  # the same line
        ("[3, 3, 3, 3]", "[4, 4, 4, 4]", 0.0, 0.0),  # two points: union 0
        ("[0, 3, 5, 3]", "[2, 3, 9, 3]", 0.0, 0.0),  # two parts of a line: union 0
        ("[3, 3, 3, 3]", "[0, 0, 9, 9]", 0.0, 0.0),  # a point inside: hull 81, union 81
    ],
)
def test_boxes_without_area_by_hand(answer, solution, iou, giou):
    assert score(BoxIoUReward(), answer, solution) == iou
    assert score(BoxGIoUReward(), answer, solution) == giou


def test_measures_by_hand_for_several_pairs():
    left, right = np.array([[0.0, 0, 10, 10], [20, 0, 30, 10]]), np.array([[5.0, 0, 15, 10]])
    np.testing.assert_allclose(geometry("box_iou", left, right), [[50 / 150], [0]])
    # Hulls 15 x 10 and 25 x 10: 1/3 - (150 - 150) / 150, and 0 - (250 - 200) / 250.
    np.testing.assert_allclose(geometry("generalized_box_iou", left, right), [[1 / 3], [-0.2]])


def test_thousandths_are_scaled_to_pixels():
    reward = BoxIoUReward("thousandths")
    assert score(reward, "[0, 0, 500, 500]", "[0, 0, 320, 240]", width=[640], height=[480]) == 1.0
    assert reward.check("[0, 0, 9, 9]", {"width": 640, "height": 480}) is None
    assert "'width' and 'height'" in reward.check("[0, 0, 9, 9]", {})


def test_solutions_without_boxes_are_refused():
    for bad in ("none", "[0, 0, 0, 9]", "[0, 0, 9]"):
        assert "must hold boxes" in BoxGIoUReward().check(bad, {})
