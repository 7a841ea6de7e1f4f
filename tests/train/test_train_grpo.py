"""A user whose settings or data are wrong gets a message and no traceback."""

import json
import re
from importlib.util import find_spec

import pytest

from qwenvl.commands.train import main
from qwenvl.run_log.log import read_metrics, read_rollouts
from qwenvl.train.run import checkpoints


def refused(capfd, *argv) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in argv])
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return ended.value.code, error.strip().splitlines()[-1]


@pytest.fixture
def flags(tiny_checkpoint, tmp_path):
    """Flags of a run of one step on a CPU, without its data."""
    return f"--model_name_or_path={tiny_checkpoint()} --output_dir={tmp_path}/out --use_cpu=True --max_steps=1".split()


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        (["--dataset_use=exampel"], 2, "error: --dataset_use: no data set 'exampel'"),
        (["--dataset_use=none.json"], 2, "--dataset_use: none.json: no such file"),
        (["--dataset_use=example", "--eval_dataset_use=exampel"], 2, "no data set 'exampel'"),
        (["--dataset_use=example", "--model_name_or_path=./none"], 2, "./none: no such folder; expected one that"),
        (["--dataset_use=example", "--teacher=./none"], 2, "--teacher ./none: no such folder; expected one that"),
        (["--dataset_use=example", "--reward_funcs=accuracyy"], 2, "no reward function is named 'accuracyy'"),
        (["--dataset_use=example", "--resume_from_checkpoint=none"], 2, "not a checkpoint"),
        (["--dataset_use=example", "--max_steps=6", "--num_iterations=2", "--save_steps=0.5"], 2, "--save_steps 0.5:"),
        (["--dataset_use=example%20", "--dataloader_drop_last=1", "--per_device_train_batch_size=2"], 2, "to train on"),
        (["--dataset_use=example", "--columns=a=b"], 1, r"records.json\[0\]: --columns names 'a'; the row has"),
    ],
)
def test_wrong_settings_and_data_end_the_command_with_one_line(wrong, code, message, flags, capfd):
    found, line = refused(capfd, *flags, *wrong)
    assert found == code
    assert re.search(message, line), line


@pytest.mark.skipif(find_spec("dvclive") is not None, reason="dvclive is installed")
def test_a_tracker_that_is_not_installed_is_refused_with_its_package(flags, capfd):
    code, line = refused(capfd, *flags, "--dataset_use=example", "--report_to=dvclive")
    assert code == 2
    assert line.startswith("qwenvl train: --report_to dvclive: its package is not installed; pip install dvclive")


def test_a_bad_clip_in_the_middle_of_training_ends_it_with_one_line(flags, sop_data, tmp_path, capfd):
    rows = json.loads(sop_data.read_text())[:1]
    (tmp_path / "clip-0.mp4").write_bytes((sop_data.parent / "clip-0.mp4").read_bytes()[:900])
    (tmp_path / "bad.json").write_text(json.dumps(rows))
    workers = ["--dataloader_num_workers=1", "--disable_tqdm=True"]
    code, line = refused(capfd, *flags, f"--dataset_use={tmp_path}/bad.json", *workers)
    assert code == 1
    assert line.startswith(f"qwenvl train: {tmp_path}/bad.json[0] (id clip-0): {tmp_path}/clip-0.mp4: ")
    assert line.endswith("Mend the file or the record, or pass --on_bad_sample skip")


def test_a_prompt_that_is_too_long_ends_training_or_is_skipped(flags, tmp_path, capfd, caplog):
    longest = ["--dataset_use=example%20", "--max_prompt_length=9", "--save_strategy=no", "--disable_tqdm=True"]
    code, line = refused(capfd, *flags, *longest)
    assert code == 1
    assert re.match(r"qwenvl train: .*: the prompt has \d+ tokens, .* or pass --on_long_prompt skip$", line), line
    code, line = refused(capfd, *flags, *longest, "--on_long_prompt=skip")
    assert code == 1
    assert line.startswith("qwenvl train: nothing was trained: every record that was drawn was left out")
    assert re.search(r"1 record left out:\n .* but max_prompt_length is 9$", caplog.text, re.M), caplog.text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return [1 / 0 for text in completions]",
            "failed on record '.*': ZeroDivisionError: .* \\(own.py, line 2\\)\n",
        ),
        ("return [1.0]", "expected a list of 4 values, one per completion"),
        ("return [None] * len(completions)", "no reward function scored it"),
    ],
)
def test_a_reward_of_the_user_that_fails_ends_training_without_a_traceback(body, said, flags, tmp_path, capfd):
    (tmp_path / "own.py").write_text(f"def mine(completions, **columns):\n    {body}\n")
    only = [f"--reward_funcs={tmp_path}/own.py:mine", "--generation_max_length=2", "--disable_tqdm=True"]
    with pytest.raises(SystemExit, match="2"):
        main([*flags, "--dataset_use=example%20", *only])
    told = capfd.readouterr().err
    assert re.search(f"qwenvl train: (reward \"mine\"|record '.*'):? {said}", told) and "Traceback" not in told


@pytest.mark.parametrize(
    "words",
    [
        ["--teacher=reference", "--teacher_sees=frames(4)", "--distill_on=vision", "--distill_weight=0.5"],
        ["--teacher=self", "--teacher_sees=solution", "--distill_kl=full"],
        ["--teacher=PATH(offload=False)", "--teacher_sees=feedback", "--distill_kl=sampled(clip=2)"],
    ],
    ids=["reference", "self", "another model"],
)
def test_the_command_trains_with_each_teacher(words, flags, tiny_checkpoint, tmp_path):
    words[0] = words[0].replace("PATH", str(tiny_checkpoint(num_layers=3)))
    settings = ["--dataset_use=example%20", "--generation_max_length=2", "--save_strategy=no", "--disable_tqdm=True"]
    main([*flags, *settings, *words])
    [row] = read_metrics(tmp_path / "out", "train")
    assert row["teacher/kl"] != 0


@pytest.mark.parametrize("lora", [True, False])
def test_adapters_and_whole_weights_do_not_go_on_from_each_other(lora, flags, tmp_path, capfd):
    settings = [*flags, "--dataset_use=example%20", "--generation_max_length=2", "--disable_tqdm=True"]
    main([*settings, f"--lora_enable={lora}"])
    code, line = refused(capfd, *settings, f"--lora_enable={not lora}", "--resume_from_checkpoint=True")
    held = "LoRA adapters; resume with" if lora else "a whole model, no LoRA adapters; resume without"
    assert code == 2
    assert line.startswith(f"qwenvl train: {tmp_path}/out/checkpoint-1: holds {held} --lora_enable")


def test_a_resumed_command_reads_its_checkpoint_once(flags, monkeypatch):
    """Before it loads the model. To compare the checksums of large files takes minutes."""
    settings = [*flags, "--dataset_use=example%20", "--generation_max_length=2", "--disable_tqdm=True", "--resume=auto"]
    main(settings)
    compared, checksums = [], checkpoints._checksums
    monkeypatch.setattr(
        checkpoints, "_checksums", lambda files, store=False: compared.append(store) or checksums(files, store)
    )
    main([*settings, "--max_steps=2"])
    assert compared == [False, True]  # of the checkpoint, and of the one that was then saved


@pytest.mark.parametrize("when", [[], ["--eval_strategy=steps", "--eval_steps=1"]], ids=["at the end", "at each step"])
def test_the_command_ends_with_an_evaluation_and_a_summary(when, flags, tmp_path, capfd, caplog):
    more = ["--on_nonfinite", "skip", "--save_strategy=no", *when]
    main([*flags, "--dataset_use=example%20", "--eval_dataset_use=example%20", "--generation_max_length=2", *more])
    assert [row["step"] for row in read_metrics(tmp_path / "out") if "eval_total_reward" in row] == [1]
    assert len(list(read_rollouts(tmp_path / "out", split="eval"))) == 1
    lines = capfd.readouterr().err.splitlines()
    summary = lines[lines.index(f"{tmp_path}/out: 1 step") :]
    words = [line.split()[0] for line in summary[1:]]
    assert words == ["reward", "eval", "warnings", "look", "next", "qwenvl", "qwenvl"]
    (row,) = read_metrics(tmp_path / "out", "train")
    assert row["nonfinite/skipped_steps"] == 0 and row["group/unique_frac"] > 0 and row["reward/max"] == 0
    assert "is of 1 record" in caplog.text and "are trained on too" in caplog.text
    assert "warnings  2, the first: " in summary[3]
    assert "had equal rewards" in summary[3] and summary[5].startswith("  next      qwenvl preview example%20 --n 8")
    assert re.match(r" +qwenvl probe \S+ example%20 ", summary[6])  # no completion was right


def test_groups_that_nothing_can_replace_are_counted(flags, tmp_path):
    """The tiny model is never right."""
    settings = ["--dataset_use=example", "--generation_max_length=2", "--max_steps=2", "--save_strategy=no"]
    main([*flags, *settings, "--filter_groups=accuracy(max_rounds=1)"])
    rows = [row for row in read_metrics(tmp_path / "out") if "loss" in row]
    assert [(row["filter/rounds"], row["filter/unfilled_frac"]) for row in rows] == [(1, 1)] * 2
    assert sum(row.dropped for row in read_rollouts(tmp_path / "out")) == 2 * 4
