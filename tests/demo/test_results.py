"""The table's numbers, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwenvl.demo.results import Score, best_blind_accuracy, example, in_words, read_scores, table
from qwenvl.runlog import EvaluationLog, Rollout, RunLog


def test_best_blind_accuracy_is_to_name_all_but_the_rarest_step():
    # 20 of the 27 clips do not show step 5: two of the five named. The other 7: one of the five, five being shown too.
    accuracy, steps = best_blind_accuracy()
    assert accuracy == pytest.approx((20 * 2 / 5 + 7 * 1 / 6) / 27)
    assert steps == (1, 2, 3, 4, 6)


def score(total, half_width):
    return Score(total, half_width, accuracy=0.5, accuracy_ci95=0.1, exact=0.25, n=8)


def test_above_needs_intervals_that_do_not_meet():
    assert score(0.9, 0.05).above(score(0.7, 0.1))
    assert not score(0.8, 0.05).above(score(0.7, 0.1))


def test_table_has_a_line_for_each_score_and_one_for_the_blind():
    text = table({"before": score(0.65, 0.04)}, format_weight=0.3, accuracy_weight=0.7)
    lines = text.splitlines()
    assert lines[1].split() == ["before", "0.65", "±", "0.04", "0.50", "±", "0.10", "25%"]
    assert lines[2].split()[-3:] == ["0.54", "0.34", "-"]  # 0.3 + 0.7 x 0.3395
    assert "8 held-out clips" in text and "**" not in text
    broken = replace(score(0.0, 0.0), comparable=False)
    text = table({"before": score(0.65, 0.04), "blank": broken}, format_weight=0.3, accuracy_weight=0.7)
    assert text.splitlines()[2].startswith("blank**") and "** not comparable" in text


def rollout(step, record_id, accuracy):
    return Rollout(
        step=step,
        record_id=record_id,
        sample=0,
        prompt=(),
        solution="",
        completion=f"{record_id} at {step}",
        tokens=1,
        finish_reason="stop",
        rewards={"format": 1.0, "accuracy": accuracy},
        total=0.0,
        split="eval",
    )


def test_the_example_is_the_first_that_was_wrong_and_then_right(tmp_path):
    log = RunLog(tmp_path)
    log.log_rollouts([rollout(0, "a", 1.0), rollout(0, "b", 0.5), rollout(0, "c", 0.5), rollout(0, "d", 0.0)])
    log.log_rollouts([rollout(9, "a", 1.0), rollout(9, "b", 0.5), rollout(9, "c", 1.0), rollout(9, "d", 1.0)])
    before, after = example(tmp_path, 9)
    assert (before.completion, after.completion) == ("c at 0", "c at 9")
    assert example(tmp_path, 0) is None


@pytest.mark.parametrize(
    ("answered", "blank"),
    [
        (None, "costs 0.70 [0.65, 0.75]"),
        (40, "can't be compared (75% of the completions have no answer; among the 40 clips with one it costs 0.20 ["),
        (0, "can't be compared (75% of the completions have no answer; among the 0 clips with one it leaves nothing"),
    ],
)
def test_scores_are_those_of_the_evaluation(tmp_path, answered, blank):
    def interval(mean, half):
        return {"mean": mean, "low": mean - half, "high": mean + half, "n": 4}

    def scores(total, accuracy):
        return {"total": interval(total, 0.04), "accuracy": interval(accuracy, 0.1), "passes": interval(0.25, 0.2)}

    controls = (("m", "none"), ("run", "blank"))
    numbers = [{"model": m, "control": c, "records": 4, "scores": scores(0.65, 0.5)} for m, c in controls]
    gain = {"before": "m", "after": "run", "control": "none", "scores": {"accuracy": interval(0.5, 0.03)}}
    drops = [
        {"model": "run", "control": control, "scores": {"accuracy": interval(drop, 0.05)}, "comparable": True}
        for control, drop in (("blank", 0.7), ("other_clip", 0.6))
    ]
    if answered is not None:
        among = {"records": answered, "scores": {"accuracy": interval(0.2, 0.1)} if answered else {}}
        drops[0] |= {"comparable": False, "no_answer": interval(0.75, 0.1), "answered": among}
    EvaluationLog(tmp_path).begin({"numbers": numbers, "differences": [gain], "drops": drops})
    found, control = read_scores(tmp_path, {("m", "none"): "before", ("run", "blank"): "blank"}).values()
    assert found.comparable and control.comparable is (answered is None)
    assert (found.exact, found.n) == (0.25, 4)
    assert (found.total, found.total_ci95, found.accuracy, found.accuracy_ci95) == pytest.approx((0.65, 0.04, 0.5, 0.1))
    text = in_words(tmp_path)
    assert "GRPO brought 0.50 [0.47, 0.53] IoU" in text
    assert f"a blank one in its place {blank}" in text and "another clip costs 0.60 [0.55, 0.65]." in text
