import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from qwenvl.run_log import log as log_file
from qwenvl.run_log.log import (
    AS_IT_IS,
    EvaluationLog,
    RunLog,
    RunLogError,
    SampleKey,
    drop_cut_line,
    hash_of,
    read_config,
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_samples,
)
from qwenvl.types import FrameInfo
from tests.evaluate.made import sample
from tests.run_log.runs import LOOKED, rollout


def test_metrics_are_read_back_with_nan_and_infinity(tmp_path):
    log = RunLog(tmp_path / "run")
    log.log_metrics(1, {"loss": 0.5, "kl": math.nan, "grad_norm": -math.inf, "reward/total": np.float32(0.25)})
    log.log_metrics(2, {"loss": 0.4})
    first, second = read_metrics(tmp_path / "run")
    assert math.isnan(first.pop("kl"))
    assert first == {"step": 1, "loss": 0.5, "grad_norm": -math.inf, "reward/total": 0.25}
    assert second == {"step": 2, "loss": 0.4}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # strict JSON: no bare NaN


def test_lines_of_training_and_of_evaluations_are_told_apart(tmp_path):
    log = RunLog(tmp_path)
    log.log_metrics(0, {"eval_total_reward": 0.5, "eval_total_reward_ci95": 0.1})
    log.log_metrics(1, {"loss": 0.5, "reward/total": 0.25})
    log.log_metrics(1, {"eval_total_reward": 0.75, "eval_total_reward_ci95": 0.1})
    log.log_metrics(1, {"train_runtime": 9.0, "train_loss": 0.5})
    assert [row["reward/total"] for row in read_metrics(tmp_path, split="train")] == [0.25]
    assert [row["eval_total_reward"] for row in read_metrics(tmp_path, split="eval")] == [0.5, 0.75]
    assert read_metrics(tmp_path, split="blank") == []
    assert len(read_metrics(tmp_path)) == 4
    log.log_metrics(2, {"eval_loss": 0.25, "eval_loss_n": 6})  # of a warm-up
    assert read_metrics(tmp_path, split="eval")[2:] == [{"step": 2, "eval_loss": 0.25, "eval_loss_n": 6}]


def test_rollouts_are_read_back_by_split_and_step(tmp_path):
    clips = FrameInfo("a.mp4", (0, 8), (0.0, 0.32), (0, 1)), FrameInfo("b.mp4", (3, 3), (0.1, 0.1))
    odd = "两个\n\u2028 \x00 \ud83d <b> 😀"
    written = [
        rollout(clips=clips, images=("a.png",), rewards={"format": 0.3, "accuracy": None}, fitted={"frames": [[8, 2]]}),
        rollout(completion=odd, sample=1, turns=LOOKED, evidence=((12.0, 15.5),)),
        rollout(step=2, split="eval", advantage=None),
    ]
    RunLog(tmp_path).log_rollouts(written[:2])
    RunLog(tmp_path, rank=1, world_size=2).log_rollouts(written[2:])
    assert list(read_rollouts(tmp_path, split=None)) == written
    assert list(read_rollouts(tmp_path)) == written[:2] == list(read_rollouts(tmp_path, step=1))
    assert list(read_rollouts(tmp_path, split="eval")) == written[2:]


def test_a_line_that_a_crash_cut_is_dropped_by_reader_and_next_writer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    RunLog(tmp_path).log_metrics(1, {"loss": 0.5})
    with path.open("a") as file:
        file.write('{"step": 2, "loss": 0.' + "1" * 200_000)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    RunLog(tmp_path).log_metrics(2, {"loss": 0.4})
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}]


def test_a_resumed_run_keeps_the_settings_of_each_start(tmp_path):
    """Of each start those that the next one changed, so that all of them can be told."""
    log = RunLog(tmp_path)
    log.write_config({"loss_type": "grpo", "lr": 1e-6, "seed": 1}, {"started": "monday"})
    log.finish(4, saved=False)
    log.write_config({"loss_type": "dapo", "lr": 1e-6, "seed": 1}, {"started": "tuesday"}, resumed_at=4)
    log.write_config({"loss_type": "dapo", "lr": 1e-5, "seed": 1}, {"started": "friday"}, resumed_at=8)
    written = read_config(tmp_path)
    assert written["config"] == {"loss_type": "dapo", "lr": 1e-5, "seed": 1} and written["resumed_at"] == 8
    first, second = written["earlier_starts"]
    assert first["launch"] == {"started": "monday"} and first["changed_settings"] == {"loss_type": "grpo"}
    assert second["launch"] == {"started": "tuesday"} and second["changed_settings"] == {"lr": 1e-6}
    assert "resumed_at" not in first and second["resumed_at"] == 4 and "trained" not in written
    log.write_config({"loss_type": "gspo"})
    assert "earlier_starts" not in read_config(tmp_path), "a new run"


def test_resuming_drops_the_steps_that_come_again(tmp_path):
    logs = [RunLog(tmp_path, rank, world_size=3) for rank in range(3)]
    for step in (1, 2, 3):
        for log in logs:
            log.log_metrics(step, {"loss": step})
            log.log_rollouts([rollout(step=step, record_id=f"r{log.rank}")])
    resumed = [RunLog(tmp_path, rank, world_size=2) for rank in range(2)]  # one process fewer than before
    for log in resumed:
        log.begin(2)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    seen = [(row.step, row.record_id) for row in read_rollouts(tmp_path)]
    assert seen == [(step, f"r{rank}") for rank in range(3) for step in (1, 2)]
    resumed[0].log_metrics(3, {"loss": 3})
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    RunLog(tmp_path / "new").begin(5)  # nothing there yet: nothing to do


def test_the_configuration_is_that_of_the_newest_start(tmp_path):
    odd = {"seed": 1, "limit": math.inf, "folder": tmp_path, "betas": (0.9, 0.99)}
    plain = {"seed": 1, "limit": "Infinity", "folder": str(tmp_path), "betas": [0.9, 0.99]}
    RunLog(tmp_path).write_config(odd, {"hardware": "2 GPUs"})
    found = read_config(tmp_path)
    assert (found["config"], found["launch"]) == (plain, {"hardware": "2 GPUs"}) and "torch" in found["versions"]
    RunLog(tmp_path).write_config({"seed": 2})
    other = RunLog(tmp_path, rank=1, world_size=2)
    other.write_config({"seed": 3})
    other.log_metrics(1, {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert read_config(tmp_path) == {"config": {"seed": 2}, "versions": found["versions"]}


@pytest.mark.parametrize(
    ("read", "name", "text", "message"),
    [
        (read_metrics, "metrics.jsonl", '{"step": 1}\n{"step": \n', r"metrics.jsonl:2: not JSON"),
        (read_metrics, "metrics.jsonl", "[1]\n", r'metrics.jsonl:1: .*integer "step"'),
        (read_config, "other.json", "", r"run.json: no such file; is .* the output_dir of a run"),
        (read_config, "run.json", "{", r"run.json: not JSON"),
        (read_rollouts, "rollouts/rank-0.jsonl", '{"step": 1}\n', r"rank-0.jsonl:1: no completion: KeyError"),
        (read_samples, "samples.jsonl", "{\n", r"samples\.jsonl:1: not JSON"),
        (read_samples, "samples.jsonl", "[1]\n", r"samples\.jsonl:1: no completion"),
        (read_samples, "samples.jsonl", '{"model": "m"}\n', r"samples\.jsonl:1: no completion: KeyError"),
        (read_evaluation, "other.json", "", "no such file; is .* the output_dir of an evalua"),
        (read_evaluation, "evaluation.json", "{", "not JSON"),
        (read_evaluation, "evaluation.json", '{"format": 9}', "another version"),
    ],
)
def test_a_missing_or_damaged_file_is_an_error_with_its_line(tmp_path, read, name, text, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(RunLogError, match=message):
        list(read(tmp_path))


# ---- evaluations


def test_files_beside_those_of_the_processes_are_left_alone(tmp_path):
    RunLog(tmp_path).log_rollouts([rollout()])
    RunLog(tmp_path, rank=1, world_size=2).log_rollouts([rollout(sample=1)])
    copies = [tmp_path / "rollouts" / f"rank-{name}.jsonl" for name in ("x", "0-copy", "01", "")]
    for copy in copies:
        copy.write_text("mine\n")
    assert [row.sample for row in read_rollouts(tmp_path)] == [0, 1]
    RunLog(tmp_path).begin(1)
    assert [row.sample for row in read_rollouts(tmp_path)] == [0, 1], "a rank beyond the world keeps its earlier steps"
    assert all(copy.read_text() == "mine\n" for copy in copies)


def test_an_evaluation_is_read_back(tmp_path):
    log = EvaluationLog(tmp_path / "new")
    log.begin({"models": []})
    samples = [sample(), sample(1, "blank", 2, doc=None, total=None)]
    log.log(samples)
    assert list(read_samples(log.folder).values()) == samples
    path = log.folder / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # as a crash cuts it
    assert list(read_samples(log.folder).values()) == samples[:1]
    log = EvaluationLog(log.folder)
    log.begin({"models": []})
    samples[0] = sample(tokens=8)  # which comes twice
    log.log(samples)
    assert list(read_samples(log.folder).values()) == samples
    assert read_evaluation(log.folder) == {"format": 1, "models": []}
    log.write({"ended": "now", "value": math.nan})
    found = read_evaluation(log.folder)
    assert (found["ended"], found["value"]) == ("now", "NaN")


def test_rows_have_the_keys_of_lmms_eval():
    row = sample().row()
    assert {"doc_id", "doc", "target", "resps", "filtered_resps", "doc_hash"} <= set(row)
    assert (row["resps"], row["filtered_resps"]) == ([["so <answer>(1) lid</answer>"]], ["(1) lid"])
    # As lmms-eval takes it: SHA-256 of the row as JSON with two blanks of indentation.
    as_json = '{\n  "a": "é"\n}'
    assert hash_of({"a": "é"}) == hashlib.sha256(as_json.encode()).hexdigest()


def test_lines_of_several_processes_are_one_file_at_the_end(tmp_path):
    logs = [EvaluationLog(tmp_path, process) for process in range(3)]
    for n, log in enumerate(logs):
        log.begin({"by": n})
        log.log([sample(n)])
    assert read_evaluation(tmp_path)["by"] == 0  # only the first process writes it
    assert {path.name for path in tmp_path.glob("samples*")} == {"samples.jsonl", "samples-1.jsonl", "samples-2.jsonl"}
    found = read_samples(tmp_path)
    assert set(found) == {SampleKey("base", AS_IT_IS, n, 0) for n in range(3)}
    logs[0].join(found[key] for key in sorted(found, key=lambda key: -key.doc_id))
    assert [path.name for path in tmp_path.glob("samples*")] == ["samples.jsonl"]
    assert [each.doc_id for each in read_samples(tmp_path).values()] == [2, 1, 0]


def test_a_cut_line_at_the_end_is_dropped_in_a_file_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "_CHUNK", 8)
    path = tmp_path / "rows.jsonl"
    drop_cut_line(path)  # which is not there
    assert not path.exists()
    for whole, cut in (("", ""), ("", "no line end at all"), ("one\n", ""), ("one\ntwo\n", "x" * 30), ("\n", "x" * 8)):
        path.write_text(whole + cut)
        drop_cut_line(path)
        assert path.read_text() == whole


def test_an_evaluation_is_known_from_one_whose_name_begins_like_it(tmp_path):
    """The rows of an evaluation that was cut go at a resume, though another one of the step has ended."""
    log = RunLog(tmp_path)
    log.write_config({})
    log.log_metrics(1, {"eval_sop_hard_total_reward": 0.5})
    of_eval = [replace(rollout(step=1), split=split) for split in ("eval_sop_hard", "eval_sop")]
    log.log_rollouts(of_eval)
    RunLog(tmp_path).begin(1)
    assert [row.split for row in read_rollouts(tmp_path, split=None)] == ["eval_sop_hard"]
