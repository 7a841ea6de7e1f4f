"""What may be given to the trainer as a data set."""

import json

import pytest


def test_a_path_is_a_path(make_trainer, sop_data):
    paths = [record.videos for record in make_trainer().train_dataset.records]
    assert [record.videos for record in make_trainer(datasets=[sop_data]).train_dataset.records] == paths
    assert [record.videos for record in make_trainer(datasets=[str(sop_data)]).train_dataset.records] == paths


def test_several_data_sets_for_evaluation(make_trainer, sop_data):
    train = make_trainer().train_dataset
    trainer = make_trainer(datasets=[train, {"same": train, "file": sop_data}])
    metrics = trainer.evaluate()
    assert metrics["eval_same_total_reward_n"] == metrics["eval_file_total_reward_n"] == len(train)


@pytest.mark.parametrize("of", [lambda rows: rows, lambda rows: {"train": rows}])
def test_rows_are_not_a_data_set(make_trainer, sop_data, of):
    with pytest.raises(TypeError, match=r"expected a data set of qwenvl\.data or .*, got (list|dict)"):
        make_trainer(datasets=[of(json.loads(sop_data.read_text()))])
