"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from types import SimpleNamespace

import pytest

from qwenvl.train.display.progress import ProgressBar, ProgressLines, evaluation_lines
from tests.train.display.terminal import on_screen


def test_the_bar_shows_reward_kl_and_time_left(capsys):
    line = ProgressBar()
    state = SimpleNamespace(is_world_process_zero=True, max_steps=4, global_step=0)
    line.on_train_begin(None, state, None)
    # the last step is a second one on the same completions
    for step, logs in enumerate(({"reward/total": 0.25}, {"reward/total": 0.5}, {"loss/kl": 0.1}), start=1):
        state.global_step = step
        line.on_step_end(None, state, None)
        line.on_log(None, state, None, logs={"loss": 0.1, "kl": 0.0123 * step} | logs)
    line.on_log(None, state, None, logs={"eval_total_reward": 0.5, "eval_total_reward_ci95": 0.04})
    line.on_train_end(None, state, None)
    shown = capsys.readouterr()
    text = shown.err + shown.out
    assert "reward=0.500, kl=0.025" in text and "reward=0.500, kl=0.037" in text and "3/4" in text
    assert "step 3: eval_total_reward 0.500 +- 0.040" in text


@pytest.mark.parametrize("said_by", ["a handler", "nobody's handler", "Python"])
def test_a_warning_has_a_line_of_its_own_beside_the_bars(said_by, monkeypatch, capsys):
    own, last = logging.StreamHandler(), logging._StderrHandler(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: print(message, file=sys.stderr))
    logger = logging.getLogger("qwenvl.tests.progress")
    monkeypatch.setattr(logging.getLogger("qwenvl"), "handlers", [own] if said_by == "a handler" else [])

    def warn(text: str) -> None:
        if said_by == "Python":
            warnings.showwarning(text, UserWarning, "file.py", 1)
        else:
            logger.warning(text)

    line = ProgressBar()
    state = SimpleNamespace(is_world_process_zero=True, max_steps=4, global_step=0)
    line.on_train_begin(None, state, None)
    warn("early")
    state.global_step = 1
    line.on_step_end(None, state, None)
    line.on_prediction_step(None, state, None, eval_dataloader=range(3))
    warn("within an evaluation")
    line.on_evaluate(None, state, None)
    warn("late")
    line.on_train_end(None, state, None)
    warn("afterwards")
    lines = on_screen(capsys.readouterr().err)
    for text in ("early", "within an evaluation", "late", "afterwards"):
        assert text in lines, lines


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def lines(clock):
    return ProgressLines(seconds=5.0, clock=lambda: clock.now)


def test_lines_come_at_the_first_step_at_the_last_and_every_few_seconds(lines, clock, capsys):
    state, control = SimpleNamespace(max_steps=8, global_step=0), SimpleNamespace(should_log=True)
    lines.on_train_begin(None, state, control)
    for step in range(1, 9):
        clock.now += 2
        state.global_step = step
        lines.on_step_end(None, state, control)
        lines.on_log(None, state, control, logs={"loss": 0.1, "reward/total": step / 8})
    assert capsys.readouterr().err.splitlines() == [
        "step 1 of 8, 00:14 left: reward 0.125",
        "step 4 of 8, 00:08 left: reward 0.500",
        "step 7 of 8, 00:02 left: reward 0.875",
        "step 8 of 8: reward 1.000",
    ]


def test_steps_between_log_entries_are_told_of_too(lines, clock, capsys):
    state, control = SimpleNamespace(max_steps=9, global_step=0), SimpleNamespace(should_log=False)
    lines.on_train_begin(None, state, control)
    for step in (1, 2, 3):
        clock.now += 4
        state.global_step = step
        lines.on_step_end(None, state, control)
    assert capsys.readouterr().err.splitlines() == ["step 1 of 9, 00:32 left", "step 3 of 9, 00:24 left"]


def test_an_evaluation_tells_how_far_it_is_and_what_it_found(lines, clock, capsys):
    state = SimpleNamespace(max_steps=9, global_step=3)
    for _ in range(4):
        lines.on_prediction_step(None, state, None, eval_dataloader=range(4))
        clock.now += 3
    lines.on_evaluate(None, state, None)
    lines.on_log(None, state, None, logs={"eval_total_reward": 0.5, "eval_total_reward_ci95": 0.04})
    assert capsys.readouterr().err.splitlines() == [
        "evaluation: batch 3 of 4",
        "step 3: eval_total_reward 0.500 +- 0.040",
    ]


def test_a_run_into_a_file_has_no_carriage_returns(make_trainer, tiny_checkpoint, sop_data, capfd):
    tiny_checkpoint(initializer_range=0.1)  # writing it shows bars that are not the run's
    capfd.readouterr()
    trainer = make_trainer(disable_tqdm=False, eval_dataset_use=str(sop_data))
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    shown = capfd.readouterr()
    assert "\r" not in shown.err + shown.out
    assert "loading the model" in shown.err and "reading the records to train on" in shown.err
    assert "step 2 of 2: reward " in shown.err and "step 2: eval_total_reward" in shown.err


def test_an_evaluation_of_one_prompt_has_no_interval():
    logs = {"eval_a_total_reward": 0.5, "eval_a_total_reward_ci95": math.nan, "eval_b_total_reward": 0.5}
    logs |= {"eval_b_total_reward_ci95": 0.25}
    expected = ["step 3: eval_a_total_reward 0.500", "step 3: eval_b_total_reward 0.500 +- 0.250"]
    assert evaluation_lines(3, logs) == expected
