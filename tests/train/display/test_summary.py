"""The warning of equal rewards, and the lines at the end of a run."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from qwenvl.runlog import RunLog
from qwenvl.train.display.summary import EqualRewardsWarning, collected_warnings, next_step, run_summary


def watched(shares, prompts=1, iterations=1, ends=True):
    """The callback after a run with these shares of equal groups, one log entry a step."""
    callback = EqualRewardsWarning()
    args = SimpleNamespace(
        num_iterations=iterations, per_device_train_batch_size=prompts, gradient_accumulation_steps=1, world_size=1
    )
    state = SimpleNamespace(global_step=0)
    callback.on_train_begin(args, state, None)
    for step, share in enumerate(shares, 1):
        state.global_step = step
        logs = {"loss": 0.0} if share is None else {"group/zero_std_frac": share, "reward/total": 0.25}
        callback.on_log(args, state, None, logs=logs)
    if ends:
        callback.on_train_end(args, state, None)


def test_equal_rewards_are_told_of_once_after_24_groups(caplog):
    watched([1.0] * 23, ends=False)
    assert not caplog.text
    watched([1.0] * 60)
    assert caplog.text.count("over 90% of the last 24 groups had equal rewards (mean reward 0.250)") == 1
    assert caplog.text.count("had equal rewards") == 1 and "--generation_temperature" in caplog.text


def test_three_steps_of_eight_prompts_are_enough(caplog):
    watched([1.0] * 3, prompts=8, ends=False)
    assert "the last 24 groups had equal rewards" in caplog.text


def test_only_steps_that_sample_count(caplog):
    watched([1.0, None] * 11, prompts=2, iterations=2, ends=False)
    assert not caplog.text
    watched([1.0, None] * 12, prompts=2, iterations=2, ends=False)
    assert "the last 24 groups" in caplog.text


def test_a_group_with_spread_begins_the_count_anew(caplog):
    watched(([1.0] * 20 + [0.5]) * 3)
    assert not caplog.text


def test_a_short_run_is_judged_at_its_end(caplog):
    watched([1.0] * 3)
    assert "over 90% of the 3 groups of this run had equal rewards" in caplog.text


def test_a_run_that_can_learn_nothing_is_told_so(make_trainer, caplog, capsys):
    trainer = make_trainer(functions=[lambda completions, **columns: [0.0] * len(completions)])
    trainer.train()
    assert "of the 2 groups of this run had equal rewards (mean reward 0.000)" in caplog.text
    said = capsys.readouterr().err
    assert "reward    0.000 at step 1, 0.000 at step 2" in said
    assert "warnings  1, the first: over 90% of the 2 groups of this run had equal rewards" in said


def test_the_summary_tells_rewards_evaluations_and_warnings(tmp_path):
    log = RunLog(tmp_path)
    log.log_metrics(0, {"eval_total_reward": 0.25, "eval_total_reward_ci95": 0.125})
    for step in range(1, 21):
        log.log_metrics(step, {"reward/total": step / 20})
    log.log_metrics(20, {"eval_total_reward": 0.75, "eval_total_reward_ci95": 0.0625})
    log.log_metrics(20, {"train_runtime": 3.0})
    assert run_summary(tmp_path, ["one\nmore", "two"], "do this").splitlines() == [
        f"{tmp_path}: 20 steps",
        "  reward    0.075 at steps 1 to 2, 0.975 at steps 19 to 20",
        "  eval      0.250 +- 0.125 at step 0, 0.750 +- 0.062 at step 20",
        "  warnings  2, the first: one more",
        f"  look      {tmp_path}/rollouts has every completion with its rewards",
        "  next      do this",
    ]


MORE = "qwenvl train run.yaml --model_name_or_path runs/a --output_dir runs/a-2"


@pytest.mark.parametrize(
    ("settings", "warnings", "expected"),
    [
        ({}, [], f"{MORE}   (train on from the result)"),
        (
            {"resume_from_checkpoint": "True"},
            ["another"],
            f"{MORE} --resume_from_checkpoint False   (train on from the result)",
        ),
        (
            {"start_from_weights": "runs/b/checkpoint-5"},
            [],
            f"{MORE} --start_from_weights runs/a   (train on from the result)",
        ),
        ({"lora_enable": True}, [], "load the adapter in runs/a with peft, as docs/quickstart.md shows"),
        (
            {},
            ["over 90% of the last 24 groups had equal rewards"],
            "qwenvl preview 'my data.json' --n 8 --model base   (what does the model see?)",
        ),
    ],
)
def test_the_next_command(settings, warnings, expected):
    defaults = {"resume_from_checkpoint": None, "lora_enable": False, "dataset_catalog": None, "output_dir": "runs/a"}
    defaults["start_from_weights"] = None
    args = SimpleNamespace(**defaults | {"dataset_use": "my data.json", "model_name_or_path": "base"} | settings)
    assert next_step(args, ["run.yaml"], warnings) == expected


def test_warnings_are_collected_while_asked_for():
    library = logging.getLogger("qwenvl.somewhere")
    with collected_warnings() as warnings:
        library.warning("a %s", "word")
        library.info("no warning")
    library.warning("later")
    assert warnings == ["a word"]


def test_collected_warnings_are_printed_as_without_collecting(monkeypatch, capsys):
    library = logging.getLogger("qwenvl.somewhere")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process that configured nothing
    library.warning("before")
    with collected_warnings():
        library.warning("within")
    assert capsys.readouterr().err == "before\nwithin\n"
