"""The whole command on a tiny model: what it asks, finds, prints and writes."""

import json
import re
from itertools import groupby
from math import comb
from pathlib import Path

import pytest

from qwenvl.commands.probe import main
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.run_log.log import read_config, read_rollouts
from qwenvl.train.grpo_trainer import GRPOTrainer
from tests.evaluate.made import LETTERS, SOME

FLAGS = ["--use_cpu", "--generation_max_length", "6", "--base_interval", "0.5", "--seed", "3"]
FLAGS += ["--reward_funcs", "format", SOME, LETTERS]


@pytest.fixture
def model(tiny_checkpoint) -> str:
    """The path of a tiny checkpoint whose weights are large enough to sample different texts."""
    return str(tiny_checkpoint(initializer_range=0.1))


def groups_in(folder: Path) -> list[list]:
    """The rollouts of a probe, prompt by prompt."""
    return [list(rows) for _, rows in groupby(read_rollouts(folder, split="probe"), key=lambda row: row.where)]


def test_the_numbers_of_a_probe_follow_from_the_completions_it_writes(model, tmp_path, capsys, never_at_full_size):
    out = tmp_path / "probe"
    assert main([model, "example", *FLAGS, "--samples", "4", "--output_dir", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((out / "probe.json").read_text())
    groups = groups_in(out)
    assert len(groups) == facts["prompts"] == 5 and all(len(group) == 4 for group in groups)
    assert (facts["pass_by"], facts["pass_at"], facts["group_size"]) == ("some", 1.0, 4)
    judged = [[row.rewards["some"] for row in group] for group in groups]
    right = [sum(values) for values in judged]
    assert right == [len(group[0].record_id) % 5 for group in groups] and 0 < sum(right) < 20
    for k in (1, 2, 4):
        expected = sum(1 - comb(4 - int(count), k) / comb(4, k) for count in right) / 5
        assert facts["pass_at_k"][str(k)]["mean"] == pytest.approx(expected)
    rows = [row for group in groups for row in group]
    assert facts["truncated"]["mean"] == sum(row.finish_reason == "length" for row in rows) / 20
    assert facts["completion_tokens"] == sum(row.tokens for row in rows) / 20
    assert facts["unique"] == sum(len({row.completion for row in group}) for group in groups) / 5
    assert facts["rewards"]["letters"]["mean"] == pytest.approx(sum(row.rewards["letters"] for row in rows) / 20)
    assert facts["equal_groups"]["mean"] == sum(len({row.total for row in group}) == 1 for group in groups) / 5
    assert read_config(out)["config"]["command"] == "qwenvl probe"
    assert any(row.clips for row in rows) and all(row.advantage is None for row in rows)


def test_a_probe_samples_the_completions_of_the_first_training_step(model, tmp_path):
    out = tmp_path / "probe"
    for more in (["--limit", "1"], ["--temporal_contrast"]):  # the second one replaces the rows of the first
        main([model, "example", *FLAGS, "--samples", "4", "--output_dir", str(out), *more])
    config = GRPOConfig(
        str(tmp_path / "run"),
        dataset_use="example",
        gradient_accumulation_steps=5,
        grpo_sample_size=4,
        generation_max_length=6,
        base_interval=0.5,
        seed=3,
        max_steps=1,
        reward_funcs=["format", SOME, LETTERS],
        temporal_contrast=True,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    GRPOTrainer(model, config).train()
    probed, trained = list(read_rollouts(out, split="probe")), list(read_rollouts(tmp_path / "run"))
    assert len(probed) == 20
    for ours, theirs in zip(probed, trained, strict=True):
        for name in ("record_id", "sample", "prompt", "completion", "tokens", "rewards", "total", "clips", "epoch"):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_the_gain_of_looking_is_measured_on_records_with_evidence(
    model, tmp_path, make_clip, make_row, write_rows, capsys
):
    rows = [make_row(prompt="<video>\nWhich?", video=str(make_clip(f"{n}.mp4", 40)), id=f"{n}") for n in range(3)]
    for n, span in enumerate(([1.0, 2.0], [2.0, 3.0])):
        rows[n]["evidence"] = [span]
    words = [model, str(write_rows(rows)), *FLAGS, "--allow_outside_media", "--tools", "look", "--samples", "4"]
    assert main([*words, "--pass_by", "letters", "--output_dir", str(tmp_path / "probe"), "--json"]) == 0
    looks = json.loads(capsys.readouterr().out)["looks"]
    offered, overview, shown = (
        [list(own) for _, own in groupby(read_rollouts(tmp_path / "probe", split=split), key=lambda row: row.record_id)]
        for split in ("probe", "overview", "right span")
    )
    assert (len(offered), len(overview), len(shown)) == (3, 2, 2) and looks["records"] == 2
    assert all(row.turns for row in offered[0]) and not any(row.turns for row in [*overview[0], *shown[0]])
    spans = {row[0].record_id: row[0].clips[0].times for row in shown}
    assert all(1.0 <= time <= 2.0 for time in spans["0"]) and all(2.0 <= time <= 3.0 for time in spans["1"])
    before, after = (sum(row.rewards["letters"] for own in each for row in own) / 8 for each in (overview, shown))
    assert looks["overview"]["mean"] == pytest.approx(before) and looks["right_span"]["mean"] == pytest.approx(after)
    assert looks["gain"]["mean"] == pytest.approx(after - before)


@pytest.fixture
def data_with_a_bad_clip(make_clip, make_row, write_rows) -> Path:
    """Three records: a good clip, a file that is no clip, and text alone."""
    make_clip("good.mp4", 20)
    make_clip("bad.mp4", 20).write_bytes(b"no clip")
    rows = [make_row(prompt="<video>\nWhich steps?", video=name, id=name) for name in ("good.mp4", "bad.mp4")]
    return write_rows([*rows, make_row(id="silent")])


def test_a_bad_clip_is_counted_and_named(model, data_with_a_bad_clip, capsys):
    assert main([model, str(data_with_a_bad_clip), *FLAGS]) == 0
    shown = capsys.readouterr().out
    assert f"{model} on {data_with_a_bad_clip}: 2 prompts, 8 completions each, at temperature 0.7" in shown
    assert re.search(r"^left out: 1 record, .*\n  .*data\.json\[1\] \(id bad\.mp4\): .*bad\.mp4: ", shown, re.M), shown


@pytest.mark.parametrize("teacher", ["self", "PATH"])
def test_the_teacher_is_probed_beside_the_policy(model, tmp_path, capsys, tiny_checkpoint, teacher):
    """Its prompts, and its model, answered as often as the policy's: the same reward by place gives the same share."""
    named = str(tiny_checkpoint(initializer_range=0.1, num_layers=3)) if teacher == "PATH" else teacher
    sees = ["--teacher", named, "--teacher_sees", "frames(6)"]
    assert main([model, "example", *FLAGS, "--samples", "4", "--limit", "2", *sees]) == 0
    shown = capsys.readouterr().out
    first, second = (re.search(rf"{name} +(\S+)", shown)[1] for name in ("pass@1", "pass@1 of the teacher"))
    assert first == second
