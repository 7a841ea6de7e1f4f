"""What a reward function logs stands beside the run's own columns, never in their place."""

import pytest

from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.logged import Logged


def test_means_by_name():
    log = Logged(["format"])
    for value in (1, 2, 6):
        log("my/length", value)
    log("reward/my_part", 0.5)
    assert log.means() == {"my/length": 3.0, "reward/my_part": 0.5}


@pytest.mark.parametrize("name", ["loss", "step", "kl", "reward/total", "reward/format", "time/sample_s", "eval_x"])
def test_a_column_of_the_run_is_not_replaced(name):
    log = Logged(["format"])
    with pytest.raises(ValueError, match=rf"log_metric\('{name}', ...\): the run logs a column of that name itself"):
        log(name, 1.0)
    assert log.means() == {}


def test_the_function_that_does_so_is_named():
    def greedy(completions, log_metric, **columns):
        log_metric("loss", 0.0)
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=r'reward "greedy" failed on .*log_metric\(.loss'):
        build_rubric([greedy]).score(["a"], {})
