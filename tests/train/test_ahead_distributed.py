"""Two processes whose steps are sampled ahead: the update of one, also where both were killed and resumed."""

from __future__ import annotations

import pytest
import torch

from tests.train.test_distributed import COMMON, assert_same_numbers, assert_same_update, launch_ranks, logged, weights

AHEAD = {"async_rollouts": 2, "max_steps": 3, "logging_steps": 1, "save_strategy": "steps", "save_steps": 1}


def launch(processes: int, checkpoint, data, output, **flags) -> None:
    arguments = [f"--{name}={value}" for name, value in {**COMMON, **AHEAD, **flags}.items()]
    launch_ranks("run_ahead", processes, str(checkpoint), str(data), str(output), arguments)


def test_two_processes_killed_and_resumed_make_the_update_of_one(tiny_checkpoint, sop_data, tmp_path):
    start = tiny_checkpoint(initializer_range=0.1)
    launch(1, start, sop_data, tmp_path / "one", per_device_train_batch_size=2)
    launch(2, start, sop_data, tmp_path / "two", per_device_train_batch_size=1)
    assert_same_update(tmp_path / "two", tmp_path / "one", start, updates=3)
    names = ("async/staleness", "sampler/ratio_mean", "reward/total")
    assert_same_numbers(tmp_path / "two", tmp_path / "one", names, rows=3)
    assert logged(tmp_path / "two", "async/staleness") == [[0], [1], [2]]

    with pytest.raises(AssertionError):  # it is killed
        launch(2, start, sop_data, tmp_path / "killed", per_device_train_batch_size=1)
    kept = sorted(each.name for each in (tmp_path / "killed" / "checkpoint-1").glob("sampled_ahead_*"))
    assert kept == ["sampled_ahead_0.pt", "sampled_ahead_1.pt"]
    launch(2, start, sop_data, tmp_path / "killed", per_device_train_batch_size=1, resume="auto")
    whole, resumed = weights(tmp_path / "two"), weights(tmp_path / "killed")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert logged(tmp_path / "killed", "async/staleness") == [[0], [1], [2]]
