"""Numbers of an evaluation in the cards of its models, from values by hand."""

import json

import pytest
from huggingface_hub import EvalResult, ModelCard

from qwenvl.runlog import NUMBERS
from qwenvl.train.card.document import Metadata, write_card
from qwenvl.train.card.results import update_cards


def interval(mean: float, low: float | None, high: float | None) -> dict:
    return {"mean": mean, "low": low, "high": high, "n": 3}


def numbers(model: str, control: str, mean: float) -> dict:
    scores = {"accuracy": interval(mean, mean - 0.1, mean + 0.1), "total": interval(mean, None, None)}
    shares = {name: interval(0.25, 0.0, 0.5) for name in ("no_answer", "truncated")}
    return {"model": model, "control": control, "records": 4, "clusters": 3, "scores": scores, **shares}


@pytest.fixture
def evaluation(tmp_path):
    """The folder of an evaluation of a model on the hub and of a run with a card."""
    facts = {"prompts_hash": "a" * 64, "template_hash": "b" * 64, "weights": None, "dtype": "bf16"}
    paths = {"base": "org/base", "run": str(tmp_path / "run")}
    models = [{"name": name, "path": path, **facts} for name, path in paths.items()]
    means = (("base", "none", 0.3), ("run", "none", 0.9), ("run", "blank", 0.4), ("run", "shuffled", 0.2))
    drop = {"model": "run", "no_answer": interval(0.0, 0.0, 0.1), "comparable": True}
    few = {"records": 3, "scores": {"accuracy": interval(0.1, 0.0, 0.2)}}
    broken = {"no_answer": interval(0.25, 0.0, 0.5), "comparable": False, "answered": few}
    found = {
        "format": 1,
        "command": "qwenvl evaluate org/base run data.json",
        "ended": "2026-01-02",
        "models": models,
        "controls": ["none", "blank", "shuffled"],
        "protocol": {
            "data": {"dataset_use": "data.json", "cluster_by": "clips and images"},
            "decoding": {"samples": 1, "max_new_tokens": 40},
            "frames": {"video_min_frames": 4, "video_max_frames": 8},
            "prompts": {"video_min_frame_pixels": 3136, "video_max_frame_pixels": 25088},
            "decoder": "pyav",
            "passes": {"by": "accuracy", "at": 1.0},
        },
        "numbers": [numbers(*each) for each in means],
        "drops": [
            {**drop, "control": "blank", "scores": {"accuracy": interval(0.5, 0.4, 0.6)}},
            {**drop, **broken, "control": "shuffled", "scores": {"accuracy": interval(0.7, 0.6, 0.8)}},
        ],
        "differences": [
            {
                **{"before": "base", "after": "run", "control": "none", "better": 3, "equal": 1, "worse": 0},
                "scores": {"total": interval(0.6, 0.5, 0.7)},
            }
        ],
    }
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / NUMBERS).write_text(json.dumps(found))
    during = EvalResult(
        task_type="video-text-to-text",
        dataset_type="held-out",
        dataset_name="d",
        metric_type="total_reward",
        metric_value=0.5,
    )
    (tmp_path / "run").mkdir()
    write_card(tmp_path / "run", "# Run\n", {"inputs": "## Inputs"}, Metadata("run", "transformers", results=[during]))
    return folder


def test_the_card_has_the_scores_controls_and_difference(evaluation, tmp_path):
    for _ in range(2):  # a further evaluation takes the place of the first
        assert update_cards(evaluation) == ([tmp_path / "run" / "README.md"], ["org/base"])
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.count("## Evaluation") == card.count("## Inputs") == 1
    assert "4 records of `data.json`, one greedy answer to each." in card
    assert "| as it is | 0.900 [0.800, 1.000] | 0.900 (one cluster) |" in card
    assert "| blank | 0.400 [0.300, 0.500] | 0.400 (one cluster) |" in card
    assert "| drop by blank | 0.500 [0.400, 0.600] |  |" in card
    assert "| drop by shuffled, not comparable: 25.0% without an answer | 0.700 [0.600, 0.800] |  |" in card
    assert "| drop by shuffled, among 3 answered records | 0.100 [0.000, 0.200] |  |" in card
    assert "Compared with `base`, record by record: total +0.600 [0.500, 0.700]; better on 3, equal on 1, worse" in card
    assert "4 to 8 frames of 3,136 to 25,088 pixels, decoded by pyav; at most 40 new tokens; 25.0% without" in card
    data = ModelCard.load(tmp_path / "run" / "README.md").data
    assert [(each.metric_type, each.metric_value) for each in data.eval_results] == [
        ("total_reward", 0.5),
        ("accuracy", 0.9),
        ("total", 0.9),
    ]


def test_a_card_that_was_broken_by_hand_is_named(evaluation, tmp_path):
    (tmp_path / "run" / "README.md").write_text("---\ntags: [mine\n---\n# Ours\n")
    with pytest.raises(ValueError, match=r"run/README.md: its metadata can't be read"):
        update_cards(evaluation)
    assert (tmp_path / "run" / "README.md").read_text() == "---\ntags: [mine\n---\n# Ours\n"
