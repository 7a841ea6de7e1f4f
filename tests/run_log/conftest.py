"""Run folders."""

import pytest

from qwenvl.run_log.log import RunLog
from tests.run_log.runs import METRICS, ROLLOUTS


@pytest.fixture
def make_run(tmp_path):
    """``make_run(name, rollouts=..., metrics=..., **settings)`` -> a run folder."""

    def make(name="sop", rollouts=None, metrics=None, finished=2, **settings):
        folder = tmp_path / name
        log = RunLog(folder)
        log.write_config({"learning_rate": 1e-6, "output_dir": str(folder)} | settings)
        for step, row in metrics or METRICS:
            log.log_metrics(step, row)
        log.log_rollouts(ROLLOUTS if rollouts is None else rollouts)
        if finished:
            log.finish(finished)
        return folder

    return make
