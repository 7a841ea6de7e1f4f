"""An interrupted command, a full disk, full memory and infinite numbers cost one line, which says what to do."""

import json
import os
import resource
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image

from qwenvl.commands.train import main
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.own_code import OwnCodeError
from qwenvl.rollout.engine import EngineLostError
from qwenvl.step.failures import explanation, told_in_one_line
from qwenvl.train.run.checkpoints import how_to_go_on, seal
from qwenvl.train.run.whole_run import run

COMMAND = Path(__file__).resolve().parents[3] / "qwenvl" / "train" / "train_grpo.py"
SETTINGS = "--dataset_use=example --generation_max_length=2 --grpo_sample_size=2 --use_cpu=True --save_steps=1"


@contextmanager
def largest_file(size: int):
    """Files can't grow beyond ``size`` bytes within: what writes more fails as on a full disk, in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fails", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_ends_a_run_with_one_line_and_the_same_command_resumes(fails, tiny_checkpoint, tmp_path, capfd):
    model = tiny_checkpoint(initializer_range=0.1)
    weights = (model / "model.safetensors").stat().st_size
    size = {"model.safetensors": weights // 2, "optimizer.pt": weights * 5 // 4}[fails]
    # A picture: the frames of a clip are handed over in shared memory, which some systems count as a file.
    Image.new("RGB", (56, 56)).save(tmp_path / "picture.png")
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "<answer>(2)</answer>"}]
    records = tmp_path / "records.json"
    records.write_text(json.dumps([{"image": "picture.png", "conversations": turns}] * 2))
    out = tmp_path / "out"
    settings = SETTINGS.replace("=example", f"={records}").split()
    flags = [f"--model_name_or_path={model}", f"--output_dir={out}", *settings]
    if fails == "optimizer.pt":
        main([*flags, "--max_steps=1"])
        flags += ["--resume_from_checkpoint=True"]
    with largest_file(size), pytest.raises(SystemExit) as ended:
        main([*flags, "--max_steps=2"])
    said = capfd.readouterr().err
    assert ended.value.code == 1 and "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert line.startswith(f"qwenvl train: no space left for {out}: ")
    whole = f"resume from {out}/checkpoint-1 with --resume_from_checkpoint {out}/checkpoint-1"
    none = "there is no checkpoint yet: the same command begins anew"
    assert line.endswith(whole if fails == "optimizer.pt" else none)
    main([*flags, "--max_steps=2"])  # with space again the same command does the rest
    assert (out / "checkpoint-2" / "optimizer.pt").stat().st_size > size


def test_a_full_disk_is_named_where_the_writer_of_a_tokenizer_says_so_in_a_bare_exception(tmp_path):
    said = explanation(Exception("No space left on device (os error 28)"), tmp_path, how_to_go_on)
    assert said is not None and said.startswith(f"no space left for {tmp_path}: ")
    assert explanation(Exception("something else"), tmp_path, how_to_go_on) is None


def test_full_memory_names_the_flags_that_help(tmp_path):
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    said = explanation(error.value, tmp_path, how_to_go_on)
    assert said.startswith("memory is full: ") and "allocate" in said
    for flag in ("--video_max_frames", "--gradient_checkpointing", "--rollout_token_budget", "qwenvl plan"):
        assert flag in said
    for words in (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "NCCL error in: ProcessGroupNCCL.cpp:2\nLast error:\nFailed to CUDA calloc async 608 bytes",
        "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 'out of memory'",
    ):
        assert explanation(RuntimeError(words), tmp_path).startswith(f"GPU memory is full: {words[:30]}")
    assert explanation(MemoryError(), tmp_path).startswith("memory is full: MemoryError. ")
    assert explanation(RuntimeError("NCCL error in: NCCLUtils.cpp:94, invalid usage"), tmp_path) is None


def test_a_tool_of_the_user_that_fails_ends_a_run_with_one_line(tmp_path, monkeypatch, capsys):
    class Trainer:
        def __init__(self, **settings):
            pass

        def train(self, beginning):
            raise OwnCodeError("--tools own.py:look, called for data.json[0] (id a): KeyError: 1")

    monkeypatch.setattr("qwenvl.train.run.whole_run.GRPOTrainer", Trainer)
    with pytest.raises(SystemExit):
        run("qwenvl train", GRPOConfig(str(tmp_path / "run"), use_cpu=True, report_to="none"), dry="")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "qwenvl train: --tools own.py:look, called for data.json[0] (id a): KeyError: 1"


def test_a_killed_worker_of_the_data_loader_is_explained_with_the_flag(tmp_path):
    class Kills(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError) as error:
        next(iter(torch.utils.data.DataLoader(Kills(), num_workers=1)))
    said = explanation(error.value, tmp_path, how_to_go_on)
    assert said.startswith("a worker of the data loader is gone (DataLoader worker (pid")
    assert "--dataloader_num_workers takes less; there is no checkpoint yet" in said and "\n" not in said


def test_checkpoints_of_weights_alone_are_named(tmp_path):
    """A folder that --save_only_model leaves is no checkpoint to resume from, but holds weights to begin with."""
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").touch()
        seal(folder)
    said = explanation(EngineLostError("no server samples any more"), tmp_path, how_to_go_on)
    assert f"--start_from_weights {tmp_path}/checkpoint-2" in said and "--resume_from_checkpoint" not in said


def test_errors_of_the_program_keep_their_traceback(tmp_path, monkeypatch):
    for error in (RuntimeError("mat1 and mat2 shapes"), OSError(2, "No such file"), KeyError("x")):
        with pytest.raises(type(error)), told_in_one_line("qwenvl train", tmp_path, how_to_go_on):
            raise error
    monkeypatch.setenv("QWENVL_TRACEBACK", "1")
    with pytest.raises(KeyboardInterrupt), told_in_one_line("qwenvl train", tmp_path, how_to_go_on):
        raise KeyboardInterrupt


def test_ctrl_c_ends_a_run_with_one_line(fork_python, tiny_checkpoint, tmp_path):
    out = tmp_path / "out"
    flags = [f"--model_name_or_path={tiny_checkpoint()}", f"--output_dir={out}", *SETTINGS.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [
            fork_python,
            str(COMMAND),
            *flags,
            "--max_steps=100000",
            "--save_total_limit=2",
            "--dataloader_num_workers=1",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step 1 of"):
                break
        else:
            pytest.fail("".join(said))
        while not any(int(folder.name.partition("-")[2]) > 1 for folder in out.glob("checkpoint-*")):
            time.sleep(0.05)  # until the first checkpoint is whole, as the second has begun
        process.send_signal(signal.SIGINT)  # as a terminal sends it: to the workers of the loader too
        said += process.stderr.readlines()
    assert process.returncode == 130, "".join(said)
    assert "Traceback" not in "".join(said), "".join(said)
    assert said[-1].startswith(f"qwenvl train: stopped by Ctrl-C; resume from {out}/checkpoint-")
