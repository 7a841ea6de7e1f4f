import pickle

import pytest

from qwenvl.rewards import build_rubric
from qwenvl.rewards.function import Completion, reward_columns
from qwenvl.types import Message, Record


def record(name, **fields):
    message, place = Message("user", "<video>what?"), f"x.json[{name}]"
    return Record(name, (message,), "(1)", ("/a.mp4",), (), (None,), {"id": name, **fields}, place)


def test_fields_are_repeated_for_the_group():
    columns = reward_columns([record("a", nums=[1, 2]), record("b", level=3)], 2, finish_reasons=list("wxyz"))
    assert columns == {
        "id": ["a", "a", "b", "b"],
        "nums": [[1, 2], [1, 2], None, None],
        "level": [None, None, 3, 3],
        "solution": ["(1)"] * 4,
        "prompts": [[{"role": "user", "content": "<video>what?"}]] * 4,
        "video_paths": [["/a.mp4"]] * 4,
        "image_paths": [[]] * 4,
        "opened_think": [False] * 4,
        "finish_reasons": ["w", "x", "y", "z"],
    }


VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.endswith(ground_truth)
    return {"score": 1.0 if right else 0.0, "length": len(solution_str), "note": "text", "source": data_source}


def plain(data_source, solution_str, ground_truth, extra_info):
    return extra_info["weight"] * (solution_str == ground_truth)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "verl_rewards.py"
    path.write_text(VERL)
    return path


def test_a_dict_gives_the_score_and_metrics(file):
    batch = build_rubric([f"verl:{file}:compute_score"]).score(["= 4", "four"], {"solution": ["4", "4"]})
    assert batch.names == ("compute_score",) and batch.total.tolist() == [1.0, 0.0]
    assert batch.metrics == {"reward/compute_score/length": 3.5}


def test_the_fields_that_verl_data_has_are_used(file):
    columns = {
        "solution": ["x"] * 3,
        "reward_model": [{"style": "rule", "ground_truth": "4"}, None, {"ground_truth": "9"}],
        "ground_truth": [None, None, "5"],
        "extra_info": [{"weight": 2}, {"weight": 3}, {"weight": 5}],
    }
    batch = build_rubric([f"verl:{file}:plain"]).score(["4", "x", "5"], columns)
    assert batch.components == [[2.0, 3.0, 5.0]]


def test_a_completion_reads_as_text_and_as_a_conversation():
    text = Completion("four")
    assert text == "four" and text[0] == "f" and text[-1] == "r" and text[1] == "o" and text[:2] == "fo"
    assert text[0]["content"] == text[-1]["content"] == text[0].get("content") == "four"
    assert text[0]["role"] == "assistant"
    assert Completion("")[0]["content"] == ""
    with pytest.raises(IndexError):
        text[4]


def test_a_completion_pickles():
    assert pickle.loads(pickle.dumps(Completion("four")))[0]["content"] == "four"
    assert pickle.loads(pickle.dumps(Completion("four")[0])) == "f"
