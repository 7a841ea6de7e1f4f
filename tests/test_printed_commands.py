"""Every command that the commands print works when it is pasted."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from qwenvl.cli import main
from tests.printed import commands_in, paste

CLIPS = Path(__file__).parents[1] / "data" / "example" / "clips"
SEEN = ("--base_interval", "0.5", "--video_max_frames", "4", "--use_cpu")
SAMPLED = ("--grpo_sample_size", "2", "--generation_max_length", "4")


@pytest.fixture
def model(tiny_checkpoint, tmp_path, monkeypatch) -> str:
    """The path of a tiny checkpoint, with the folder of the test as working folder."""
    monkeypatch.chdir(tmp_path)
    return str(tiny_checkpoint(initializer_range=0.1))


def called(capfd, *words: str) -> str:
    capfd.readouterr()
    assert not main(list(words))
    out, err = capfd.readouterr()
    return err + out


def test_the_command_printed_after_a_warm_up_trains(model, capfd):
    words = ("--model_name_or_path", model, "--dataset_use", "example", "--output_dir", "warm", "--max_steps", "1")
    [train] = commands_in(called(capfd, "warmup", *words, *SEEN))
    assert "--video_max_frames 4" in train and "--base_interval 0.5" in train
    paste(train)


def test_commands_printed_after_a_run_that_was_never_right_work(model, capfd):
    words = ("--model_name_or_path", model, "--dataset_use", "example", "--output_dir", "run", "--max_steps", "1")
    told = called(capfd, "train", *words, *SEEN, *SAMPLED)
    found = commands_in(told)
    assert [command.split()[1] for command in found if "preview" not in command] == ["report", "probe", "warmup"]
    for command in found:
        paste(command, *(("--samples", "8", "--limit", "1") if "probe" in command else ()))


def test_commands_printed_after_a_run_that_was_right_work(model, capfd, tmp_path):
    reward = "def any_text(completions, **columns):\n    return [len(each) for each in completions]\n"
    (tmp_path / "mine.py").write_text(reward)
    words = ("--model_name_or_path", model, "--dataset_use", "example", "--output_dir", "run", "--max_steps", "1")
    more = ("--eval_dataset_use", "example%40", "--lora_enable", "--reward_funcs", "mine.py:any_text")
    found = commands_in(called(capfd, "train", *words, *SEEN, *SAMPLED, *more))
    assert [command.split()[1] for command in found if "preview" not in command] == ["report", "evaluate", "merge"]
    for command in found:
        paste(command, *(("--use_cpu", "--limit", "1") if "evaluate" in command else ()))


@pytest.mark.parametrize("length", ["4", "8"])
def test_the_command_printed_after_a_probe_probes_with_more_tokens(length, model, capfd):
    """Completions are cut off: the probe offers itself with more tokens."""
    words = (model, "example", "--limit", "1", *SEEN, "--generation_max_length", length, "--samples", "8")
    [again] = commands_in(called(capfd, "probe", *words))
    assert again.endswith(f"--generation_max_length {2 * int(length)}")
    paste(again)


def test_the_command_on_the_page_of_labels_trains(model, capfd, tmp_path):
    called(capfd, "label", model, str(CLIPS), "--question", "Which?", "--page", *SEEN, "--generation_max_length", "4")
    page = re.sub(r"</?span[^>]*>", "", Path("labels/index.html").read_text())  # around each word
    shown = re.search(r"<pre>(qwenvl train .*)</pre>", page)
    assert shown is not None
    text = Path("labels/data/run-0/page-0.js").read_text()
    rows = json.loads(text[text.index("[") : text.rindex("]") + 1])
    turn = {"from": "gpt", "value": "<answer>the lid</answer>"}  # as the page saves a correction
    shown_records = [row["record"] for row in rows]
    records = [json.loads(each["others"]) | {"conversations": [*each["turns"], turn]} for each in shown_records]
    Path("labels.json").write_text(json.dumps(records))
    paste(unescape(shown[1]), "--use_cpu")
