"""One prompt with its completions, as a terminal of any width shows it."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from qwenvl.failure import visible
from qwenvl.runlog import Rollout, read_rollouts
from qwenvl.train.display.completions import print_group, shortened, widest_spread


def rollout(sample, total, text="", step=3, **values):
    fields = {
        "step": step,
        "record_id": "17",
        "sample": sample,
        "prompt": ({"role": "system", "text": "Be brief."}, {"role": "user", "text": "<video>\nWhich steps?"}),
        "solution": "<answer>(2)</answer>",
        "completion": text,
        "tokens": 12,
        "finish_reason": "stop",
        "rewards": {"format": 1.0, "accuracy": total},
        "total": total,
        "advantage": None if total is None else total - 0.5,
        "where": "data/sop.json[17]",
    }
    return Rollout(**fields | values)


def test_the_group_whose_rewards_differ_most():
    equal = [rollout(n, 1.0) for n in range(2)]
    wide = [rollout(n, total) for n, total in enumerate((0.0, 0.75))]
    narrow = [rollout(n, total) for n, total in enumerate((0.5, 1.0))]
    unscored = [rollout(n, None) for n in range(2)]
    assert widest_spread([*unscored, *equal, *narrow, *wide, *equal]) == wide
    assert widest_spread([*equal, *equal]) == equal and widest_spread([]) == []


NASTY = [
    "[bold]not markup[/bold] [/red] {curly} %s",
    "\x1b[2J\x1b]0;title\x07 \u202eright to left \ud800 half a pair",
    "日本語の回答です。" * 40,
    "word " * 200 + "<answer>(2) insert the fan</answer>",
    "👩‍👩‍👧 \u0301 combining",
]


@pytest.mark.parametrize("width", [30, 80, 120])
@pytest.mark.parametrize("colours", [False, True])
def test_texts_of_any_kind_fit_and_do_nothing_to_the_terminal(width, colours):
    group = [rollout(n, n / 4, text, finish_reason="length") for n, text in enumerate(NASTY)]
    colour = {"force_terminal": True, "color_system": "standard"} if colours else {}
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False, **colour)
    print_group(group, console)
    shown = console.file.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert (plain != shown) == colours, "of a terminal's codes there are colours alone"
    assert not {"\x1b", "\x07", "\u202e", "\ud800"} & set(plain)
    assert max(map(cell_len, plain.splitlines())) <= width
    told = " ".join(plain.split())
    assert "prompt" in told and "Which" in told and "solution" in told and "cut off" in told
    if width > 30:
        assert NASTY[0] in told and "the fan</answer>" in told and "step 3: 17 sop.json[17]" in told
    advantages = re.findall(r"^ ([+-][\d.]+) ", plain, flags=re.MULTILINE)
    assert advantages == ["+0.50", "+0.25", "+0.00", "-0.25", "-0.50"], "the best first"


def test_control_characters_and_long_texts():
    assert visible("one\n\t two\x1b[2J\u200f three") == "one two�[2J three"
    assert shortened("a" * 100, 25) == "a" * 10 + " ... " + "a" * 10
    assert shortened("short", 25) == "short" and cell_len(shortened("長" * 100, 25)) <= 25


def test_a_run_shows_its_first_step_and_each_second_one(make_trainer, capfd):
    trainer = make_trainer(display="plain", disable_tqdm=False, log_completions_every=2, max_steps=3)
    trainer.train()
    told = capfd.readouterr().err
    assert re.findall(r"^step (\d): \S+ \S+\[\d\] ─", told, flags=re.MULTILINE) == ["1", "2"]
    first = list(read_rollouts(trainer.args.output_dir, step=1))
    assert all(f"letters {each.total:.3g}  {each.tokens} token" in told for each in first)
