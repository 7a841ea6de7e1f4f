"""The board of a live run: it fits any width, keeps to the foot of the terminal, and leaves the terminal as it was."""

import logging
import math
import sys
import warnings
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from transformers import TrainerCallback, TrainerControl

from qwenvl.step.meter import Meter
from qwenvl.train.display.board import LiveBoard, sparkline
from tests.train.display.terminal import Terminal, on_screen, state_of

LOGS = {
    **{"loss": 0.0, "reward/total": 0.5, "reward/format": 1.0, "reward/std": 0.1, "reward/format/skipped": 1.0},
    **{"kl": 0.0123, "entropy": 1.5, "group/zero_std_frac": 0.25, "completion/length_mean": 184.32},
    **{"look/looked_frac": 0.375, "look/calls": 0.42, "look/tokens": 812.5},
    **{"time/sample_s": 6.0, "time/data_wait_s": 3.5, "time/step_s": 99.0},
}


ARGS = SimpleNamespace(output_dir="runs/sop", device="cpu")
NO_ENTRY = TrainerControl(should_log=False)
ENTRY = TrainerControl(should_log=True)


@pytest.fixture
def terminal_of(monkeypatch):
    """``terminal_of(width)`` -> what standard output and error are from then on. For the body of a test alone."""

    def make(width: int = 80) -> Terminal:
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return make


def live(clock=None) -> LiveBoard:
    return LiveBoard(Meter(), clock=lambda: 0.0 if clock is None else clock.now, every=None)


@pytest.mark.parametrize("width", [80, 120])
def test_the_board_shows_all_its_numbers_within_the_width(terminal_of, monkeypatch, width):
    terminal, clock = terminal_of(width), SimpleNamespace(now=0.0)
    monkeypatch.setattr("qwenvl.train.display.board.peak_memory", lambda of: (18_200_000_000, 80_000_000_000))
    board, state = live(clock), state_of(0, 300)
    board.on_train_begin(ARGS, state, NO_ENTRY)
    for n in range(30):
        clock.now, state.global_step = (n + 1) * 13.0, n + 1
        board.on_step_end(ARGS, state, ENTRY)
        board.on_log(ARGS, state, ENTRY, logs=LOGS | {"reward/total": n / 30, "completion/length_max": 9.0})
    board.on_log(ARGS, state, ENTRY, logs={"eval_total_reward": 0.512, "eval_total_reward_ci95": 0.04})
    board.within_step(31, 300, 65.0, "sampling, token 3 of at most 9")
    board.close()
    lines = on_screen(terminal.getvalue())
    lines = lines[next(n for n, line in enumerate(lines) if line.startswith("runs/sop")) :]
    assert max(map(cell_len, lines)) <= width and len(lines) < 14
    text = " ".join(" ".join(lines).split())
    for words in ("step 30 of 300", "58:30 left", "0.967", "format 1.000", "KL 0.012", "25%", "184.3", "▁", "█"):
        assert words in text, words
    for words in (
        "eval 0.512 +- 0.040 at step 30",
        "9.5 s: sampling 6, waiting for data 3.5",
        "18.2 of 80 GB",
        "looked 38%",
        "looks 0.420",
        "this step 01:05 so far: sampling, token 3 of at most 9",
    ):
        assert words in text, words
    assert "99" not in text and "skipped" not in text and "std" not in text


def test_steps_in_which_all_groups_are_equal_are_marked(terminal_of):
    terminal, board = terminal_of(), live()
    board.on_train_begin(ARGS, state_of(1), NO_ENTRY)
    for share in (0.25, 1.0):
        board.on_log(ARGS, state_of(1), ENTRY, logs=LOGS | {"group/zero_std_frac": share})
    board.close()
    [line] = [line for line in on_screen(terminal.getvalue()) if "equal groups" in line]
    assert "equal groups      100%! " in line and "\x1b[1;31m    100%" in terminal.getvalue()


def test_the_board_shows_an_evaluation_alone_and_a_run_before_its_first_step(terminal_of):
    terminal, board = terminal_of(), live()
    for _ in range(3):
        board.on_prediction_step(ARGS, state_of(0, 0), NO_ENTRY, eval_dataloader=range(10))
        board._drawn = -math.inf  # half a second later
    assert "evaluating 3 of 10" in on_screen(terminal.getvalue())[1]
    board.on_evaluate(ARGS, state_of(0, 0), NO_ENTRY)
    terminal = terminal_of()
    board.on_train_begin(ARGS, state_of(0, 9), NO_ENTRY)
    board.close()
    assert "step 0 of 9" in (line := on_screen(terminal.getvalue())[1]) and "the first step" in line


def test_a_curve_goes_from_the_smallest_to_the_largest_mean_of_neighbours():
    assert sparkline([0.0, 1.0, 2.0, 4.0], width=9) == "▁▃▅█"
    assert sparkline([0.0, 1.0, math.nan, 2.0, 3.0], width=2) == "▁█"  # means 0.5 and 2.5
    assert sparkline([2.0, 2.0], width=4) == "▁▁" and sparkline([], 4) == sparkline([1.0], 0) == ""
    assert sparkline([-1.0, 0.5, 2.0], 3, low=0.0, high=1.0) == "▁▅█"


@pytest.mark.parametrize("width", [60, 120])
def test_printed_and_logged_lines_stand_above_the_board(width, terminal_of, monkeypatch):
    terminal = terminal_of(width)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: print(message, file=sys.stderr))
    own = logging.StreamHandler()
    logger = logging.getLogger("qwenvl.tests.live")
    monkeypatch.setattr(logger, "handlers", [own])
    clock = SimpleNamespace(now=0.0)
    board, state = live(clock), state_of()
    board.on_train_begin(ARGS, state, ENTRY)
    for step in (1, 2, 3, 4):
        clock.now += 2
        logger.warning(f"logged [bold]{step}[/bold]")
        warnings.showwarning(f"warned {step}", UserWarning, "file.py", 1)
        print(f"printed {step}")
        state.global_step = step
        board.on_step_end(ARGS, state, ENTRY if step % 2 else NO_ENTRY)
        if step % 2:
            board.on_log(ARGS, state, ENTRY, logs={"loss": 0.0, "reward/total": step / 4})
        if step == 3:
            for _ in range(3):
                board.on_prediction_step(ARGS, state, ENTRY, eval_dataloader=range(3))
            assert "evaluating 3 of 3" not in terminal.getvalue(), "at most each half second"
            board.on_log(ARGS, state, ENTRY, logs={"eval_total_reward": 0.5, "eval_total_reward_ci95": 0.04})
            board.on_evaluate(ARGS, state, ENTRY)
    board.on_train_end(ARGS, state, ENTRY)
    print("afterwards", file=sys.stderr)
    lines = on_screen(terminal.getvalue())
    said = [f"{word} {n}" for n in (1, 2, 3, 4) for word in ("logged", "warned", "printed")]
    said = [line.replace("logged ", "logged [bold]") + ("[/bold]" if "logged" in line else "") for line in said]
    assert [line for line in lines if line.startswith(("logged", "warned", "printed"))] == said
    foot = next(n for n, line in enumerate(lines) if line.startswith("runs/sop"))
    assert sum(line.startswith("runs/sop") for line in lines) == 1, "there is one board"
    assert foot > max(map(lines.index, said)) and "step 4 of 4" in lines[foot + 1]
    assert any("0.750" in line for line in lines[foot:]) and "afterwards" in lines[-2:]
    hidden, shown = (terminal.getvalue().index(f"\x1b[?25{code}") for code in "lh")
    assert hidden < shown < terminal.getvalue().index("step 1"), "a kill leaves the cursor visible"
    assert sys.stderr is terminal and sys.stdout is terminal and own.stream is terminal


def test_output_redirected_to_a_file_is_not_shown_on_the_terminal(terminal_of, monkeypatch, tmp_path):
    terminal = terminal_of()
    with (tmp_path / "out.txt").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        board = live()
        board.on_train_begin(ARGS, state_of(), NO_ENTRY)
        print("a result")
        board.close()
    assert (tmp_path / "out.txt").read_text() == "a result\n" and "a result" not in terminal.getvalue()


class Interrupted(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            raise KeyboardInterrupt


def test_an_interrupted_run_restores_the_terminal_and_leaves_its_last_board(make_trainer, terminal_of):
    terminal = terminal_of()
    trainer = make_trainer(disable_tqdm=False, callbacks=[Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert sys.stderr is terminal
    print("said afterwards", file=sys.stderr)
    lines = [line for line in on_screen(terminal.getvalue()) if line]
    assert lines[-1] == "said afterwards"
    [foot] = [n for n, line in enumerate(lines) if line.startswith(str(trainer.args.output_dir)[:40])]
    [group] = [n for n, line in enumerate(lines) if line.startswith("step 1: ")]
    assert group < foot and "step 1 of 2" in lines[foot + 1], "one board, below the completions"


def test_a_resumed_run_has_the_curves_of_its_beginning(terminal_of, tmp_path):
    terminal = terminal_of()
    rows = "".join(f'{{"step": {n}, "loss": 0.0, "reward/total": {n}}}\n' for n in (1, 2, 3))
    (tmp_path / "metrics.jsonl").write_text(rows)
    board = live()
    board.on_train_begin(SimpleNamespace(output_dir=str(tmp_path), device="cpu"), state_of(2), NO_ENTRY)
    board.close()
    assert any("2.000" in line and "▁█" in line for line in on_screen(terminal.getvalue()))
