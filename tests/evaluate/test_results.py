"""From samples to numbers, redone by hand, and to their table."""

import re
from dataclasses import replace
from itertools import combinations

import pytest

from qwenvl.evaluate.answers import PASSES, equal_chance, pass_at_k, share_interval
from qwenvl.evaluate.results import results_of
from qwenvl.evaluate.results_table import table
from qwenvl.run_log.intervals import clustered_interval
from qwenvl.types import Turn
from tests.evaluate.made import sample
from tests.run_log.runs import LOOKED, REFUSED


def scored(doc_id, values, model="base", control="none", answers=None, **changes):
    """The completions of a record with these values of accuracy."""
    answers = answers or [f"({n})" for n in range(len(values))]
    rewards = [{"format": 1.0, "accuracy": value} for value in values]
    return [
        sample(doc_id, control, n, model, rewards=rewards[n], total=values[n], answer=answers[n], **changes)
        for n in range(len(values))
    ]


def numbers(results, model="base", control="none"):
    [found] = [each for each in results["numbers"] if (each["model"], each["control"]) == (model, control)]
    return found


def test_the_numbers_of_a_model_are_means_over_records():
    rows = [
        *scored(0, [1.0, 0.0, 1.0, 0.0], answers=["(1)", "(2)", "(1) lid", ""], tokens=10, fitted=None),
        *scored(1, [0.0, 0.0, 0.5, 0.0], finish_reason="length", tokens=30, prompt_tokens=110),
    ]
    found = numbers(results_of(rows, ["base"], ["none"], "accuracy", 1.0))
    assert (found["records"], found["clusters"]) == (2, 2)
    assert found["scores"]["accuracy"]["mean"] == pytest.approx((0.5 + 0.125) / 2)
    assert found["scores"][PASSES]["mean"] == pytest.approx((2 / 4 + 0) / 2)
    # Two of four pass: 1 - C(2, 2) / C(4, 2) = 5/6 for two.
    assert {k: each["mean"] for k, each in found["pass_at_k"].items()} == pytest.approx(
        {"1": 0.25, "2": 5 / 12, "4": 0.5}
    )
    assert found["no_answer"]["mean"] == pytest.approx(1 / 8) and found["truncated"]["mean"] == 0.5
    assert (found["tokens"], found["longest"], found["prompt_tokens"]) == (20, 30, 100)
    assert found["fitted"] == 1
    assert found["scores"]["accuracy"]["low"] == pytest.approx(0.125) and found["scores"]["accuracy"][
        "high"
    ] == pytest.approx(0.5)


def test_looks_are_counted_with_their_rewards_and_their_overlap_with_evidence():
    """Two of the four completions look; those of the first record that did got 12 to 15 s of 12 to 18 s."""
    rows = [*scored(0, [1.0, 0.5]), *scored(1, [0.0, 1.0])]
    assert numbers(results_of(rows, ["base"], ["none"], "accuracy", 1.0))["looks"] is None
    refused = (Turn("", (REFUSED, REFUSED)), Turn("so"))
    turns = [LOOKED, (Turn("so"),), refused, LOOKED]
    spans = [((12.0, 18.0),)] * 2 + [()] * 2
    rows = [replace(row, turns=each, evidence=own) for row, each, own in zip(rows, turns, spans, strict=True)]
    for by in ("accuracy", "total"):
        looks = numbers(results_of(rows, ["base"], ["none"], by, 1.0))["looks"]
        assert looks["looked"]["mean"] == 0.5 and looks["calls"] == 1.0 and looks["refused"] == {"mean": 0.5}
        assert looks["with_look"]["mean"] == 1.0 and looks["without_look"]["mean"] == (0.5 + 0.0) / 2
        assert looks["evidence_iou"] == {"mean": 0.25, "low": None, "high": None, "n": 1}  # 3 of 6 s, and 0


def test_drops_and_differences_are_paired():
    rows = [
        *scored(0, [1.0]),
        *scored(1, [0.5]),
        *scored(2, [0.0]),
        *scored(0, [0.0], control="blank"),
        *scored(1, [0.5], control="blank"),
        *scored(0, [1.0], "after"),
        *scored(1, [0.0], "after"),
        *scored(2, [1.0], "after"),
        *scored(3, [1.0], "after"),  # the first model had to leave it out
    ]
    results = results_of(rows, ["base", "after"], ["none", "blank"], "accuracy", 1.0)
    [drop] = [each for each in results["drops"] if each["model"] == "base"]
    assert drop["records"] == 2 and drop["scores"]["accuracy"]["mean"] == 0.5
    [difference] = [each for each in results["differences"] if each["control"] == "none"]
    assert difference["records"] == 3 and difference["scores"]["accuracy"]["mean"] == pytest.approx((0 - 0.5 + 1) / 3)
    assert (difference["better"], difference["equal"], difference["worse"]) == (1, 1, 1)
    assert numbers(results, "after")["records"] == 4
    assert ("after", "blank") not in {(each["model"], each["control"]) for each in results["numbers"]}
    assert results["numbers"][0]["scores"]["accuracy"]["n"] == 3


@pytest.mark.parametrize(
    ("full", "unread", "comparable", "answered"),
    [
        (["(1)"] * 20, 2, True, (18, 0.5)),  # 10 %
        (["(1)"] * 20, 3, False, (17, 0.5)),
        (["(1)"] * 20, 20, False, (0, None)),  # the control breaks the form of every answer
        (["(1)"] * 19 + [""], 3, False, (16, 0.5)),  # a record counts where both sides have an answer
        ([""] * 20, 20, True, (0, None)),  # its rewards read no answer block, with the evidence neither
    ],
)
def test_a_control_that_breaks_the_form_is_not_comparable(full, unread, comparable, answered):
    rows = [row for n, text in enumerate(full) for row in scored(n, [1.0], answers=[text])]
    for n in range(20):  # 0.5 where there is an answer
        text, value = ("", 0.0) if n < unread else ("(2)", 0.5)
        rows += scored(n, [value], control="blank", answers=[text])
    [drop] = results_of(rows, ["base"], ["none", "blank"], "accuracy", 1.0)["drops"]
    assert drop["no_answer"]["mean"] == unread / 20 and drop["comparable"] is comparable
    assert drop["scores"]["accuracy"]["mean"] == pytest.approx((unread + 0.5 * (20 - unread)) / 20)
    among = drop["answered"]["scores"]["accuracy"]["mean"] if drop["answered"]["scores"] else None
    assert (drop["answered"]["records"], among) == answered


def test_only_completions_with_an_answer_are_compared():
    rows = [*scored(0, [1.0, 0.0]), *scored(0, [0.5, 0.0], control="blank", answers=["(1)", ""])]
    [drop] = results_of(rows, ["base"], ["none", "blank"], "accuracy", 1.0)["drops"]
    assert drop["no_answer"]["mean"] == 0.5 and not drop["comparable"]
    assert (drop["scores"]["accuracy"]["mean"], drop["answered"]["scores"]["accuracy"]["mean"]) == (0.25, 0.0)


def test_questions_about_one_clip_are_one_cluster():
    rows = [row for n in range(4) for row in scored(n, [float(n < 2)], cluster="ab"[n // 2])]
    found = numbers(results_of(rows, ["base"], ["none"], "accuracy", 1.0))
    assert (found["records"], found["clusters"]) == (4, 2)
    assert (found["scores"]["accuracy"]["low"], found["scores"]["accuracy"]["high"]) == (0.0, 1.0)


def test_a_reward_that_does_not_apply_does_not_count():
    rows = [*scored(0, [1.0]), *scored(1, [None]), *scored(2, [0.0])]
    found = numbers(results_of(rows, ["base"], ["none"], "accuracy", 1.0))
    assert found["records"] == 3
    assert found["scores"]["accuracy"]["mean"] == found["scores"][PASSES]["mean"] == 0.5
    assert found["pass_at_k"]["1"]["mean"] == 0.5
    assert found["scores"]["accuracy"]["n"] == 2


@pytest.mark.parametrize("samples", [1, 5, 8])
def test_pass_at_k_counts_all_choices(samples):
    for passed in range(samples + 1):
        passes = [n < passed for n in range(samples)]
        for k in range(1, samples + 1):
            choices = list(combinations(passes, k))
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@pytest.mark.parametrize(
    "rewards",
    [
        [1.0, 1.0, 0.0, 0.3, 0.3, 0.3],
        [0.5] * 6,
        [None, 1.0, 1.0, 0.0, None, 0.2],
        [None] * 6,
        [0.1 + 0.2, 0.3, 0.3 + 1e-9, 0.4, None, 0.4],
    ],
    ids=["some equal", "all equal", "some missing", "all missing", "nearly equal"],
)
def test_equal_chance_counts_all_choices(rewards):
    for k in range(1, 7):
        choices = list(combinations(rewards, k))
        known = [[reward for reward in choice if reward is not None] for choice in choices]
        equal = sum(not each or max(each) - min(each) <= 1e-6 for each in known)
        assert equal_chance(rewards, k) == pytest.approx(equal / len(choices), abs=1e-12)


@pytest.mark.parametrize("n", [5, 40])
def test_shares_that_are_0_or_1_everywhere_have_wilsons_interval(n):
    for value in (0, 1):  # z^2 / (n + z^2) from the share
        width = 1.959964**2 / (n + 1.959964**2)
        found = share_interval([float(value)] * n)
        assert found == pytest.approx((value, value * (1 - width), value + (1 - value) * width, n), abs=1e-9)
    assert share_interval([0.0, 1.0] * n) == clustered_interval([0.0, 1.0] * n)


PROTOCOL = {
    "data": {"dataset_use": "held", "records": 4, "of": 9, "clusters": 4, "cluster_by": "clips and images"},
    "decoding": {"method": "sampled", "samples": 2, "temperature": 0.7, "max_new_tokens": 64},
    "passes": {"by": "accuracy", "at": 1.0},
}


def test_the_table_shows_scores_drops_differences_and_warnings(tmp_path):
    rows = [
        *(row for n in range(4) for row in scored(n, [1.0, 0.0])),
        *(row for n in range(4) for row in scored(n, [0.5, 0.0], control="blank")),
        *(row for n in range(4) for row in scored(n, [1.0, 1.0], "sop", finish_reason="length")),
        *(row for n in range(3) for row in scored(n, [0.0, 0.0], "sop", "blank", ["", ""])),
        *scored(3, [0.5, 0.0], "sop", "blank"),
    ]
    results = results_of(rows, ["base", "sop"], ["none", "blank"], "accuracy", 1.0)
    trained = {"base": (), "sop": (("video_max_frames", 16, 8),)}
    facts = [{"name": name, "trained_otherwise": otherwise} for name, otherwise in trained.items()]
    controls = ["none", "blank"]
    left_out = [{"doc_id": 9, "error": "d[9] (id x): no file"}] * len(trained) * len(controls)
    found = {**results, "protocol": PROTOCOL, "models": facts, "controls": controls, "left_out": left_out}
    text = table(found, tmp_path)
    lines = text.splitlines()
    assert lines[0] == "held: 4 of 9 records, 2 completions at temperature 0.7 of each."
    assert "drawn over 4 groups of records (clips and images)" in lines[1]
    header = re.split(r"\s{3,}", lines[3].strip())
    assert header == ["accuracy", "passes", "pass@2", "format", "total", "no answer", "cut off", "tokens"]
    assert re.split(r"\s{3,}", lines[5])[:3] == ["sop", "1.000 [1.000, 1.000]", "1.000 [0.510, 1.000]"]
    assert "sop: 100.0% of the completions were cut at 64 tokens: raise --generation_max_length" in text
    blank = next(line for line in lines if line.startswith("blank"))
    assert "0.250, drop 0.250 [0.250, 0.250]" in blank and "0.062, drop 0.938 [0.812, 1.000] *" in blank
    assert "* sop, blank: not comparable, 75.0% of the completions have no answer." in text
    assert "sop - base: accuracy +0.500 [+0.500, +0.500], on the same 4 records: better on 4, equal on 0" in text
    assert "sop: was trained with --video_max_frames 16, and is evaluated with 8" in text
    assert "left out: 1 record, which no number above counts\n  d[9] (id x): no file" in text
    partly = table(found | {"left_out": left_out[:1]}, tmp_path)
    assert "left out: 1 record, which not all numbers above count\n" in partly
    assert max(map(len, lines)) < 150


def test_nothing_is_concluded_from_models_without_an_answer(tmp_path):
    rows = [
        row
        for model in ("base", "sop")
        for control in ("none", "blank")
        for n in range(3)
        for row in scored(n, [0.0, 0.0], model, control, ["", ""])
    ]
    results = results_of(rows, ["base", "sop"], ["none", "blank"], "accuracy", 1.0)
    facts = [{"name": name, "trained_otherwise": ()} for name in ("base", "sop")]
    found = {**results, "protocol": PROTOCOL, "models": facts, "controls": ["none", "blank"], "left_out": []}
    text = table(found, tmp_path)
    for name in ("base", "sop"):
        assert f"{name}: no completion has an answer" in text
    assert "Does it look?" not in text and "drop" not in text and "sop - base" not in text


def test_looks_have_a_table(tmp_path):
    rows = [row for n in range(2) for row in scored(n, [1.0, 0.0], "sop")]
    rows = [replace(row, turns=LOOKED, evidence=((12.0, 18.0),)) for row in rows]
    results = results_of(rows, ["sop"], ["none"], "accuracy", 1.0)
    text = table({**results, "protocol": PROTOCOL, "models": [], "controls": ["none"], "left_out": []}, tmp_path)
    line = next(each for each in text.splitlines() if "100.0%" in each)
    assert re.split(r"\s{3,}", line) == [
        *("sop", "100.0%", "1.00", "0.500 [0.500, 0.500]", "-", "0.500 [0.500, 0.500]", "0.0%")
    ]
