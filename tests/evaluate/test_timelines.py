"""The numbers of timelines in an evaluation, redone by hand, their table, and the check against a procedure."""

import random

import pytest

from qwenvl.evaluate.results import results_of
from qwenvl.evaluate.results_table import table
from qwenvl.evaluate.timelines import check_procedure, deviations, procedure_rows
from qwenvl.types import FrameInfo
from tests.evaluate.made import sample

TARGET = "<answer>0.0-4.0 (1) fan\n4.0-8.0 (2) screw</answer>"
CLIP = (FrameInfo("clips/a.mp4", (0, 4), (0.0, 9.5), duration=10.0),)
STEPS = ["fan", "screw", "lid"]


def answered(doc_id, answer, target=TARGET, **changes):
    rewards = {"segment_f1": 1.0}
    return sample(doc_id, answer=answer, target=target, rewards=rewards, clips=CLIP, **{"fitted": None} | changes)


def timelines(rows):
    [found] = results_of(rows, ["base"], ["none"], "segment_f1", 1.0)["numbers"]
    return found["timelines"]


def test_the_measures_are_means_over_records():
    rows = [
        answered(0, "0-4 (1)\n4-8 (2)"),
        answered(1, "0-4 (1)\n6-8 (3)"),  # (2) is missed, and (3) there in its place
    ]
    found = timelines(rows)
    means = {name: each["mean"] for name, each in found["scores"].items()}
    # Frames of the second record: 0-4 and 8-10 of 10 s, and 4-6 and 6-8 are wrong.
    assert means == pytest.approx({"f1@10": 0.75, "f1@25": 0.75, "f1@50": 0.75, "edit": 0.75, "frames": 0.8})
    assert found["records"] == 2


def test_each_step_has_its_recall_and_its_errors():
    rows = [
        answered(0, "0-4.5 (1)\n5-8 (2)"),
        answered(1, "0.5-3.5 (1)\n6.5-8.5 (2)"),  # (2) overlaps by 1.5 of 4.5 s
    ]
    fan, screw = timelines(rows)["steps"]
    assert (fan["step"], fan["name"], fan["spans"], fan["recall"]) == (1, "fan", 2, 1.0)
    assert (fan["start_error"], fan["end_error"]) == (0.25, 0.5)
    assert (screw["recall"], screw["start_error"], screw["end_error"]) == (0.5, 1.75, 0.25)


def test_a_step_that_was_never_found_has_no_error():
    [_, screw] = timelines([answered(0, "0-4 (1)")])["steps"]
    assert (screw["recall"], screw["start_error"]) == (0.0, None)


def test_steps_named_in_place_of_others_are_counted_as_confusions():
    rows = [
        answered(0, "0-4 (3)\n4-8 (2)"),
        answered(1, "0-3 (3)\n9-10 (3)"),  # (1) is taken for (3), (2) is missing, and (3) is there once more
    ]
    confusions = {(row["step"], row["named"]): row["count"] for row in timelines(rows)["confusions"]}
    assert confusions == {(1, 3): 2, (2, None): 1, (None, 3): 1}


def test_names_are_read_by_the_list_of_the_prompt():
    prompt = ({"role": "user", "text": "<video>\nWhich?\n(1) fan\n(2) screw"},)
    assert timelines([answered(0, "0-4 Fan; 4-8 screw", prompt=prompt)])["scores"]["f1@50"]["mean"] == 1.0


def test_records_of_other_questions_have_no_timelines():
    assert timelines([sample(0, rewards={"segment_f1": None}, target="(1) lid")]) is None
    other = sample(0, rewards={"segment_f1": None}, target="at 0-4 a man opens the lid")
    assert timelines([other]) is None
    assert timelines([answered(0, ""), other.__class__(**{**vars(other), "doc_id": 1})])["records"] == 1


def evaluation(rows, **changes):
    found = results_of(rows, ["base"], ["none", "blank"], "segment_f1", 1.0)
    data = {"dataset_use": "d", "records": 2, "of": 2, "clusters": 2, "cluster_by": "clips and images"}
    decoding = {"method": "greedy", "samples": 1, "max_new_tokens": 64}
    protocol = {"data": data, "decoding": decoding, "passes": {"by": "segment_f1", "at": 1.0}}
    models = [{"name": "base", "trained_otherwise": []}]
    known = {"protocol": protocol, "models": models, "controls": ["none", "blank"], "left_out": []}
    return {**found, **known, "procedure": None, **changes}


def test_the_table_shows_measures_steps_and_confusions():
    rows = [answered(0, "0-4 (1)\n4-8 (2)"), answered(1, "0-4 (1)\n6-8 (3)"), answered(0, "", control="blank")]
    text = table(evaluation(rows), "runs/e")
    assert "F1@50" in text and "base        blank" in " ".join(text.split("\n"))
    assert "(1) fan" in text and "100.0%   0.00 s" in text
    assert "1 time (2) screw is taken for (3)" in text


def test_steps_are_named_as_the_prompt_lists_them_and_long_ones_are_cut_in_the_table():
    long = "Press down the flip lock connector at the centre, with the left hand while the right hand holds it"
    prompt = ({"role": "user", "text": f"<video>\nWhich?\n(1) Insert the FFC\n(2) {long}"},)
    found = evaluation([answered(0, "0-4 (1)", prompt=prompt)])
    names = [step["name"] for step in found["numbers"][0]["timelines"]["steps"]]
    assert names == ["Insert the FFC", long]
    text = table(found, "runs/e")
    assert "(1) Insert the FFC   " in text and "(2) Press down the flip lock connector" in text
    assert long not in text and max(map(len, text.splitlines())) < 150


def test_the_clips_that_deviate_from_a_procedure_are_listed():
    whole = "<answer>0-1 (1) fan\n1-2 (2) screw\n2-3 (3) lid</answer>"
    rows = [
        answered(0, "0-1 (1)\n1-2 (2)\n2-3 (3)", whole),
        answered(1, "0-1 (2)\n1-2 (1)\n2-3 (3)", whole),
        answered(2, "0-1 fan; 1-2 lid; 2-3 wave", "<answer>0-1 (1) fan\n1-2 (3) lid</answer>"),
        answered(3, "(1) fan (3) lid", "(1) (2) (3)"),  # without times
        answered(4, "", whole),
        answered(1, "", whole, control="blank"),
    ]
    found = procedure_rows(rows, STEPS)
    assert [row["doc_id"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["answer"] for row in found] == [
        {"missing": [], "out_of_order": [], "unknown": []},
        {"missing": [], "out_of_order": [2], "unknown": []},
        {"missing": [2], "out_of_order": [], "unknown": ["wave"]},
        {"missing": [2], "out_of_order": [], "unknown": []},
        {"missing": [1, 2, 3], "out_of_order": [], "unknown": []},
    ]
    assert [any(row["solution"].values()) for row in found] == [False, False, True, False, False]
    text = table(evaluation(rows, procedure={"file": "steps.txt", "steps": STEPS, "clips": found}), "runs/e")
    assert "deviations in 4 of 5 records. The solutions have 1: 1 found, 3 false alarms." in text
    assert "  r1: (2) screw is out of order\n" in text
    assert "  r4: no step is named\n" in text
    assert "  r2: (2) screw is missing; wave is no step of the procedure\n" in text


@pytest.mark.parametrize(
    ("sequence", "missing", "out_of_order"),
    [
        *(([], [1, 2, 3, 4], []), ([1, 2, 3, 4], [], []), ([1, 1, 2, 3, 3, 4], [], [])),
        ([4, 1, 2, 3], [], [4]),
        ([1, 3, 2, 2, 4], [], [3]),
        ([4, 3], [1, 2], [4]),
    ],
    ids=str,
)
def test_the_fewest_steps_are_out_of_order(sequence, missing, out_of_order):
    found = deviations(sequence, 4)
    assert (found.missing, found.out_of_order, found.unknown) == (missing, out_of_order, [])


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_steps_are_found_by_trying_all(seed):
    sequence = [random.Random(f"{seed}-{place}").randint(1, 5) for place in range(8)]
    longest = 0
    for chosen in range(2**8):
        kept = [step for place, step in enumerate(sequence) if chosen >> place & 1]
        longest = max(longest, len(kept) if kept == sorted(kept) else 0)
    assert len(deviations(sequence, 5).out_of_order) == len(sequence) - longest


def test_a_procedure_that_no_solution_names_is_refused():
    for solution in ("<answer>0-1 (3) lid</answer>", "(1)", "0-1 fan"):
        check_procedure(["B", solution], STEPS, "steps.txt")
    for solutions in ([], ["B"], ["(4)"], ["0-1 wave"]):
        with pytest.raises(ValueError, match=r"--procedure steps\.txt"):
            check_procedure(solutions, STEPS, "steps.txt")
