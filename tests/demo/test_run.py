"""The demo command from end to end, small: what it makes, what a second call makes of it, and what it leaves alone."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import shutil
from contextlib import redirect_stdout

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.demo.run import Demo, main
from qwenvl.demo.tiny import FAMILIES
from qwenvl.runlog import read_evaluation, read_metrics


def call(folder, *flags):
    """Output of the command, on the smallest set-up that it allows."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["--output_dir", str(folder), "--clips", "8", *flags]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def first_call(tmp_path_factory):
    """Folder, output and log of a first call with two steps. Read the folder, never write to it."""
    folder, logged = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    out = call(folder, "--steps", "2")
    logging.getLogger().removeHandler(handler)
    return folder, out, logged.getvalue()


def changed(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


def test_first_call_trains_and_says_where_everything_is(first_call):
    folder, out, log = first_call
    assert log.count("the vision tower runs in every pass") == 2  # in the warm-up and in the run
    assert [row["step"] for row in read_metrics(folder / "run") if "reward/total" in row] == [1, 2]
    for name in ("before GRPO", "after 2 steps of GRPO", "after, shown a blank video", "after, shown another clip"):
        line = next(line for line in out.splitlines() if line.startswith(name))
        assert re.search(r"\d\.\d\d ± (\d\.\d\d|nan)", line), line
    assert "2 held-out clips" in out
    named = re.search(r"\nreport +(\S+index.html):", out)[1]
    assert os.path.samefile(named, folder / "run" / "report" / "index.html")
    assert any((folder / "run" / "report" / "pictures").iterdir())
    AutoProcessor.from_pretrained(folder / "run")
    AutoModelForImageTextToText.from_pretrained(folder / "run")
    result = json.loads((folder / "result.json").read_text())
    final = [row for row in read_metrics(folder / "run") if "eval_total_reward" in row][-1]
    assert result["scores"]["after 2 steps of GRPO"]["total"] == pytest.approx(final["eval_total_reward"], abs=1e-6)
    assert "On the same clips GRPO brought " in out and result["in_words"] in out
    evaluation = read_evaluation(folder / "evaluation")
    assert evaluation["controls"] == ["none", "blank", "other_clip"] and evaluation["ended"]
    assert evaluation["settings_of"] == str(folder / "run")
    words = shlex.split(re.search(r"\nworth +\S*qwenvl evaluate (.*): made", out)[1])
    assert [os.path.abspath(words[n]) for n in (0, 1)] == [str(folder / "model"), str(folder / "run")]


def test_second_call_shows_the_first_and_its_date(first_call):
    folder = first_call[0]
    before = changed(folder)
    out = call(folder, "--steps", "2")
    finished = json.loads((folder / "result.json").read_text())["finished"]
    assert f"run before, until {finished}; nothing is trained now" in out
    assert "after 2 steps of GRPO" in out
    assert changed(folder) == before


def test_other_settings_train_anew_on_the_same_clips_and_warm_up(first_call, tmp_path):
    folder = shutil.copytree(first_call[0], tmp_path / "out")
    before = changed(folder)
    out = call(folder, "--steps", "1")
    assert "clips: already there" in out and "warm-up: already done" in out
    assert [row["step"] for row in read_metrics(folder / "run") if "reward/total" in row] == [1]
    after = changed(folder)
    made_once = [
        path for path in before if path.is_relative_to(folder / "data") or path.is_relative_to(folder / "model")
    ]
    assert made_once and all(after[path] == before[path] for path in made_once)


def test_what_the_demo_did_not_make_is_never_removed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.json").write_text("[]")
    with pytest.raises(FileExistsError, match="not made by the demo"):
        main(["--output_dir", str(tmp_path), "--clips", "8", "--fresh"])
    assert (tmp_path / "data" / "mine.json").exists()


@pytest.mark.parametrize(("flags", "message"), [(["--clips", "7"], "at least 8"), (["--steps", "0"], "at least 1")])
def test_sizes_that_cannot_work_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        main(flags)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_both_commands_take_the_settings_of_every_family(tmp_path, family):
    demo = Demo(tmp_path, family=family)
    warmup, training = WarmupConfig(**demo.warmup_settings()), GRPOConfig(**demo.training_settings())
    assert (warmup.stop_below_loss < 0.13) == family.startswith("qwen3_5")
    assert warmup.video_max_frame_pixels == training.video_max_frame_pixels == (56**2 if "qwen2" in family else 64**2)
