"""The demo command from end to end, small: what it makes, and what it leaves alone."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.commands.demo import main
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.demo.run import Demo, LookDemo, TimelineDemo, example, take_one_thread
from qwenvl.demo.tiny import FAMILIES
from qwenvl.run_log.log import Rollout, RunLog, read_evaluation, read_metrics
from tests.printed import commands_in, paste

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


def call(folder, *flags):
    """Output of the command, on the smallest set-up that it allows."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["--output_dir", str(folder), "--clips", "8", *flags]) == 0
    return out.getvalue()


def test_the_demo_trains_and_prints_paths_and_commands_that_work(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)  # where a pasted command writes its page
    folder = tmp_path / "out"
    out = call(folder, "--steps", "2")
    shown, said = commands_in(out), commands_in(capsys.readouterr().err)
    assert [command.split()[1] for command in shown] == ["warmup", "train", "evaluate", "report", "train"]
    assert said[0].startswith("qwenvl report ")
    assert caplog.text.count("the vision tower runs in every pass") == 2  # in the warm-up and in the run
    assert json.loads((folder / "demo.json").read_text())["minutes"] > 0
    assert [row["step"] for row in read_metrics(folder / "run") if "reward/total" in row] == [1, 2]
    assert "demo_heldout: 2 records" in out
    assert "\nBest without looking: accuracy 0.340, total 0.538, by naming the steps 1, 2, 3, 4, 6 of" in out
    named = re.search(r"\nreport +(\S+index.html):", out)[1]
    assert os.path.samefile(named, folder / "run" / "report" / "index.html")
    assert any((folder / "run" / "report" / "pictures").iterdir())
    AutoProcessor.from_pretrained(folder / "run")
    AutoModelForImageTextToText.from_pretrained(folder / "run")
    final = [row for row in read_metrics(folder / "run") if "eval_total_reward" in row][-1]
    evaluation = read_evaluation(folder / "evaluation")
    assert evaluation["controls"] == ["none", "blank", "other_clip"] and evaluation["ended"]
    assert evaluation["settings_of"] == str(folder / "run")
    scores = {(each["model"], each["control"]): each["scores"] for each in evaluation["numbers"]}
    assert scores["run", "none"]["total"]["mean"] == pytest.approx(final["eval_total_reward"], abs=1e-6)
    for command in dict.fromkeys([*shown, *said]):
        if "--controls all" not in command:  # of every control on two models, which takes long
            paste(command, *(("--samples", "8", "--limit", "1") if " probe " in command else ()))


def test_it_takes_one_thread_unless_the_user_has_said_how_many(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        take_one_thread()
        assert torch.get_num_threads() == 3
        monkeypatch.delenv("OMP_NUM_THREADS")
        take_one_thread()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_example_is_the_first_record_answered_wrong_and_then_right(tmp_path):
    def rollout(step, record_id, accuracy):
        rewards, words = {"format": 1.0, "accuracy": accuracy}, f"{record_id} at {step}"
        more = {"tokens": 1, "finish_reason": "stop", "total": 0.0, "split": "eval"}
        more |= {"step": step, "record_id": record_id, "sample": 0}
        return Rollout(prompt=(), solution="", completion=words, rewards=rewards, **more)

    log = RunLog(tmp_path)
    log.log_rollouts([rollout(0, name, reward) for name, reward in (("a", 1.0), ("b", 0.5), ("c", 0.5))])
    log.log_rollouts([rollout(9, name, reward) for name, reward in (("a", 1.0), ("b", 0.5), ("c", 1.0))])
    before, after = example(tmp_path, 9)
    assert (before.completion, after.completion) == ("c at 0", "c at 9")
    assert example(tmp_path, 0) is None


def test_a_folder_that_the_demo_did_not_make_is_never_removed(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.json").write_text("[]")
    with pytest.raises(SystemExit):
        main(["--output_dir", str(tmp_path), "--clips", "8"])
    assert f"qwenvl demo: {tmp_path}: not made by the demo" in capsys.readouterr().err
    assert (tmp_path / "data" / "mine.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clips", "7"], "at least 8"),
        (["--steps", "0"], "at least 1"),
        (["--only-data", "--timeline"], "--only-data trains nothing: leave out --steps, --clips, --family, --look and"),
        (["--only-data", "--steps", "3"], "--only-data trains nothing"),
    ],
)
def test_too_few_clips_or_steps_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        main(flags)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_all_commands_take_the_settings_of_every_family(tmp_path, family):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "datasets.yaml").touch()
    (_, _, warmup), (_, _, training) = Demo.of(tmp_path, family=family).commands()
    warmup, training = WarmupConfig(**warmup), GRPOConfig(**training)
    assert (warmup.stop_below_loss < 0.13) == family.startswith("qwen3_5")
    assert warmup.video_max_frame_pixels == training.video_max_frame_pixels == (56**2 if "qwen2" in family else 64**2)
    (_, _, sight), (_, _, calls), (_, _, train) = LookDemo.of(tmp_path, family=family).commands()
    assert WarmupConfig(**sight).tools is None
    assert WarmupConfig(**calls).tools == GRPOConfig(**train).tools == ["look"]
    (_, _, warmup), (_, _, training) = TimelineDemo.of(tmp_path, family=family).commands()
    assert WarmupConfig(**warmup).output_dir == GRPOConfig(**training).model_name_or_path
    assert sight["output_dir"] == calls["model_name_or_path"] and calls["output_dir"] == train["model_name_or_path"]


@pytest.mark.slow  # its commands are tested one by one, and its settings above
def test_the_demo_with_looks_runs_from_end_to_end(tmp_path):
    out = call(tmp_path / "out", "--look", "--steps", "1")
    assert "[5/5] does it look?" in out and "Best without looking: accuracy 0.167" in out
    evaluation = read_evaluation(tmp_path / "out" / "evaluation")
    assert evaluation["controls"] == ["none", "no_look", "other_span", "evidence"] and evaluation["ended"]


@pytest.mark.timeout(500)  # it warms a model up: a minute on quiet cores
def test_the_demo_of_timelines_runs_from_end_to_end(tmp_path, monkeypatch):
    out = call(tmp_path / "out", "--timeline", "--steps", "1")
    assert "Best without looking: timeline_iou 0.185" in out and "F1@50" in out
    evaluation = read_evaluation(tmp_path / "out" / "evaluation")
    assert evaluation["controls"] == ["none", "blank", "other_clip"] and evaluation["ended"]
    assert evaluation["numbers"][0]["timelines"]["records"] == 2
    monkeypatch.syspath_prepend(str(BENCH))
    seeds = importlib.import_module("demo_seeds")
    demo = TimelineDemo.of(tmp_path / "out", steps=1, clips=8)
    scores = seeds.scores_of(demo)  # before, after, and after with each control
    assert [score.exact for score in scores[:2]] == [
        each["timelines"]["scores"]["f1@50"]["mean"] for each in evaluation["numbers"] if each["control"] == "none"
    ]
    columns = seeds.heading(demo)[0].count("|")
    assert len(scores) == 4 and seeds.line(demo, 0, scores, 1.0).count("|") == columns
