"""Several data sets in one run: drawn by their weights, logged apart, and the same after a restart."""

import json
from collections import Counter
from pathlib import Path

import pytest

from qwenvl.data.order import EpochSampler
from qwenvl.run_log.log import read_metrics, read_rollouts


@pytest.fixture
def two_sets(sop_data, tmp_path) -> tuple[str, str]:
    """Annotation files of two records with clips and of six of text; in each epoch of eight, 5 and 3 by 0.6 and 0.4."""
    rows = json.loads(sop_data.read_text())
    clips = [row | {"video": str(sop_data.parent / row["video"])} for row in rows[:2]]
    texts = [row | {"id": f"text-{n}"} for n, row in enumerate([rows[6]] * 6)]
    for name, chosen in (("clips.json", clips), ("texts.json", texts)):
        (tmp_path / name).write_text(json.dumps(chosen))
    return str(tmp_path / "clips.json"), str(tmp_path / "texts.json")


def drawn_in(run: Path) -> list[tuple[int, str, int]]:
    """(step, record, pass) of each prompt."""
    return [(row.step, row.record_id, row.epoch) for row in read_rollouts(run) if row.sample == 0]


def test_shares_and_rewards_are_logged_for_each_data_set(make_trainer, two_sets):
    clips, texts = two_sets
    trainer = make_trainer(
        dataset_use=f"{clips}:0.6,{texts}:0.4",
        allow_outside_media=True,
        max_steps=4,
        per_device_train_batch_size=2,
    )
    trainer.train()
    run = Path(trainer.args.output_dir)
    sampler = EpochSampler(trainer.train_dataset.parts, seed=3)
    ids = [record.id for record in trainer.train_dataset.records]
    assert [each[1:] for each in drawn_in(run)] == [(ids[index], turn) for turn, index in sampler]
    assert Counter(record.split("-")[0] for _, record, _ in drawn_in(run)) == {"clip": 5, "text": 3}

    rollouts = list(read_rollouts(run))
    for row in read_metrics(run)[:4]:
        for name, kind in ((clips, "clip"), (texts, "text")):
            own = [each for each in rollouts if each.step == row["step"] and each.record_id.startswith(kind)]
            assert row[f"dataset/{name}/drawn"] == len(own) / 3  # three completions of each
            if own:
                mean = sum(each.total for each in own) / len(own)
                assert row[f"dataset/{name}/reward"] == pytest.approx(mean, abs=1e-6)
            else:
                assert f"dataset/{name}/reward" not in row


def test_weights_of_evaluation_data_are_refused(make_trainer, two_sets):
    with pytest.raises(ValueError, match="--eval_dataset_use: weights have no effect: evaluation takes every record"):
        make_trainer(eval_dataset_use=f"{two_sets[0]}:1,{two_sets[1]}:2", allow_outside_media=True)
