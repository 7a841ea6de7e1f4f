"""Rewards for looks, by hand."""

from dataclasses import replace

import pytest

from qwenvl.rewards import build_rubric
from qwenvl.rewards.functions.looking import evidence_of
from qwenvl.types import FrameInfo, ToolCall, Turn


def completion(*calls, answer="<answer>1</answer>") -> tuple[Turn, ...]:
    return Turn("look", calls), Turn(answer)


def look(start, end, error=None, within=None) -> ToolCall:
    """A look. Rows of earlier versions lack the span ``within`` the clip."""
    clip = FrameInfo("a.mp4", (0, 1), (start, end), None, 1.0, looked_at=within)
    return ToolCall("look", {"start": start, "end": end}, () if error else (clip,), error=error)


@pytest.mark.parametrize(
    "calls, evidence, value",
    [
        ([look(2.0, 4.0)], [[3, 5]], 1 / 3),
        ([look(0.0, 1.0), look(3.0, 5.0)], [[3, 5]], 2 / 3),
        ([look(3.0, 4.0), look(3.5, 5.0)], [[3, 4], [4, 5]], 1.0),
        ([look(3.0, 5.0, error="no")], [[3, 5]], 0.0),
        ([look(-1e308, 1e308, within=(0.0, 8.0))], [[3, 5]], 0.25),
        ([replace(look(3.0, 4.0), arguments={"start": "00:03", "end": "00:04"})], [[3, 5]], 0.5),
        ([], [[3, 5]], 0.0),
        ([look(3.0, 5.0)], None, None),
    ],
    ids=[
        "one look",
        "two looks",
        "two spans",
        "a refused look",
        "an endless look",
        "clock times",
        "no look",
        "no evidence",
    ],
)
def test_evidence_iou_is_the_overlap_of_looks_and_evidence(calls, evidence, value):
    columns = {"turns": [completion(*calls)], "evidence": [evidence], "solution": ["1"]}
    [got] = build_rubric(["evidence_iou", "format"]).score(["..."], columns).components[0]
    assert got == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    "given",
    [
        *([], [[2, 1]], [[1]], "1-2", [[-1, 2]], [["a", 2]], [[0, 10**400]]),
        *(["12", "35"], {"12": 0}, [1, 2], [[0, 1], "23"]),
    ],
)
def test_evidence_of_another_form_is_refused_with_the_record(given):
    assert "must be a list of [start, end]" in build_rubric("evidence_iou").check_solution("1", {"evidence": given})


def test_evidence_has_times_as_other_spans_do():
    assert evidence_of({"evidence": [["0:01.5", "3 s"], (4, 5)]}) == [(1.5, 3.0), (4.0, 5.0)]
    assert evidence_of({}) is None


def test_the_bonus_is_for_completions_that_looked_and_are_right():
    texts = ["<answer>1</answer>", "<answer>1</answer>", "<answer>2</answer>", *["<answer>1</answer>"] * 3]
    turns = [
        completion(look(1.0, 2.0)),
        completion(),
        completion(look(1.0, 2.0)),
        completion(look(1.0, 2.0, "no")),
        completion(ToolCall("note", {}, text="noted")),
        completion(ToolCall("zoom", {}, pictures=1)),
    ]
    columns = {"turns": turns, "solution": ["<answer>1</answer>"] * len(turns)}
    rubric = build_rubric("looked_and_right(bonus=0.2, correctness_func='exact_match')")
    assert rubric.score(texts, columns).components[0] == [0.2, 0.0, 0.0, 0.0, 0.0, 0.2]


def test_strict_format_reads_the_last_turn():
    turns = [completion(look(1.0, 2.0), answer="<think>a</think><answer>1</answer>")]
    columns = {"turns": turns, "solution": ["1"]}
    assert build_rubric("strict_format").score(["<think>b</think>..."], columns).totals() == [1.0]
