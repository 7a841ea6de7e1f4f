"""What real trackers keep of a run: numbers in four sections, and a table with pictures at each evaluation."""

import glob
import json
import os
import sqlite3

import pytest
from PIL import Image
from transformers.integrations import integration_utils

from qwenvl.report.curves import SECTIONS
from qwenvl.runlog import read_metrics, read_rollouts
from qwenvl.train.trackers.report_to import by_section, names_kept
from qwenvl.train.trackers.seen import Answer
from qwenvl.train.trackers.tables import columns_of
from tests.train.display.test_completions import rollout


def test_names_have_the_sections_of_the_report():
    logs = {"reward/total": 1, "kl": 2, "time/data_wait_s": 3, "data/bad_samples": 4, "eval_total_reward": 5}
    assert by_section(logs | {"train_loss": 6, "total_flos": 7}) == {
        **{"learning/reward/total": 1, "stable/kl": 2, "fast/time/data_wait_s": 3, "data/bad_samples": 4},
        **{"learning/eval_total_reward": 5, "train_loss": 6, "total_flos": 7},
    }


def test_the_library_names_numbers_as_before_once_a_tracker_has_written():
    before = integration_utils.rewrite_logs({"loss": 1})
    with names_kept():
        assert integration_utils.rewrite_logs({"loss": 1}) == {"loss": 1}
    assert integration_utils.rewrite_logs({"loss": 1}) == before == {"train/loss": 1}


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """Where trackio keeps runs: it is told before it is loaded."""
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
    events = EventAccumulator(logs, size_guidance={"tensors": 0, "images": 0}).Reload()
    tags = events.Tags()
    for row in read_metrics(folder):
        step = row.pop("step")
        for name, value in by_section(row).items():
            at = [each.value for each in events.Scalars(name) if each.step == step]
            assert pytest.approx(value, rel=1e-5, nan_ok=True) in at, name
    grouped = {tag.split("/")[0] for tag in tags["scalars"] if not tag.startswith(("train_", "total_flos"))}
    assert grouped == set(SECTIONS)
    evaluated = list(read_rollouts(folder, split="eval"))
    assert f"data/eval_completions/{evaluated[0].record_id}" in tags["images"]
    text = events.Tensors("data/eval_completions/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.count("\n") == 1 + 8 and "&lt;answer&gt;" in text and "<answer>" not in text

    (base,) = trackio_folder.glob("qwenvl*.db")
    rows = [json.loads(each) for (each,) in sqlite3.connect(base).execute("select metrics from metrics order by id")]
    runs = {name for (name,) in sqlite3.connect(base).execute("select run_name from metrics")}
    assert len(runs) == 1 and runs == {trainer.args.run_name}, "the evaluation after training is of the same run"
    first = read_metrics(folder, "train")[0]
    assert rows[0]["learning/reward/total"] == pytest.approx(first["reward/total"])
    tables = [row["data/eval_completions"]["_value"] for row in rows if "data/eval_completions" in row]
    assert tables and [each["completion"] for each in tables[-1]] == [each.completion for each in evaluated[-8:]]
    pictures = [trackio_folder / "media" / each["frames"]["file_path"] for each in tables[-1]]
    assert Image.open(pictures[0]).width > Image.open(pictures[0]).height


def test_columns_are_of_one_type_and_without_frames_where_nothing_has_any():
    strip = Image.new("RGB", (30, 10))
    answers = [Answer(rollout(0, 0.5, "one \ud800"), strip), Answer(rollout(0, None, "two"), None)]
    columns = columns_of(answers, picture=lambda each: each.size)
    assert columns["frames"] == [(30, 10), (8, 8)] and columns["reward"] == [0.5, None]
    assert columns["completion"] == ["one \\ud800", "two"] and columns["rewards"][1] == "format 1, accuracy none"
    assert columns["question"][0] == "<video>\nWhich steps?"
    assert "frames" not in columns_of(answers[1:], picture=lambda each: each) and "frames" not in columns_of(answers)
