"""The command and its folder: what it does not write into, what it goes on from, and when there is nothing to do."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qwenvl.commands.train import main
from qwenvl.run_lock import locked
from qwenvl.run_log.log import read_config, read_metrics, read_rollouts


@pytest.fixture
def command(tiny_checkpoint, tmp_path, capfd):
    """``command(*flags)`` -> exit status and what was said last; two steps on an example record, into ``out``."""

    def run(*flags: str) -> tuple[int, str]:
        settings = f"--model_name_or_path={tiny_checkpoint()} --output_dir={tmp_path}/out --use_cpu=True --max_steps=2"
        data = "--dataset_use=example --generation_max_length=2 --grpo_sample_size=2 --disable_tqdm=True"
        status = 0
        try:
            main([*settings.split(), *data.split(), *flags])
        except SystemExit as ended:
            status = ended.code
        said = capfd.readouterr().err
        assert "Traceback" not in said
        return status, said.strip().splitlines()[-1]

    return run


@contextmanager
def caught_warnings(name: str) -> Iterator[list[str]]:
    """The warnings of one logger."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger(name).addHandler(handler)
    yield told
    logging.getLogger(name).removeHandler(handler)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resume_auto_is_one_command_for_a_queue(command, tmp_path):
    out = tmp_path / "out"
    auto = ["--resume=auto", "--save_steps=1", "--save_total_limit=3"]
    assert command(*auto)[0] == 0  # there is nothing yet: the run begins
    assert read_config(out)["finished"] == 2
    before = contents(out)
    for again in (auto, ["--save_steps=1", "--resume_from_checkpoint=True"]):
        status, line = command(*again)
        assert status == 0 and contents(out) == before
        assert line.startswith(f"qwenvl train: finished already: {out} holds the model of step 2, and nothing")
    # It goes on from the newest whole checkpoint, and says why it passes over a newer one.
    command("--save_steps=1", "--resume_from_checkpoint=True", "--max_steps=3")
    assert read_config(out)["finished"] == 3
    (out / "checkpoint-3" / "optimizer.pt").unlink()
    with caught_warnings("qwenvl.train.run.checkpoints") as warnings:
        command(*auto, "--max_steps=4")
    assert warnings == [
        f"{out}/checkpoint-3 is passed over, and the run resumes from {out}/checkpoint-2: "
        f"{out}/checkpoint-3/optimizer.pt: no such file"
    ]
    assert [row["step"] for row in read_metrics(out) if "loss" in row] == [1, 2, 3, 4]
    # Where no checkpoint is whole nothing is begun anew beside them.
    for folder in out.glob("checkpoint-*"):
        (folder / "optimizer.pt").unlink(missing_ok=True)
    before = contents(out)
    status, line = command(*auto, "--max_steps=5")
    assert status == 2 and "checkpoint-4/optimizer.pt: no such file" in line
    assert contents(out) == before


def test_resume_takes_the_folder_of_a_checkpoint(command, tmp_path):
    command("--save_steps=1")
    command(f"--resume={tmp_path}/out/checkpoint-1", "--save_steps=1", "--max_steps=3")
    assert [row["step"] for row in read_metrics(tmp_path / "out") if "loss" in row] == [1, 2, 3]
    assert command("--resume=none")[1].startswith("qwenvl train: none: not a checkpoint")
    for flag, words in (
        ("--resume_from_checkpoint=True", "name what the run goes on from twice"),
        ("--overwrite_output_dir=True", "--overwrite_output_dir has no effect without --resume never"),
    ):
        status, line = command("--resume=auto", flag)
        assert status == 2 and words in line


def test_a_run_that_died_after_its_last_checkpoint_saves_its_model(command, tmp_path):
    evaluated = ["--save_steps=1", "--eval_dataset_use=example%20"]
    command(*evaluated)
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    (tmp_path / "out" / "model.safetensors").unlink()
    settings = json.loads((tmp_path / "out" / "run.json").read_text())
    del settings["finished"]
    (tmp_path / "out" / "run.json").write_text(json.dumps(settings))
    rows = [row for row in read_metrics(tmp_path / "out") if "loss" in row or "eval_total_reward" in row]
    rollouts = list(read_rollouts(tmp_path / "out"))
    status, _ = command(*evaluated, "--resume_from_checkpoint=True")
    assert status == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == model
    assert read_config(tmp_path / "out")["finished"] == 2
    assert [row for row in read_metrics(tmp_path / "out") if "loss" in row or "eval_total_reward" in row] == rows
    assert list(read_rollouts(tmp_path / "out")) == rollouts


def test_the_model_of_a_finished_run_is_not_replaced_by_default(command, tmp_path):
    assert command("--resume=auto", "--save_strategy=no")[0] == 0
    before = contents(tmp_path / "out")
    status, line = command("--resume=auto", "--save_strategy=no")
    assert status == 0 and line.startswith("qwenvl train: finished already: ")
    status, line = command("--save_strategy=no")
    assert status == 2
    assert line.startswith(f"qwenvl train: {tmp_path}/out: holds a model, which this run would replace; give another")
    assert contents(tmp_path / "out") == before
    status, _ = command("--save_strategy=no", "--overwrite_output_dir=True", "--max_steps=1")
    assert status == 0
    assert [row["step"] for row in read_metrics(tmp_path / "out") if "loss" in row] == [1]


def test_the_base_model_is_not_replaced(command, tiny_checkpoint, tmp_path):
    (tmp_path / "base").symlink_to(tiny_checkpoint())
    before = contents(tiny_checkpoint())
    for flags in ([], ["--overwrite_output_dir=True"], ["--resume_from_checkpoint=True"]):
        status, line = command(f"--output_dir={tmp_path}/base", *flags)
        assert status == 2
        assert line.startswith(f"qwenvl train: --output_dir {tmp_path}/base is the folder of --model_name_or_path: ")
    assert contents(tiny_checkpoint()) == before


def test_a_foreign_file_is_not_written_into(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text('{"accuracy": 0.5}\n')
    status, line = command()
    assert status == 2
    assert line.startswith(f'qwenvl train: {tmp_path}/out/metrics.jsonl:1: expected an object with an integer "step"')


def test_flags_and_settings_that_a_resumed_run_cannot_have_are_refused(command, tmp_path):
    command("--save_steps=1")
    for flag in ("--overwrite_output_dir=True", f"--start_from_weights={tmp_path}"):
        status, line = command(flag, "--resume_from_checkpoint=True")
        assert status == 2
        assert line.startswith(f"qwenvl train: {flag.split('=')[0]} has no effect with --resume_from_checkpoint")
    # before a model is loaded
    status, line = command("--resume_from_checkpoint=True", "--seed=7", f"--model_name_or_path={tmp_path}")
    assert status == 2
    assert line.startswith("set them as they were, or begin a new run with the checkpoint's weights")


def test_weights_alone_are_not_resumed_but_started_from(command, tmp_path):
    command("--save_steps=1", "--save_only_model=True")
    checkpoint = tmp_path / "out" / "checkpoint-2"
    status, line = command("--resume_from_checkpoint=True")
    assert status == 2
    assert line.startswith(f"qwenvl train: {checkpoint}/optimizer.pt: no such file, and without it")
    status, _ = command(f"--start_from_weights={checkpoint}", f"--output_dir={tmp_path}/second")
    assert status == 0


def test_a_folder_in_use_is_left_alone(command, tmp_path):
    holder = "import sys; from qwenvl.run_lock import locked\nwith locked(sys.argv[1]): print(); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "out")], **pipes) as other:
        other.stdout.readline()
        status, line = command()
        other.stdin.close()
    assert status == 2
    assert line.startswith(f"qwenvl train: {tmp_path}/out: in use by another run, process {other.pid} on ")
    with locked(tmp_path / "out"):  # a run of this process
        assert os.listdir(tmp_path / "out") == [".lock"]
