"""The lines at the end of a run, and what to do next."""

from __future__ import annotations

import pytest

from qwenvl.config.settings import TrainingSettings
from qwenvl.run_log.health import Finding
from qwenvl.run_log.log import RunLog
from qwenvl.run_log.report.write import summary
from qwenvl.run_log.run import read_runs
from qwenvl.train.run.whole_run import findings_of, has_scored, next_steps, run_summary


def test_the_summary_tells_rewards_evaluations_and_warnings(tmp_path):
    log = RunLog(tmp_path)
    log.log_metrics(0, {"eval_total_reward": 0.25, "eval_total_reward_ci95": 0.125})
    for step in range(1, 21):
        log.log_metrics(step, {"reward/total": step / 20})
    log.log_metrics(20, {"eval_total_reward": 0.75, "eval_total_reward_ci95": 0.0625})
    log.log_metrics(20, {"train_runtime": 3.0})
    found = [Finding("left_out", "one\nmore", ""), Finding("cut", "two", "")]
    assert run_summary(tmp_path, found, ["do this", "and this"]).splitlines() == [
        f"{tmp_path}: 20 steps",
        "  reward    0.125 at first, 0.925 at last   (means of the first and last fifth)",
        "  eval      0.250 +- 0.125 at step 0, 0.750 +- 0.062 at step 20",
        "  warnings  2, the first: one more",
        f"  look      qwenvl report {tmp_path}   # curves, and every completion with its frames",
        "  next      do this",
        "            and this",
    ]


def settings_of(**settings):
    defaults = {"output_dir": "runs/a", "dataset_use": "my data.json", "model_name_or_path": "base"}
    made = TrainingSettings(**defaults | settings)
    made.set_by_user = frozenset(settings)
    return made


@pytest.mark.parametrize("over", [True, False])
def test_the_summary_is_of_the_state_and_the_windows_of_the_report(tmp_path, over):
    """Half of the completions are cut off up to step 30, or to the end."""
    log = RunLog(tmp_path)
    log.begin(0)
    log.write_config({"per_device_train_batch_size": 4})
    for step in range(1, 61):
        cut = 0.0 if over and step > 30 else 0.5
        log.log_metrics(step, {"loss": 0.0, "reward/total": step / 60, "completion/truncated_frac": cut})
    [run] = read_runs([tmp_path])
    [facts] = summary([run], [[]], [])["runs"]
    found = findings_of(tmp_path)
    assert [each.message for each in found] == [each["message"] for each in facts["warnings"]]
    assert len(found) == (not over)
    lines = run_summary(tmp_path, found).splitlines()
    reward = facts["trends"]["reward/total"]
    assert f"{reward['first']:.3f} at first, {reward['last']:.3f} at last" in lines[1]
    assert ("none" if over else "1, the first: 50% of the completions") in lines[2]


@pytest.mark.parametrize(
    ("lora", "codes"),
    [(False, ["left_out"]), (True, ["left_out", "equal_rewards"])],
    ids=["whole weights", "an adapter"],
)
def test_the_next_commands_follow_from_adapter_and_findings(lora, codes):
    args = settings_of(eval_dataset_use="held out.json", lora_enable=lora)
    shown = next_steps(args, [Finding(code, "", "") for code in codes])
    expected = ["qwenvl evaluate base runs/a 'held out.json' --controls all   # is it better? does it use the video?"]
    if lora:
        expected.insert(0, "qwenvl preview 'my data.json' --n 8 --model base   # what does the model see?")
        expected.append("qwenvl merge runs/a --out runs/a-merged   # whole weights, for other programs")
    assert shown == expected


def test_the_next_commands_show_the_prompts_of_the_run_and_of_its_teacher():
    args = settings_of(tools=["look"], teacher="reference", teacher_sees="frames(16)")
    assert "--n 8 --model base --tools look   # " in next_steps(args, [Finding("equal_rewards", "", "")])[0]
    asked = next_steps(args, [], scored=False)[0]
    assert "--tools look --teacher reference --teacher_sees 'frames(16)'   # can it learn" in asked


def test_a_run_without_a_right_answer_is_followed_by_a_probe_and_a_warm_up():
    args = settings_of(video_max_frames=4, use_cpu=True, reward_funcs=["format", "accuracy"], on_bad_sample="skip")
    assert next_steps(args, [], scored=False) == [
        "qwenvl probe base 'my data.json' --video_max_frames 4 --reward_funcs format accuracy --use_cpu"
        "   # can it learn from these records?",
        "qwenvl warmup --model_name_or_path base --dataset_use 'my data.json' --output_dir runs/a-warm "
        "--video_max_frames 4 --on_bad_sample skip --use_cpu   # teach it the answers first",
    ]


@pytest.mark.parametrize(
    ("row", "scored"),
    [
        ({"reward/format": 1.0, "reward/accuracy": 0.0, "reward/total": 0.3}, False),
        ({"reward/format": 0.0, "reward/accuracy": 0.1, "reward/total": 0.07}, True),
        ({"reward/format": 0.5, "reward/total": 0.5}, True),  # there is no other reward
        ({"reward/total": 0.0}, False),
        ({"loss": 1.0}, True),  # a run of a teacher alone
    ],
    ids=["format alone", "an accuracy", "no other reward", "no reward", "a teacher alone"],
)
def test_form_and_length_are_no_right_answer(row, scored):
    assert has_scored([row, row]) is scored
