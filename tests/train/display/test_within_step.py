"""A step that takes long says what it is at: in a real run whose clock is ours, in each phase, on each display."""

import io
import re
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from qwenvl.rollout.engine import Drawing
from qwenvl.train.display.board import Board
from qwenvl.train.display.live import LiveBoard
from qwenvl.train.display.progress import ProgressBar, ProgressLines
from qwenvl.train.log.doing import Doing, WithinStep
from qwenvl.train.log.meter import Meter


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


class Watched:
    """A trainer whose phases take a minute each by its clock, and that is looked at in each of them."""

    def __init__(self, trainer, clock):
        self.trainer, self.clock = trainer, clock
        self.lines = ProgressLines(clock=lambda: clock.now)
        self.within = WithinStep(self.lines, trainer.doing, clock=lambda: clock.now, every=None)
        for callback in (self.within, self.lines):
            trainer.add_callback(callback)

    def a_minute_passes(self, *_):
        self.clock.now += 61
        self.within.tick()


@pytest.mark.parametrize("shared", ["auto", "off"])
def test_a_run_tells_each_minute_what_its_step_is_at(make_trainer, clock, capsys, shared):
    def slow_reward(completions, **columns):
        watched.a_minute_passes()
        watched.within.tick()  # no second line within a minute
        return [len(text) for text in completions]

    trainer = make_trainer(
        functions=(slow_reward,),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        shared_prefix=shared,
        rollout_token_budget=1,
        max_steps=1,
    )
    watched = Watched(trainer, clock)
    head = trainer.model.get_output_embeddings()

    def passes(module, args, output):
        if trainer.meter.running == "time/logp_s":
            watched.a_minute_passes()
            output.register_hook(watched.a_minute_passes)
        elif trainer.doing.drawing.tokens == 2:
            watched.a_minute_passes()

    head.register_forward_hook(passes)
    trainer.train()
    lines = [line for line in capsys.readouterr().err.splitlines() if " so far: " in line]
    # In the third forward of a draw two tokens are there. The reference is a copy, without our hook.
    told = [re.match(r"step 1 of 1, (\d\d:\d\d|\d:\d\d:\d\d) so far: (.*)", line) for line in lines]
    assert told[0][1] == "01:01" and told[-1][1] == f"{len(lines) * 61 // 60:02d}:{len(lines) * 61 % 60:02d}"
    assert [each[2] for each in told] == [
        *(f"sampling, token 2 of at most 6, prompt {n} of 4" for n in (1, 2, 3, 4)),
        "rewards",
        "log-probs, micro-batch 1 of 2",
        "backward, micro-batch 1 of 2",
        "log-probs, micro-batch 2 of 2",
        "backward, micro-batch 2 of 2",
    ]


def test_short_steps_have_no_line_of_their_own(clock, capsys):
    lines = ProgressLines(clock=lambda: clock.now)
    state = SimpleNamespace(global_step=0, max_steps=3)
    lines.on_train_begin(None, state, None)
    for _ in range(3):  # 50 seconds each
        clock.now += 50
        lines.within_step(state.global_step + 1, 3, 50, "sampling")
        state.global_step += 1
        lines.on_log(None, state, SimpleNamespace(should_log=True), logs={"loss": 0.0})
    assert "so far" not in capsys.readouterr().err
    clock.now += 59
    lines.within_step(4, 4, 70, "sampling")  # the step has gone on for 70 seconds, and a line was told in it
    assert "so far" not in capsys.readouterr().err
    clock.now += 1
    lines.within_step(4, 4, 71, "sampling")
    assert capsys.readouterr().err == "step 4 of 4, 01:11 so far: sampling\n"


def test_the_board_and_the_bar_have_a_field(capsys, monkeypatch):
    bar = ProgressBar()
    state = SimpleNamespace(is_world_process_zero=True, max_steps=4, global_step=0)
    bar.on_train_begin(None, state, None)
    bar.within_step(1, 4, 4.9, "vision")
    bar.within_step(1, 4, 5.1, "sampling, token 3 of at most 9")
    state.global_step = 1
    bar.on_step_end(None, state, None)
    bar.close()
    shown = capsys.readouterr().err
    assert "now=sampling, token 3 of at most 9" in shown and "vision" not in shown
    assert "now" not in shown.rsplit("\r", 1)[-1]

    board = Board("runs/sop", step=6, steps=10, doing=("sampling, token 3 of at most 9", 65.0))
    console = Console(file=io.StringIO(), width=80)
    console.print(board)
    assert re.search(r"step 7 +01:05 so far: sampling, token 3 of at most 9", console.file.getvalue())

    live = LiveBoard()
    live._board, live._screen = Board("runs/sop"), SimpleNamespace(draw=lambda: drawn.append(live._board.doing))
    drawn = []
    live.within_step(1, 4, 4.9, "vision")
    live.within_step(1, 4, 6.0, "rewards")
    live.on_step_end(None, state, SimpleNamespace(should_log=False))
    assert drawn == [("rewards", 6.0), None]


def test_the_thread_looks_within_steps_alone(clock):
    seen, looked = [], threading.Event()

    class Display:
        def within_step(self, step, steps, seconds, doing):
            seen.append((step, steps, seconds, doing))
            looked.set()

    within = WithinStep(Display(), Doing(Meter()), clock=lambda: clock.now, every=0.001)
    state = SimpleNamespace(is_world_process_zero=True, max_steps=4, global_step=0)
    within.on_train_begin(None, state, None)
    within.tick()
    assert not seen
    within.on_step_begin(None, state, None)
    assert looked.wait(60)
    within.on_step_end(None, state, None)
    count = len(seen)
    within.tick()
    assert len(seen) == count and set(seen) == {(1, 4, 0.0, "between phases")}
    within.on_train_end(None, state, None)


def test_what_goes_on_is_told_by_the_innermost_clock_and_by_the_draw():
    meter, drawing = Meter(), Drawing()
    doing = Doing(meter, drawing)
    before = doing.beat()
    with meter.time("time/contrast_s"), meter.wait("time/wait_s"):
        assert doing.words() == "wait"
    with meter.time("time/sample_s"):
        drawing.begin([0, 1], 2, 1024)
        drawing.token()
        assert doing.words() == "sampling, token 1 of at most 1,024"
        middle = doing.beat()
        drawing.token()
        assert before != middle != doing.beat()
        drawing.end()
        assert doing.words() == "sampling"
    meter.step(micro_batches=1)
    assert doing.words() == "between phases"
    meter.start("time/backward_s")
    assert doing.words() == "backward"
    meter.stop("time/backward_s")
    meter.stop("time/backward_s")
    assert doing.words() == "update of the weights"
