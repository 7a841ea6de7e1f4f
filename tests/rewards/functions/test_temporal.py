import pytest

from qwenvl.rewards.functions.temporal import TemporalIoUReward, spans_in, united


def score(answer, solution, duration=None, boundary=False):
    reward = TemporalIoUReward(boundary)
    return reward([f"<think>0 to 9</think><answer>{answer}</answer>"], solution=[solution], duration=[duration])[0]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("12.5 to 20", [(12.5, 20.0)]),
        ("from 0:12 - 0:20", [(12.0, 20.0)]),
        ("1:02:03.5–1:02:10", [(3723.5, 3730.0)]),
        ("<3-5> and 7s to 9s", [(3.0, 5.0), (7.0, 9.0)]),
        ("between 1:05 and 70 seconds", [(65.0, 70.0)]),
        ("[3.0, 5.0]", [(3.0, 5.0)]),
        ("3", []),
        ("3, 4, 5", []),
        ("never", []),
    ],
)
def test_spans_in_a_text(text, spans):
    assert spans_in(text) == spans


def test_united_by_hand():
    assert united([(5, 7), (1, 3), (2, 4), (9, 9), (8, 6), (7, 8)]) == [(1, 4), (5, 8)]


@pytest.mark.parametrize(
    ("answer", "solution", "iou"),
    [
        ("3 to 8", "3 to 8", 1.0),
        ("0:03 - 0:08", "<answer>3 to 8</answer>", 1.0),
        ("0 to 10", "5 to 10", 0.5),
        ("0 to 6", "4 to 10", 0.2),
        ("0 to 1", "4 to 10", 0.0),
        ("8 to 3", "3 to 8", 0.0),
        # United 0..2 and 4..6 against 1..5: common 1 + 1, together 6.
        ("0 to 2, 4 to 6", "1 to 5", 1 / 3),
        # The same second named twice counts once.
        ("0 to 5, 0 to 5", "0 to 10", 0.5),
        ("soon", "3 to 8", 0.0),
    ],
)
def test_temporal_iou_by_hand(answer, solution, iou):
    assert score(answer, solution) == pytest.approx(iou)


def test_boundary_by_hand():
    # 2..8 against 4..10 of 20 s: 4/8, times (1 - 2/20)(1 - 2/20).
    assert score("2 to 8", "4 to 10", 20.0, boundary=True) == pytest.approx(0.5 * 0.9 * 0.9)
    # An end that is off by more than the whole clip leaves nothing, not something negative.
    assert score("4 to 100", "4 to 10", 20.0, boundary=True) == 0.0
    with pytest.raises(ValueError, match="duration"):
        score("2 to 8", "4 to 10", None, boundary=True)


def test_records_without_a_span_are_refused():
    check, strict = TemporalIoUReward().check, TemporalIoUReward(True).check
    assert check("3 to 8", {}) is None
    for bad in ("never", "8 to 3", "5 to 5", "3"):
        assert "name a span" in check(bad, {})
    assert strict("3 to 8", {"duration": 12.5}) is None
    for bad in ({}, {"duration": 0}, {"duration": "12"}):
        assert "'duration'" in strict("3 to 8", bad)
