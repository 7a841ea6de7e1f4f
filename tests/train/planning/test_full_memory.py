"""``--auto_fit`` before a run, and memory that is full for real, in a child process with a bounded address space."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.demo.clips import encode
from qwenvl.plan.remedies import Case, cheapest_way, remedies
from qwenvl.train.planning.case import case_of, lengths_of_data, policy_without_weights
from qwenvl.train.planning.full_memory import (
    fit_to_memory,
    message_lines,
    phase_of,
    room_of,
    told_what_takes_memory,
)
from qwenvl.train.run.failures import FullMemoryError, explanation, first_line
from qwenvl.train.train_grpo import main
from tests.plan.test_memory import SHAPES, WEIGHTS
from tests.plan.test_remedies import JOB

CHILD = '''
import resource, sys
import torch
from transformers import TrainerCallback
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.run.resume import Beginning
from qwenvl.train.run.command import carry_out
from qwenvl.train.run.failures import told_in_one_line

model, data, out, when = sys.argv[1:]
MB = 2**20
held = []

def leave(mb):
    """Bounds the address space to what is in use, fills what is free of it, and gives back so much."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    for size in (16 * MB, MB):
        while True:
            try:
                held.append(torch.empty(size, dtype=torch.uint8))
            except RuntimeError:
                break
        if size == 16 * MB:
            held.append(torch.empty(0))
    del held[-mb:]

class Tight(GRPODataset):
    def load(self, record, epoch=0):
        leave(24)
        return super().load(record, epoch)

class Tighten(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if when == "sampling":
            leave(6)

def letters(completions, **columns):
    if when == "training":
        leave(24)
    return [float(number) for number in range(len(completions))]

spare = [torch.empty(MB, dtype=torch.uint8) for _ in range(64)]  # so that there is enough to be given back
args = GRPOConfig(
    output_dir=out, dataset_use=data, model_name_or_path=model, max_steps=1, grpo_sample_size=2,
    generation_max_length=4, use_cpu=True, save_strategy="no", report_to="none", display="none",
    video_max_frame_pixels=50176,
)
trainer = GRPOTrainer(args=args, reward_funcs=[letters], callbacks=[Tighten()])
if when == "decoding":
    trainer.train_dataset.__class__ = Tight
del spare
with told_in_one_line("qwenvl train", out):
    carry_out("qwenvl train", trainer, Beginning())
'''


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on address space is Linux's")
@pytest.mark.parametrize("when", ["decoding", "sampling", "training"])
def test_full_memory_is_told_with_what_it_went_to(when, fork_python, tiny_checkpoint, tmp_path):
    turns = [
        {"from": "human", "value": " ".join(f"part {n} of it?" for n in range(500))},
        {"from": "gpt", "value": "<answer>2</answer>"},
    ]
    clip = {}
    if when == "decoding":  # four frames of 25 MB each, which come together
        encode(tmp_path / "clip.mp4", np.zeros((4, 2160, 3840, 3), np.uint8), 2, options={"preset": "ultrafast"})
        clip, turns[0]["value"] = {"video": "clip.mp4"}, "<video>\nWhat is it?"
    data = tmp_path / "records.json"
    data.write_text(json.dumps([{"id": str(n), **clip, "conversations": turns} for n in range(2)]))
    model = tiny_checkpoint(hidden_size=128, num_layers=4)
    done = subprocess.run(
        [fork_python, "-c", CHILD, str(model), str(data), str(tmp_path / "out"), when],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "qwenvl train: " in done.stderr, done.stderr[-3000:]
    said = done.stderr[done.stderr.index("qwenvl train: ") :]
    doing = {"decoding": "decoding clips", "sampling": "sampling completions", "training": "computing log-probs"}[when]
    assert said.startswith(f"qwenvl train: memory is full while {doing}: "), said
    assert "allocate memory" in said.splitlines()[0] and "Traceback" not in said
    if clip:
        named = re.match(r".*: (.+)\[(\d)\] \(id (\d)\): (.+): ", said)
        assert named and named[1] == str(data) and named[2] == named[3] and named[4] == str(tmp_path / "clip.mp4")
        assert "--dataloader_num_workers 0, a lower --video_max_frames" in said
    for part in ("weights", "optimizer", "activations", "in all"):
        assert f"\n  {part}" in said
    assert "What helps most, the cheapest first:\n  --" in said and 1 <= said.count(" saves ") <= 3
    assert said.rstrip().endswith("there is no checkpoint yet: the same command begins anew")


class Swollen(GRPODataset):
    """Its clips take more memory than there is."""

    def _load_clip(self, record, number, epoch):
        raise MemoryError


def test_a_process_that_decodes_is_told_of_as_the_trainer_is(sop_data):
    records = load_dataset(str(sop_data)).records
    with pytest.raises(MemoryError) as met:
        next(iter(DataLoader(Swollen(records), num_workers=1, collate_fn=list)))
    assert phase_of(met.value) == "decoding clips"
    assert (
        first_line(met.value)
        == f"MemoryError: {records[0].where} (id {records[0].id}): {records[0].videos[0]}: MemoryError"
    )


def test_what_a_run_was_doing():
    def fails_in(file: str) -> BaseException:
        try:
            exec(compile("raise MemoryError", file, "exec"))
        except MemoryError as error:
            return error

    assert phase_of(fails_in("/x/qwenvl/rollout/shared_sampling.py")) == "sampling completions"
    assert phase_of(fails_in("/x/torch/autograd/graph.py")) == "the backward pass"
    assert phase_of(fails_in("/x/qwenvl/data/media/images.py")) == "decoding clips"
    assert phase_of(fails_in("/x/somewhere.py")) == "training"


def test_three_remedies_and_for_decoding_those_of_the_host():
    lines = list(message_lines(Case(SHAPES, WEIGHTS, JOB), "decoding clips"))
    assert sum(" saves " in line for line in lines) == 3 and any("--dataloader_num_workers 0" in line for line in lines)
    cheapest = remedies(Case(SHAPES, WEIGHTS, JOB))[0].flags
    assert any(cheapest in line for line in message_lines(Case(SHAPES, WEIGHTS, JOB), "the backward pass"))


def test_other_errors_and_other_trainers_pass():
    for error in (RuntimeError("mat1 and mat2 shapes"), OSError("no such file"), MemoryError()):
        with pytest.raises(type(error)), told_what_takes_memory(SimpleNamespace(train_dataset=None)):
            raise error
    with pytest.raises(torch.OutOfMemoryError), told_what_takes_memory(SimpleNamespace()):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_the_command_goes_on_with_the_checkpoint(tmp_path):
    said = explanation(FullMemoryError("memory is full while training: x.\ntable"), tmp_path)
    assert said == "memory is full while training: x.\ntable; there is no checkpoint yet: the same command begins anew"


@pytest.fixture
def settings(tiny_checkpoint, sop_data, tmp_path) -> dict:
    """Of a run of two prompts in a micro-batch."""
    return {
        "output_dir": str(tmp_path / "run"),
        "model_name_or_path": str(tiny_checkpoint(num_layers=4)),
        "dataset_use": str(sop_data),
        "per_device_train_batch_size": 2,
        "grpo_sample_size": 2,
        "generation_max_length": 6,
        "use_cpu": True,
    }


def case_with(settings: dict):
    args = GRPOConfig(**settings)
    policy = policy_without_weights(args)
    return case_of(args, policy, lengths_of_data(args, 100).at(1.0), on_host=True)


def test_what_changes_nothing_is_taken_until_it_fits(settings):
    case = case_with(settings)
    least = cheapest_way(case, 1.0, automatic=True)[1].estimate().peak
    room = (case.estimate().peak + 2 * least) / 3
    args = GRPOConfig(**settings, auto_fit=True, fit_memory_gb=room / 1e9)
    fit_to_memory(args)
    assert args.auto_fitted and all(getattr(args, name) == value for name, value in args.auto_fitted.items())
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 2
    policy = policy_without_weights(args)
    fitted = case_of(args, policy, lengths_of_data(args, 100).at(1.0), on_host=True)
    assert fitted.estimate().peak <= room < case.estimate().peak


def test_nothing_is_changed_where_it_fits(settings, capfd):
    args = GRPOConfig(**settings, auto_fit=True)
    fit_to_memory(args)
    assert args.auto_fitted == {} and args.per_device_train_batch_size == 2 and not args.gradient_checkpointing
    assert "--auto_fit changes nothing: a step takes " in capfd.readouterr().err
    assert room_of(args) > 10**8


def test_what_would_not_fit_is_refused_with_what_helps(settings):
    args = GRPOConfig(**settings, auto_fit=True, fit_memory_gb=1e-6)
    with pytest.raises(ValueError, match="with all that changes nothing of what is learned:\n") as refused:
        fit_to_memory(args)
    said = str(refused.value)
    assert "\n  weights" in said and "\nWhat else helps:\n  --" in said and args.auto_fitted is None
    assert args.per_device_train_batch_size == 2


def test_the_command_writes_down_what_it_took(settings, tmp_path, capfd):
    case = case_with(settings)
    room = (case.estimate().peak + 2 * cheapest_way(case, 1.0, automatic=True)[1].estimate().peak) / 3
    flags = [f"--{name}={value}" for name, value in settings.items()]
    main([*flags, "--auto_fit", f"--fit_memory_gb={room / 1e9}", "--max_steps=1", "--save_strategy=no"])
    captured = capfd.readouterr()
    written = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    taken = written["auto_fitted"]
    assert taken and taken.items() <= written.items()
    flags = " ".join(f"--{name} {value}" for name, value in taken.items())
    assert f"--auto_fit takes {flags}: a step then takes " in captured.out + captured.err


def test_it_has_an_effect_or_is_refused(settings, make_trainer):
    with pytest.raises(ValueError, match="--fit_memory_gb has no effect without --auto_fit"):
        GRPOConfig(**settings, fit_memory_gb=3.0)
    with pytest.raises(ValueError, match="--auto_fit cannot be used with --fsdp"):
        GRPOConfig(**settings, auto_fit=True, fsdp=True)
    with pytest.raises(ValueError, match=r"call qwenvl\.train\.planning\.full_memory\.fit_to_memory"):
        make_trainer(auto_fit=True)
