"""One prompt with its completions, as plain lines."""

import re

from qwenvl.run_log.log import Rollout, read_rollouts
from qwenvl.train.callbacks import group_lines
from tests.run_log.runs import rollout

NASTY = [
    "[bold]not markup[/bold] [/red] {curly} %s",
    "\x1b[2J\x1b]0;title\x07 \u202eright to left \ud800 half a pair",
    "word " * 200 + "<answer>(2) insert the fan</answer>",
]


def test_texts_of_completions_cannot_steer_the_terminal():
    asked = ({"role": "user", "text": "<video>\nWhich?"},)
    cut = {"finish_reason": "length", "advantage": None, "where": ""}
    group = [
        rollout(step=3, sample=n, prompt=asked, solution="(2)", completion=text, rewards={"a": n}, total=n, **cut)
        for n, text in enumerate(NASTY)
    ]
    lines = list(group_lines(group))
    assert lines[0] == "step 3: 17  " and lines[1:3] == ["  prompt: <video> Which?", "  solution: (2)"]
    assert lines[3] == f"  +0.00  reward 0, a 0, 12 tokens, cut off: {NASTY[0]}"
    assert not {"\x1b", "\x07", "\u202e", "\ud800", "\n"} & set("".join(lines))
    assert lines[5].endswith("the fan</answer>") and " ... " in lines[5] and len(lines[5]) < 300


def test_equal_completions_of_a_group_have_one_line():
    said = [("no", 0.0), ("yes", 1.0), ("no", 0.0), ("yes", 1.0), ("no ", 0.0), ("no", 0.0)]
    group = [
        rollout(sample=n, completion=text, total=total, rewards={"a": total}, advantage=total - 0.5, tokens=n + 1)
        for n, (text, total) in enumerate(said)
    ]
    assert list(group_lines(group))[3:] == [
        "  +0.50  2 alike, reward 1, a 1, 2 tokens: yes",
        "  -0.50  3 alike, reward 0, a 0, 1 token: no",
        "  -0.50  reward 0, a 0, 5 tokens: no",
    ]


def test_a_run_shows_completions_of_its_first_and_each_second_step(make_trainer, capfd):
    """Of each the group whose rewards differ most, the best completion first."""
    trainer = make_trainer(
        display="plain", disable_tqdm=False, log_completions_every=2, max_steps=3, per_device_train_batch_size=4
    )
    trainer.train()
    group = r"^step (\d): (\S+)  \S+\n  prompt: .*\n  solution: .*\n((?:  [+-].*\n)+)"
    shown = re.findall(group, capfd.readouterr().err, re.M)
    assert [step for step, *_ in shown] == ["1", "2"]
    for step, record, completions in shown:
        groups: dict[str, list[Rollout]] = {}
        for row in read_rollouts(trainer.args.output_dir, step=int(step)):
            groups.setdefault(row.record_id, []).append(row)
        spreads = {name: max(r.total for r in rows) - min(r.total for r in rows) for name, rows in groups.items()}
        assert spreads[record] == max(spreads.values())
        told = re.findall(r"^  ([+-][\d.]+)  (?:(\d) alike, )?", completions, re.M)
        advantages = [float(number) for number, times in told for _ in range(int(times or 1))]
        assert advantages == sorted((round(row.advantage, 2) for row in groups[record]), reverse=True)
        assert all(f"letters {row.total:.3g}, {row.tokens} token" in completions for row in groups[record])
