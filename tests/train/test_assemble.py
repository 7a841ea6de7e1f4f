"""What a run is made of: the data sets that it may be given, and the rewards that its command line names."""

from dataclasses import fields

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.options import RewardOptions
from qwenvl.rewards.table import BY_FLAG, TABLE
from qwenvl.train.assemble import build_rewards


def test_a_path_is_a_path(make_trainer, sop_data):
    paths = [record.videos for record in make_trainer().train_dataset.records]
    assert [record.videos for record in make_trainer(datasets=[sop_data]).train_dataset.records] == paths
    assert [record.videos for record in make_trainer(datasets=[str(sop_data)]).train_dataset.records] == paths


def test_several_data_sets_for_evaluation(make_trainer, sop_data):
    train = make_trainer().train_dataset
    trainer = make_trainer(datasets=[train, {"same": train, "file": sop_data}])
    metrics = trainer.evaluate()
    assert metrics["eval_same_total_reward_n"] == metrics["eval_file_total_reward_n"] == len(train)


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_reward_table_can_be_named_on_the_command_line(name, tmp_path):
    needed = ["--model_name_or_path", "m", "--dataset_use", "d.json", "--output_dir", str(tmp_path), "--use_cpu"]
    of_the_judge = ["--judge_base_url", "http://localhost:9", "--judge_model", "m"] if name == "judge" else []
    rubric = build_rewards(parse_args([*needed, *of_the_judge, "--reward_funcs", name]), None, None)
    assert rubric.names == (name,)
    rubric.close()


@pytest.mark.parametrize("name", BY_FLAG)
def test_what_has_a_flag_of_its_own_is_no_name(name):
    assert name in {option.name for option in fields(RewardOptions)}
    with pytest.raises(RewardError, match=f"{name} is asked for by --{name}, not among --reward_funcs"):
        build_rubric([name])
