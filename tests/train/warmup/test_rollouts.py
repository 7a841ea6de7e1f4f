"""The best completions of a run: which are taken, and which records are left."""

import json
import math

import pytest

from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.order import Part
from qwenvl.runlog import Rollout, RunLog
from qwenvl.train.warmup.targets import Asked, RolloutTargets, best_completions

PROMPT = "<video>\nWhich steps? (1) pick (2) insert (3) fasten"


def rollout(
    text, total, *, record="clip-0", step=1, sample=0, reason="stop", solution="<answer>(1) step</answer>", **more
):
    prompt = ({"role": "user", "text": PROMPT},)
    return Rollout(step, record, sample, prompt, solution, text, 5, reason, {}, total, **more)


def test_the_best_are_taken_equal_texts_once_the_latest_first_and_cut_ones_never():
    rows = [
        rollout("good", 0.9, step=1),
        rollout("better", 1.0, step=1),
        rollout("good", 0.9, step=3),
        rollout("as good", 0.9, step=2, sample=1),
        rollout("as good too", 0.9, step=2, sample=0),
        rollout("bad", 0.89),
        rollout("no reward", None),
        rollout("not finished", 1.0, reason="length"),
        rollout("another's", 0.95, record="clip-2"),
    ]
    best = best_completions(rows, min_reward=0.9, most=3)
    assert {asked.record_id: texts for asked, texts in best.items()} == {
        "clip-0": ["better", "good", "as good too"],
        "clip-2": ["another's"],
    }


@pytest.fixture
def run(tmp_path):
    """``run(*rollouts)`` -> the folder of a run with these completions."""

    def write(*rows: Rollout) -> str:
        RunLog(tmp_path / "run").log_rollouts(rows)
        return str(tmp_path / "run")

    return write


def test_records_without_a_good_completion_are_left_out(run, sop_data, tmp_path):
    folder = run(
        rollout("one", 1.0),
        rollout("four", 1.0, record="clip-3", split="eval"),
        rollout("of another solution", 1.0, record="clip-1"),
    )
    (tmp_path / "text.json").write_text(json.dumps(json.loads(sop_data.read_text())[6:7]))
    whole = load_dataset(f"{tmp_path}/text.json:2,{sop_data}:3", base_interval=0.5)
    targets = RolloutTargets(folder, 0.9, 4)
    dataset = targets.narrow(whole, "--dataset_use")
    assert dataset.parts == (Part(str(sop_data), 2, 3),)
    assert {record.id: targets.of(record, False) for record in dataset.records} == {
        "clip-0": ["one"],
        "clip-3": ["four"],
    }
    assert dataset.options == whole.options and dataset.rule == whole.rule
    nothing = GRPODataset([whole.records[0]], whole.options)
    with pytest.raises(ValueError, match=r"^--dataset_use: none of its 1 records is one that .* such as id clip-0\."):
        targets.narrow(nothing, "--dataset_use")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no completions lie there; is it the --output_dir of a run?"),
        ([rollout("a", None)], "none of its 1 completions has a reward"),
        (
            [rollout("a", 0.25), rollout("b", 0.45)],
            "none of its 2 completions has a reward at or above --min_reward 0.9: the best was 0.45",
        ),
        (
            [rollout("a", 1.0, reason="length"), rollout("b", 0.1)],
            "all 1 completions at or above --min_reward 0.9 were cut at the length limit",
        ),
    ],
)
def test_a_run_without_anything_to_learn_from_says_what_it_has(run, rows, message):
    folder = run(*rows)
    with pytest.raises(ValueError) as refused:
        RolloutTargets(folder, 0.9, 4)
    assert str(refused.value) == f"--from_rollouts {folder}: {message}"


def test_a_record_is_known_by_what_was_asked(sop_data):
    [record, *_] = load_dataset(str(sop_data)).records
    assert Asked.by(record) == Asked.of(rollout("any", math.nan))
