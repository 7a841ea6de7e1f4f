"""Several processes: the same update as one, whatever each of them holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from qwenvl.runlog import read_metrics, read_rollouts

SCRIPT = Path(__file__).with_name("ranks.py")
COMMON = {
    "use_cpu": True,
    "max_steps": 2,
    "grpo_sample_size": 3,
    "generation_max_length": 6,
    "learning_rate": 0.1,
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0,
    "save_strategy": "no",
    "base_interval": 0.5,
    "disable_tqdm": True,
}


def launch(processes: int, checkpoint, data, output, **flags) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    arguments = [f"--{name}={value}" for name, value in {**COMMON, **flags}.items()]
    done = subprocess.run(
        [sys.executable, *ranks, str(SCRIPT), str(checkpoint), str(data), str(output), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def weights(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).state_dict()


def assert_same_update(ours: Path, theirs: Path, start: Path, tolerance: float = 1e-5) -> None:
    before, one, two = weights(start), weights(ours), weights(theirs)
    moved = 0
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=tolerance, msg=name)
        moved += not torch.allclose(value, before[name], rtol=0, atol=10 * tolerance)
    assert moved > 10


@pytest.fixture(scope="session")
def mixed_data(sop_data, tmp_path_factory) -> Path:
    """Four records: two videos, an image and a text, so that ranks hold different kinds at a time."""
    rows = json.loads(sop_data.read_text())
    chosen = [rows[0], rows[2], rows[6], rows[7]]
    for row in chosen:
        for kind in ("video", "image"):
            if kind in row:
                row[kind] = str(sop_data.parent / row[kind])
    path = tmp_path_factory.mktemp("mixed") / "mixed.json"
    path.write_text(json.dumps(chosen))
    return path


@pytest.fixture(scope="session")
def one_process(tiny_checkpoint, mixed_data, tmp_path_factory) -> Path:
    """What one process makes of two steps of four prompts."""
    output = tmp_path_factory.mktemp("single") / "by_prompt"
    flags = {"per_device_train_batch_size": 4, "allow_outside_media": True}
    launch(1, tiny_checkpoint(initializer_range=0.1), mixed_data, output, **flags)
    return output


def test_two_processes_make_the_update_of_one(tiny_checkpoint, mixed_data, one_process, tmp_path):
    start, output = tiny_checkpoint(initializer_range=0.1), tmp_path / "by_prompt"
    launch(2, start, mixed_data, output, gradient_accumulation_steps=2, allow_outside_media=True)
    assert_same_update(output, one_process, start)
    ours, theirs = (
        [row for row in read_metrics(folder) if "reward/total" in row] for folder in (output, one_process)
    )
    epochs = {rollout.step: rollout.epoch for rollout in read_rollouts(output)}
    assert epochs == {1: 0, 2: 1}  # the four records are one step
    for name in ("reward/total", "kl", "loss", "completion/length_mean", "prompt/tokens"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], abs=1e-5), name


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_makes_the_same_update(tiny_checkpoint, mixed_data, one_process, tmp_path, stage):
    pytest.importorskip("deepspeed")
    start, output = tiny_checkpoint(initializer_range=0.1), tmp_path / "by_prompt"
    config = Path(__file__).parents[2] / "scripts" / "deepspeed" / f"zero{stage}.json"
    flags = {"gradient_accumulation_steps": 2, "allow_outside_media": True, "deepspeed": config}
    launch(2, start, mixed_data, output, **flags)
    assert_same_update(output, one_process, start)


def test_a_process_whose_samples_are_all_bad_does_not_stop_the_others(tiny_checkpoint, mixed_data, tmp_path):
    rows = json.loads(mixed_data.read_text())
    rows[0]["video"] = "broken.mp4"
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    data = tmp_path / "some.json"
    data.write_text(json.dumps(rows))
    output = tmp_path / "out"
    launch(2, tiny_checkpoint(), data, output, on_bad_sample="skip", allow_outside_media=True)
    rows = [row for row in read_metrics(output) if "loss" in row]
    assert len(rows) == 2 and sum(row["data/bad_samples"] for row in rows) == 1
    assert len(list(read_rollouts(output))) == 3 * 3


def test_processes_draw_a_mix_between_them(tiny_checkpoint, mixed_data, tmp_path):
    rows = json.loads(mixed_data.read_text())
    for name, chosen in (("one.json", rows[:1]), ("three.json", rows[1:])):
        (tmp_path / name).write_text(json.dumps(chosen))
    data, output = f"{tmp_path}/one.json:1,{tmp_path}/three.json:1", tmp_path / "out"
    launch(2, tiny_checkpoint(), data, output, allow_outside_media=True, max_steps=4)
    drawn = [(rollout.record_id, rollout.epoch) for rollout in read_rollouts(output) if rollout.sample == 0]
    first, *others = [row["id"] for row in rows]
    # two epochs of four: two draws from each set in an epoch, the single record four times
    assert sorted(epoch for record, epoch in drawn if record == first) == [0, 1, 2, 3]
    assert {drawn.count((record, 0)) for record in others} == {1}
    assert sum(row[f"dataset/{tmp_path}/one.json/drawn"] for row in read_metrics(output) if "loss" in row) == 4
