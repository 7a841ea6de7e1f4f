"""What real trackers keep of a run: numbers in four sections."""

import glob
import json
import os
import sqlite3

import pytest
from transformers.integrations import integration_utils

from qwenvl.report.curves import SECTIONS
from qwenvl.runlog import read_metrics
from qwenvl.train.trackers import by_section, require_trackers, unchanged_names


def test_a_tracker_that_is_not_installed_is_refused():
    with pytest.raises(ImportError, match="--report_to comet_ml: its package is not installed; pip install comet_ml"):
        require_trackers(["comet_ml", "tensorboard", "azure_ml"])


def test_names_have_the_sections_of_the_report():
    logs = {"reward/total": 1, "kl": 2, "time/data_wait_s": 3, "data/bad_samples": 4, "eval_total_reward": 5}
    assert by_section(logs | {"train_loss": 6, "total_flos": 7}) == {
        **{"learning/reward/total": 1, "stable/kl": 2, "fast/time/data_wait_s": 3, "data/bad_samples": 4},
        **{"learning/eval_total_reward": 5, "train_loss": 6, "total_flos": 7},
    }
    before = integration_utils.rewrite_logs({"loss": 1})
    with unchanged_names():
        assert integration_utils.rewrite_logs({"loss": 1}) == {"loss": 1}
    assert integration_utils.rewrite_logs({"loss": 1}) == before == {"train/loss": 1}


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """Where trackio keeps runs: it reads the variable when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.utils import TRACKIO_DIR

    return TRACKIO_DIR


def test_tensorboard_and_trackio_have_all_that_the_run_folder_has(make_trainer, trackio_folder, sop_data):
    import trackio
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(report_to=["tensorboard", "trackio"], eval_dataset_use=str(sop_data), eval_strategy="epoch")
    trainer.train()
    trainer.evaluate()  # training has ended, and with it the trackers
    trackio.finish()
    folder = trainer.args.output_dir
    (logs,) = {os.path.dirname(path) for path in glob.glob(f"{folder}/runs/**/events*", recursive=True)}
    events = EventAccumulator(logs, size_guidance={"tensors": 0}).Reload()
    tags = events.Tags()
    for row in read_metrics(folder):
        step = row.pop("step")
        for name, value in by_section(row).items():
            at = [each.value for each in events.Scalars(name) if each.step == step]
            assert pytest.approx(value, rel=1e-5, nan_ok=True) in at, name
    grouped = {tag.split("/")[0] for tag in tags["scalars"] if not tag.startswith(("train_", "total_flos"))}
    assert grouped == set(SECTIONS)
    (base,) = trackio_folder.glob("qwenvl*.db")
    rows = [json.loads(each) for (each,) in sqlite3.connect(base).execute("select metrics from metrics order by id")]
    runs = {name for (name,) in sqlite3.connect(base).execute("select run_name from metrics")}
    assert len(runs) == 1 and runs == {trainer.args.run_name}, "the evaluation after training is of the same run"
    first = read_metrics(folder, "train")[0]
    assert rows[0]["learning/reward/total"] == pytest.approx(first["reward/total"])
