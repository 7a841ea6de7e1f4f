"""Two processes whose steps are sampled ahead: the update of one, also where both were killed and resumed."""

from __future__ import annotations

import pytest

from tests.train.test_distributed import COMMON, assert_same_numbers, assert_same_update, launch_ranks, logged

AHEAD = {"async_rollouts": 2, "max_steps": 3, "logging_steps": 1, "save_strategy": "steps", "save_steps": 1}


def launch(processes: int, checkpoint, data, output, *, killed: bool = False, **flags) -> None:
    arguments = [f"--{name}={value}" for name, value in {**COMMON, **AHEAD, **flags}.items()]
    launch_ranks("run_ahead", processes, str(checkpoint), str(data), str(output), arguments, how={"killed": killed})


def test_two_processes_killed_and_resumed_make_the_update_of_one(tiny_checkpoint, sop_data, tmp_path):
    start, one, two = tiny_checkpoint(initializer_range=0.1), tmp_path / "one", tmp_path / "two"
    launch(1, start, sop_data, one, per_device_train_batch_size=2)
    with pytest.raises(AssertionError):  # it is killed
        launch(2, start, sop_data, two, killed=True, per_device_train_batch_size=1)
    kept = sorted(each.name for each in (two / "checkpoint-1").glob("sampled_ahead_*"))
    assert kept == ["sampled_ahead_0.pt", "sampled_ahead_1.pt"]
    launch(2, start, sop_data, two, per_device_train_batch_size=1, resume="auto")
    assert_same_update(two, one, start, updates=3)
    assert_same_numbers(two, one, ("async/staleness", "sampler/ratio_mean", "reward/total"), rows=3)
    assert logged(two, "async/staleness") == [[0], [1], [2]]
