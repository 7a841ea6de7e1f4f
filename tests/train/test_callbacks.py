"""The callback that warns: once of each rule, over the history of the folder, by the groups that steps sample. And what
real trackers keep of a run."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from qwenvl.run_log.log import read_metrics
from qwenvl.train.callbacks import HealthWarnings, move_entropy_weight, require_trackers


def args_of(tmp_path=None, **settings):
    defaults = {"num_iterations": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    defaults |= {"world_size": 1, "output_dir": str(tmp_path)}
    return SimpleNamespace(**defaults | settings)


def state_of(step: int):
    return TrainerState(global_step=step, is_world_process_zero=True)


def watched(args, rows, step=0) -> None:
    """The outcome of the callback in a run, or in one resumed from the checkpoint of ``step``, with one row a step."""
    callback, state = HealthWarnings(), state_of(step)
    callback.on_train_begin(args, state, None)
    for row in rows:
        state.global_step += 1
        callback.on_log(args, state, None, logs={"loss": 0.0} | row)


EQUAL = {"group/zero_std_frac": 1.0, "reward/total": 0.25}


def test_each_finding_is_logged_once(caplog):
    watched(args_of(), [EQUAL] * 60)
    assert caplog.text.count("had equal rewards") == 1
    assert caplog.text.count("over 90% of the last 24 groups") == 1


def test_a_resumed_run_goes_on_with_the_history_of_its_folder(tmp_path, caplog):
    rows = [{"step": step, "loss": 0.0, **EQUAL} for step in range(1, 31)]  # those after the checkpoint do not count
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watched(args_of(tmp_path), [EQUAL] * 3, step=20)
    assert not caplog.text
    watched(args_of(tmp_path), [EQUAL] * 4, step=20)
    assert "the last 24 groups" in caplog.text
    caplog.clear()
    watched(args_of(tmp_path), [EQUAL] * 23)  # begun anew
    assert not caplog.text


def test_a_tracker_that_is_not_installed_is_refused():
    with pytest.raises(ImportError, match="--report_to comet_ml: its package is not installed; pip install comet_ml"):
        require_trackers(["comet_ml", "tensorboard", "azure_ml"])


def test_the_weight_of_the_entropy_bonus_grows_below_the_target_and_shrinks_above(monkeypatch):
    """It acts at or below the target, and grows then; above it shrinks, and never below 0."""
    monkeypatch.setattr("qwenvl.grpo.entropy.COEFFICIENT_STEP", 0.25)
    args, state = SimpleNamespace(entropy_target=0.5, entropy_coef=0.5), TrainerState()
    entropies = [0.4, 0.6, 0.5, None, 0.9, 0.9, 0.9, 0.9, 0.1, 0.1]
    weights = [0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25]
    after = [0.75, 0.5, 0.75, 0.75, 0.5, 0.25, 0.0, 0.0, 0.25, 0.5]
    for entropy, weight, left in zip(entropies, weights, after, strict=True):
        assert move_entropy_weight(args, entropy, state) == weight
        assert state.stateful_callbacks["EntropyTarget"]["attributes"]["coefficient"] == left


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """The folder in which trackio keeps runs: it reads the variable when it is imported."""
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
    for row in read_metrics(folder, "train"):
        step = row.pop("step")
        for name, value in row.items():
            at = [each.value for each in events.Scalars(f"train/{name}") if each.step == step]
            assert pytest.approx(value, rel=1e-5, nan_ok=True) in at, name
    (base,) = trackio_folder.glob("qwenvl*.db")
    rows = [json.loads(each) for (each,) in sqlite3.connect(base).execute("select metrics from metrics order by id")]
    runs = {name for (name,) in sqlite3.connect(base).execute("select run_name from metrics")}
    assert len(runs) == 1 and runs == {trainer.args.run_name}, "the evaluation after training is of the same run"
    first = read_metrics(folder, "train")[0]
    assert rows[0]["train/reward/total"] == pytest.approx(first["reward/total"])


@pytest.mark.parametrize(("strategy", "steps"), [("steps", [2, 3]), ("no", [])])
def test_the_steps_behind_the_last_full_interval_are_logged(make_trainer, tmp_path, strategy, steps):
    made = make_trainer(max_steps=3, logging_strategy=strategy, **({"logging_steps": 2} if steps else {}))
    made.train()
    rows = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert [row["step"] for row in rows] == steps
    if rows:
        assert [row["group/count"] for row in rows] == [2 * rows[1]["group/count"], rows[1]["group/count"]]
