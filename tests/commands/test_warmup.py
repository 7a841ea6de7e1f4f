"""``qwenvl warmup`` as a user types it, ``qwenvl train`` from its result, and what it refuses."""

import json
import re

import pytest
from transformers import AutoModelForImageTextToText

from qwenvl.commands.train import main as train
from qwenvl.commands.warmup import main
from qwenvl.run_log.log import RunLog, read_config, read_metrics
from tests.run_log.runs import rollout
from tests.train.conftest import PROMPT, turns


@pytest.fixture
def flags(tiny_checkpoint, tmp_path):
    """``flags(**more)`` -> the flags of a short warm-up on the example records, into ``tmp_path / "warm"``."""

    def make(**more) -> list[str]:
        settings = {
            "model_name_or_path": tiny_checkpoint(initializer_range=0.1),
            "dataset_use": "example",
            "output_dir": tmp_path / "warm",
            "use_cpu": True,
            "max_steps": 2,
            "disable_tqdm": True,
        }
        return [f"--{name}={value}" for name, value in {**settings, **more}.items()]

    return make


def refused(capfd, *argv) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in argv])
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return ended.value.code, error.strip()


def test_training_starts_from_the_folder_of_a_warm_up(flags, tmp_path, capfd):
    main(flags(eval_dataset_use="example", learning_rate=1e-3))
    told = capfd.readouterr().err.splitlines()
    assert "the first target:" in told
    assert any(re.search(r"\d+ tokens: '<answer>.*</answer><\|im_end\|>'$", line) for line in told)
    summary = told[told.index(f"{tmp_path}/warm: 2 steps") :]
    assert [line.split()[0] for line in summary[1:]] == ["loss", "eval_loss", "warnings", "next"]
    assert f"qwenvl train --model_name_or_path {tmp_path}/warm --dataset_use example --output_dir" in summary[4]
    rows = read_metrics(tmp_path / "warm")
    assert [row["step"] for row in rows if "loss" in row] == [1, 2]
    assert [(row["step"], row["eval_loss_n"]) for row in rows if "eval_loss" in row] == [(2, 5)]
    assert read_config(tmp_path / "warm")["finished"] == 2
    assert (tmp_path / "warm" / "prompt_settings.json").is_file()

    sampled = {"grpo_sample_size": 2, "generation_max_length": 4, "max_steps": 1, "output_dir": tmp_path / "run"}
    train(flags(model_name_or_path=tmp_path / "warm", **sampled))
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "loss" in row] == [1]
    AutoModelForImageTextToText.from_pretrained(tmp_path / "run")


def test_a_warm_up_learns_the_best_completions_of_a_run(flags, sop_data, tmp_path, capfd):
    asked = {"prompt": ({"role": "user", "text": PROMPT},), "solution": "<answer>(1) step</answer>"}
    rows = [rollout(record_id=f"clip-{n}", **asked, completion=f"it is {n}", total=t) for n, t in ((0, 0.8), (3, 1.0))]
    RunLog(tmp_path / "run").log_rollouts(rows)
    more = {"dataset_use": sop_data, "from_rollouts": tmp_path / "run", "max_steps": 1}
    main(flags(**more, min_reward=0.9))
    told = capfd.readouterr().err
    assert "run: 1 different completions at or above reward 0.9, for 1 prompts" in told
    assert "--dataset_use: 1 of 8 records have such a completion, the others are left out" in told
    assert f"{sop_data}[3] (id clip-3): " in told and "'it is 3<|im_end|>'" in told
    code, error = refused(capfd, *flags(**more, min_reward=1.5, output_dir=tmp_path / "other"))
    assert code == 2
    assert error.endswith("has a total reward at or above --min_reward 1.5: the highest has 1")


def test_a_dry_run_shows_targets_and_settings_of_a_warm_up_and_writes_nothing(flags, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("grpo_sample_size: 8\nsync_ref_model: True\nbase_interval: 0.5\n")
    main([str(tmp_path / "run.yaml"), *flags(target_template="Answer: {solution}"), "--dry_run", "all"])
    lines = capsys.readouterr().out.splitlines()
    assert {"  target_template: Answer: {solution}", "  base_interval: 0.5"} <= set(lines)
    of_training = ("  grpo_beta", "  reward_funcs", "  grpo_sample_size", "  sync_ref_model")
    assert not any(line.startswith(of_training) for line in lines)
    targets = lines[lines.index("their targets") + 1 : -1]
    assert len(targets) == 4 and all("tokens: 'Answer: (" in line for line in targets)
    assert not (tmp_path / "warm").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grpo_beta": 0.2}, "--grpo_beta has no effect in a warm-up: the loss of a warm-up is the cross-entropy of"),
        ({"generation_top_p": 0.5}, "--generation_top_p has no effect in a warm-up: a warm-up samples nothing; leave"),
        ({"reward_funcs": "count"}, "--reward_funcs has no effect in a warm-up: a warm-up scores nothing; leave it"),
        ({"sync_ref_model": True}, "--sync_ref_model has no effect in a warm-up: a warm-up has no reference; leave it"),
        ({"min_reward": 0.5}, "--min_reward has no effect without --from_rollouts"),
        ({"from_rollouts": "run"}, "--from_rollouts needs --min_reward"),
        ({"target_template": "right"}, "--target_template must hold {solution}, got 'right'"),
        (
            {"stop_below_loss": 1, "logging_steps": 5},
            "--stop_below_loss has no effect without --logging_steps 1: it reads the loss of each step from the log",
        ),
        ({"stop_below_loss": 1, "logging_strategy": "epoch"}, "--stop_below_loss has no effect without --logging"),
        ({"stop_below_los": 1}, "unknown flag --stop_below_los=1; near: stop_below_loss"),
    ],
)
def test_flags_without_effect_in_a_warm_up_are_refused_with_the_reason(more, message, flags, capfd):
    code, error = refused(capfd, *flags(**more))
    assert code == 2 and message in error


def test_a_record_that_cannot_be_taught_is_named_before_training(flags, tmp_path, capfd):
    row = {"id": "a", "thinking": ["no", "text"], "conversations": turns("Which?", "(1)")}
    (tmp_path / "data.json").write_text(json.dumps([row]))
    code, error = refused(capfd, *flags(dataset_use=tmp_path / "data.json"))
    assert code == 1
    assert error.endswith('data.json[0]: `thinking`: expected text, got list ["no", "text"]')
