"""Memory that is full for real, in a child process whose address space is bounded, and what the command says of it."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from qwenvl.plan.remedies import Case, remedies
from qwenvl.train.planning.full_memory import told, told_what_takes_memory, what_it_did
from qwenvl.train.run.failures import FullMemoryError, explanation
from tests.plan.test_estimate import SHAPES, WEIGHTS
from tests.plan.test_remedies import JOB

CHILD = '''
import resource, sys
import torch
from transformers import TrainerCallback
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.run.beginning import Beginning
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
    generation_max_length=4, use_cpu=True, save_strategy="no", report_to="none", display="none", decode_timeout=0,
)
trainer = GRPOTrainer(args=args, reward_funcs=[letters], callbacks=[Tighten()])
del spare
with told_in_one_line("qwenvl train", out):
    carry_out("qwenvl train", trainer, Beginning())
'''


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on address space is Linux's")
@pytest.mark.parametrize("when", ["sampling", "training"])
def test_full_memory_is_told_with_what_it_went_to(when, fork_python, tiny_checkpoint, tmp_path):
    turns = [
        {"from": "human", "value": " ".join(f"part {n} of it?" for n in range(500))},
        {"from": "gpt", "value": "<answer>2</answer>"},
    ]
    data = tmp_path / "records.json"
    data.write_text(json.dumps([{"id": str(n), "conversations": turns} for n in range(2)]))
    model = tiny_checkpoint(hidden_size=128, num_layers=4)
    done = subprocess.run(
        [fork_python, "-c", CHILD, str(model), str(data), str(tmp_path / "out"), when],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    said = done.stderr[done.stderr.index("qwenvl train: ") :]
    doing = {"sampling": "sampling completions", "training": "computing log-probs"}[when]
    assert said.startswith(f"qwenvl train: memory is full while {doing}: "), said
    assert "allocate memory" in said.splitlines()[0] and "Traceback" not in said
    for part in ("weights", "optimizer", "activations", "in all"):
        assert f"\n  {part}" in said
    assert "What helps most, the cheapest first:\n  --" in said and 1 <= said.count(" saves ") <= 3
    assert said.rstrip().endswith("there is no checkpoint yet: the same command begins anew")


def test_what_a_run_was_doing():
    def fails_in(file: str) -> BaseException:
        try:
            exec(compile("raise MemoryError", file, "exec"))
        except MemoryError as error:
            return error

    assert what_it_did(fails_in("/x/qwenvl/rollout/prefill.py")) == "sampling completions"
    assert what_it_did(fails_in("/x/torch/autograd/graph.py")) == "the backward pass"
    assert what_it_did(fails_in("/x/qwenvl/data/media/images.py")) == "decoding clips"
    assert what_it_did(fails_in("/x/somewhere.py")) == "training"


def test_three_remedies_and_for_decoding_those_of_the_host():
    lines = list(told(Case(SHAPES, WEIGHTS, JOB), "decoding clips"))
    assert sum(" saves " in line for line in lines) == 3 and any("--dataloader_num_workers 0" in line for line in lines)
    cheapest = remedies(Case(SHAPES, WEIGHTS, JOB))[0].flags
    assert any(cheapest in line for line in told(Case(SHAPES, WEIGHTS, JOB), "the backward pass"))


def test_other_errors_and_other_trainers_pass():
    for error in (RuntimeError("mat1 and mat2 shapes"), MemoryError()):
        with pytest.raises(type(error)), told_what_takes_memory(SimpleNamespace(draws=SimpleNamespace(present=[]))):
            raise error
    with pytest.raises(torch.OutOfMemoryError), told_what_takes_memory(SimpleNamespace()):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_the_command_goes_on_with_the_checkpoint(tmp_path):
    said = explanation(FullMemoryError("memory is full while training: x.\ntable"), tmp_path)
    assert said == "memory is full while training: x.\ntable; there is no checkpoint yet: the same command begins anew"
