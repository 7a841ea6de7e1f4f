"""Plain lines of progress, the phase of a long step, and which display a run has."""

from __future__ import annotations

import re
import sys
import threading
from types import SimpleNamespace

import pytest
from transformers import TrainerControl

from qwenvl.rollout.engine import Drawing
from qwenvl.step.meter import Meter
from qwenvl.train.callbacks import display_of
from qwenvl.train.display.progress import Progress, ProgressLines
from tests.train.display.terminal import state_of


@pytest.fixture
def clock():
    """A clock that a test moves by hand."""
    return SimpleNamespace(now=0.0)


@pytest.fixture
def lines(clock):
    """The progress lines of a run on the clock of the test."""
    return ProgressLines(Meter(), clock=lambda: clock.now, every=None)


def test_lines_come_at_the_first_step_at_the_last_and_every_few_seconds(lines, clock, capsys):
    state, control = state_of(0, 8), TrainerControl(should_log=True)
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
    lines.on_log(None, state, control, logs={"loss": 0.1, "group/zero_std_frac": 1.0, "reward/total": 0.25})
    lines.on_log(None, state, control, logs={"loss": 0.1, "group/zero_std_frac": 0.875, "reward/total": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "step 8 of 8: reward 0.250, all groups equal",
        "step 8 of 8: reward 1.000",
    ]
    state, control.should_log = state_of(0, 9), False  # of steps between log entries
    lines.on_train_begin(None, state, control)
    for step in (1, 2, 3):
        clock.now += 4
        state.global_step = step
        lines.on_step_end(None, state, control)
    told = ["step 1 of 9, 00:32 left: reward 1.000", "step 3 of 9, 00:24 left: reward 1.000"]
    assert capsys.readouterr().err.splitlines() == told


def test_an_evaluation_prints_its_progress_and_its_reward(lines, clock, capsys):
    state = state_of(3, 9)
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


def test_a_run_prints_the_phase_of_its_step_each_minute(make_trainer, clock, capsys):
    def a_minute_passes(*_):
        clock.now += 61
        lines.tick()

    def slow_reward(completions, **columns):
        a_minute_passes()
        lines.tick()  # no second line within a minute
        return [len(text) for text in completions]

    trainer = make_trainer(
        functions=(slow_reward,),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        rollout_token_budget=1,
        max_steps=1,
    )
    lines = ProgressLines(trainer.meter, clock=lambda: clock.now, every=None)
    trainer.add_callback(lines)
    head = trainer.model.get_output_embeddings()

    def passes(module, args, output):
        if trainer.meter.phase() == "log-probs":
            if output.requires_grad:  # not the probe of the parity check
                a_minute_passes()
                output.register_hook(a_minute_passes)
        elif trainer.meter.phase().startswith("sampling") and trainer.meter.drawing.tokens == 2:
            a_minute_passes()

    head.register_forward_hook(passes)
    trainer.train()
    shown = [line for line in capsys.readouterr().err.splitlines() if " so far: " in line]
    # In the third forward of a draw two tokens are there. The reference is a copy, without our hook.
    told = [re.match(r"step 1 of 1, (\d\d:\d\d|\d:\d\d:\d\d) so far: (.*)", line) for line in shown]
    assert told[0][1] == "01:01" and told[-1][1] == f"{len(shown) * 61 // 60:02d}:{len(shown) * 61 % 60:02d}"
    assert [each[2] for each in told] == [
        *(f"sampling, token 2 of at most 6, prompt {n} of 4" for n in (1, 2, 3, 4)),
        "rewards",
        *("log-probs", "backward") * 2,
    ]


def test_the_thread_looks_within_steps_alone(clock):
    seen, looked = [], threading.Event()

    class Display(Progress):
        def within_step(self, step, steps, seconds, doing):
            seen.append((step, steps, seconds, doing))
            looked.set()

    display, state = Display(Meter(), clock=lambda: clock.now, every=0.001), state_of()
    display.on_train_begin(None, state, None)
    display.tick()
    assert not seen
    display.on_step_begin(None, state, None)
    assert looked.wait(60)
    display.on_step_end(None, state, None)
    count = len(seen)
    display.tick()
    assert len(seen) == count and set(seen) == {(1, 4, 0.0, "between phases")}
    display.on_train_end(None, state, None)


def test_the_phase_is_that_of_the_innermost_clock_with_the_token_being_drawn():
    drawing = Drawing()
    meter = Meter(drawing=drawing)
    before = meter.beat()
    with meter.time("time/contrast_s"), meter.wait("time/wait_s"):
        assert meter.phase() == "wait"
    with meter.time("time/sample_s"):
        drawing.begin([0, 1], 2, 1024)
        drawing.token()
        assert meter.phase() == "sampling, token 1 of at most 1,024"
        middle = meter.beat()
        drawing.token()
        assert before != middle != meter.beat()
        drawing.end()
        assert meter.phase() == "sampling"
    assert meter.phase() == "between phases"


@pytest.mark.parametrize(
    ("requested", "silent", "terminal", "kind"),
    [
        (None, False, "xterm", "rich"),
        (None, False, "dumb", "plain"),
        (None, False, None, "plain"),
        (None, True, "xterm", "none"),
        ("rich", False, None, "plain"),
        ("plain", False, "xterm", "plain"),
        ("none", False, "xterm", "none"),
        ("none", False, None, "none"),
    ],
)
def test_the_display_follows_the_flag_and_the_terminal(requested, silent, terminal, kind, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal is not None, raising=False)
    monkeypatch.setenv("TERM", terminal or "xterm")
    assert display_of(SimpleNamespace(display=requested, disable_tqdm=silent)) == kind
