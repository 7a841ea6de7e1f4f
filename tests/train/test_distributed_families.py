"""Several processes on the families whose layers, experts or towers differ from those of Qwen2.5-VL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.train.test_distributed import (
    BY_PROMPT,
    ENGINES,
    RECIPES,
    all_but_the_first,
    assert_same_numbers,
    assert_same_update,
    launch,
    write_records,
)


@pytest.fixture(scope="session")
def apart(sop_data, tmp_path_factory) -> Path:
    """Two videos, a text and an image, in an order that gives one of two processes the videos."""
    return write_records(sop_data, (0, 6, 2, 7), tmp_path_factory.mktemp("apart") / "apart.json")


@pytest.fixture(scope="session")
def three(apart) -> Path:
    """The records of `apart` without the first."""
    return all_but_the_first(apart)


@pytest.fixture(scope="session")
def alone(tiny_checkpoint, tmp_path_factory) -> Callable[..., Path]:
    """``alone(family, recipe, data, **flags)`` -> what one process makes of two steps."""
    made: dict[tuple[str, str, Path], Path] = {}

    def get(family: str, recipe: str, data: Path, **flags) -> Path:
        if (family, recipe, data) not in made:
            made[family, recipe, data] = output = tmp_path_factory.mktemp("alone") / "run"
            flags = {"per_device_train_batch_size": 4, **RECIPES[recipe], **flags}
            launch(1, tiny_checkpoint(family, initializer_range=0.1), data, output, how=BY_PROMPT, **flags)
        return made[family, recipe, data]

    return get


def published(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint with the matrices of its experts turned, as they lie in files of Qwen3-VL-MoE on the hub."""
    shutil.copytree(checkpoint, folder)
    file = folder / "model.safetensors"
    turned = {name: x.mT.contiguous() if ".experts." in name else x for name, x in load_file(file).items()}
    save_file(turned, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "family, recipe, engine",
    [
        ("qwen3_5_moe", "checkpointing", "fsdp"),
        ("qwen3_vl_moe", "checkpointing, tower learns", "zero3"),  # of the published layout
        # Without experts, which are parameters as others are.
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                *(("qwen3_5", "checkpointing", engine) for engine in ("fsdp", "zero3")),
                *(("qwen3_vl", "checkpointing, tower learns", engine) for engine in ("ddp", "fsdp", "zero3")),
            )
        ),
    ],
)
def test_processes_with_other_media_than_each_other_make_the_update_of_one(
    tiny_checkpoint, apart, alone, tmp_path, family, recipe, engine
):
    """Layers, tower and mergers, deepstack's too, run as often in the process that has nothing for them."""
    if engine == "zero3":
        pytest.importorskip("deepspeed")
    start, output = tiny_checkpoint(family, initializer_range=0.1), tmp_path / "run"
    order = {"train_sampling_strategy": "sequential"}
    given = published(start, tmp_path / "published") if family == "qwen3_vl_moe" else start
    flags = {"gradient_accumulation_steps": 2, **order, **ENGINES[engine], **RECIPES[recipe]}
    launch(2, given, apart, output, how=BY_PROMPT, **flags)
    one = alone(family, recipe, apart, **order)
    assert_same_update(output, one, start)
    names = ("reward/total", "kl", "entropy", "loss", "grad_norm", "prompt/tokens")
    assert_same_numbers(output, one, names, rows=2)
    held = [
        {
            json.loads(line)["record_id"]
            for line in (output / "rollouts" / f"rank-{rank}.jsonl").read_text().splitlines()
        }
        for rank in (0, 1)
    ]
    assert held == [{"clip-0", "clip-2"}, {"text", "image"}]


@pytest.mark.parametrize("recipe", ["lora", pytest.param("frozen tower", marks=pytest.mark.slow)])
def test_linear_attention_and_experts_make_the_update_of_one(tiny_checkpoint, three, alone, tmp_path, recipe):
    """Three prompts in steps of four: layers run as often in the process that has fewer. Experts need no more care."""
    pytest.importorskip("deepspeed")
    start, output = tiny_checkpoint("qwen3_5_moe", initializer_range=0.1), tmp_path / "run"
    flags = {"gradient_accumulation_steps": 2, **ENGINES["zero3"], **RECIPES[recipe]}
    launch(2, start, three, output, how=BY_PROMPT, **flags)
    assert_same_update(output, alone("qwen3_5_moe", recipe, three), start)
