"""Groups, their marks and the rule of suspicion."""

import math

import pytest
import torch

from qwenvl.grpo.diagnostics import equal_groups
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.run_log.report.pages import (
    DROPPED,
    EQUAL,
    REPEATED,
    SUSPECT,
    TRUNCATED,
    UNSCORED,
    dataset_of,
    grouped,
    marks,
    suspicions,
)
from tests.run_log.runs import ROLLOUTS, group, rollout


def test_rows_of_one_prompt_make_a_group():
    found = list(grouped(ROLLOUTS))
    assert [(each[0].split, each[0].step, each[0].record_id, len(each)) for each in found] == [
        ("eval", 0, "held", 1),
        ("train", 1, "17", 4),
        ("train", 1, "18", 4),
        ("train", 2, "17", 4),
        ("train", 2, "18", 4),
        ("eval", 2, "held", 1),
    ]


def test_a_record_drawn_twice_in_a_step_makes_two_groups():
    assert [len(each) for each in grouped([*group([0.0, 1.0]), *group([1.0, 1.0])])] == [2, 2]


def test_the_data_set_is_the_file_of_the_record():
    places = ["data/sop.json[17]", "/d/more.jsonl:3", "a/b.parquet[0]", ""]
    assert [dataset_of(place) for place in places] == ["sop", "more", "b", ""]


def test_the_marks_of_a_group_are_added_up():
    assert marks(group([0.5, 0.5, 0.5])) == EQUAL
    assert marks(group([0.5, 1.0, 0.5])) == 0
    cut = [rollout(finish_reason="length", sample=0), rollout(sample=1, total=None)]
    assert marks(cut) == EQUAL | TRUNCATED | UNSCORED
    right = group([1.0, 1.0, 0.5, 0.5], ["same"] * 2 + ["other", "more"])
    assert marks(right) == REPEATED
    assert marks([rollout()]) == 0, "an evaluation has one completion of each prompt"
    for totals, equal in (([0.5, 0.5 + 2e-7], 1), ([0.5, None], 1), ([None, None], 1), ([0.5, 0.51], 0)):  # as the log
        made = [rollout(sample=n, completion=str(n), total=total) for n, total in enumerate(totals)]
        logged = equal_groups(torch.tensor([math.nan if each is None else each for each in totals]), 2).item()
        assert marks(made) & EQUAL == equal == logged
    assert marks(group([0.5, 0.5], dropped=True)) == EQUAL | DROPPED


@pytest.mark.parametrize(
    ("totals", "texts", "reasons"),
    [
        ([0.0, 0.0, 1.0, 1.0], None, ["2 of 4 completions keep the form and have nothing right"]),
        ([0.0, 0.5, 1.0, 1.0], None, []),
        (
            [0.4, 0.4, 1.0, 1.0],
            ["a b", " a b\n", "c", "d"],
            ["2 of 4 completions are the same text, which is not right"],
        ),
        ([1.0, 1.0, 1.0, 1.0], ["a"] * 4, []),  # solved
        ([0.0, 0.0], ["a"] * 2, []),  # too few to tell
    ],
    ids=[
        "half has nothing right",
        "a quarter has nothing right",
        "half has the same wrong text",
        "solved",
        "too few to tell",
    ],
)
def test_suspicion_asks_for_half_of_a_group(totals, texts, reasons):
    made = group(totals, texts)
    assert suspicions(made) == reasons and bool(marks(made) & SUSPECT) == bool(reasons)


def test_without_a_reward_for_the_form_nothing_is_hollow():
    rows = [rollout(sample=n, completion=str(n), rewards={"accuracy": 0.0}, total=0.0) for n in range(4)]
    assert suspicions(rows) == []


def test_a_word_within_another_one_says_nothing_of_the_form():
    for name, is_hollow in (("stage_accuracy", True), ("percentage_right", True), ("tag_count", False)):
        rewards = {"format": 1.0, name: 0.0}
        rows = [rollout(sample=n, completion=str(n), rewards=rewards, total=0.0) for n in range(4)]
        assert bool(suspicions(rows)) == is_hollow, name


@pytest.mark.parametrize("name", TABLE)
def test_a_reward_of_the_table_is_about_the_form_or_about_the_content(name):
    rewards = {"format": 1.0, "count": 0.0} | {name: 0.4}  # it has the form, and is wrong but for this one
    rows = [rollout(sample=n, completion=str(n), rewards=rewards, total=0.0) for n in range(4)]
    is_hollow = suspicions(rows) == ["4 of 4 completions keep the form and have nothing right"]
    low_format = {"format", "strict_format"}  # 0.4 of the form itself
    assert is_hollow == (name in SHAPING and name not in low_format)
