"""The callback that warns: once of each rule, over the history of the folder, by the groups that steps sample."""

from __future__ import annotations

import json
from types import SimpleNamespace

from qwenvl.train.callbacks import HealthWarnings


def args_of(tmp_path=None, **settings):
    defaults = {"num_iterations": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    defaults |= {"world_size": 1, "output_dir": str(tmp_path)}
    return SimpleNamespace(**defaults | settings)


def state_of(step: int):
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


def watched(args, rows, step=0) -> None:
    """What the callback makes of a run, or of one resumed from the checkpoint of ``step``, with one row a step."""
    callback, state = HealthWarnings(), state_of(step)
    callback.on_train_begin(args, state, None)
    for row in rows:
        state.global_step += 1
        callback.on_log(args, state, None, logs={"loss": 0.0} | row)


EQUAL = {"group/zero_std_frac": 1.0, "reward/total": 0.25}


def test_each_is_told_of_once(caplog):
    watched(args_of(), [EQUAL] * 60)
    assert caplog.text.count("had equal rewards") == 1
    assert caplog.text.count("over 90% of the last 24 groups") == 1


def test_only_steps_that_sample_have_groups(caplog):
    twice = args_of(num_iterations=2, per_device_train_batch_size=2)
    watched(twice, [EQUAL, {}] * 11)
    assert not caplog.text
    watched(twice, [EQUAL, {}] * 12)
    assert "the last 24 groups" in caplog.text


def test_a_flat_reward(caplog):
    watched(args_of(gradient_accumulation_steps=4), [{"reward/total": 0.0, "reward/max": 1.0}] * 120)
    assert "the reward has not risen in 100 steps: 0.000 over their first quarter" in caplog.text


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
