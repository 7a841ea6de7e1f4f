"""Run folders, and a browser where the machine has one."""

import pytest

from qwenvl.runlog import RunLog
from tests.report.chromium import Page, find_chromium
from tests.report.runs import METRICS, ROLLOUTS


@pytest.fixture
def make_run(tmp_path):
    """``make_run(name, rollouts=..., metrics=..., **settings)`` -> a run folder."""

    def make(name="sop", rollouts=None, metrics=None, finished=2, **settings):
        folder = tmp_path / name
        log = RunLog(folder)
        log.write_config({"learning_rate": 1e-6, "output_dir": str(folder)} | settings, {"python": "3.11"})
        for step, row in metrics or METRICS:
            log.log_metrics(step, row)
        log.log_rollouts(ROLLOUTS if rollouts is None else rollouts)
        if finished:
            log.finish(finished)
        return folder

    return make


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A page of a headless Chromium, for all tests."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine; apt install chromium, or name one in $CHROMIUM")
    page = Page(program, tmp_path_factory.mktemp("chromium"))
    yield page
    page.close()
