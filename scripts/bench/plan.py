"""Planned and measured peaks of memory: the table of docs/memory.md.

    python scripts/bench/plan.py                  # all settings, about five minutes of CPU
    python scripts/bench/plan.py --only qwen3_5   # those of a family

Each setting trains a tiny checkpoint for two steps on clips of noise, by the trainer itself, with no end token, so that
every completion has its full length. Measured is the most that PyTorch's CPU allocator held at a time: its own record
of every allocation and release (``torch.profiler`` with ``profile_memory``), and the weights, which were there before.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import save_tiny
from qwenvl.plan.remedies import Case
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.planning.case import TargetSizes, case_of
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.warmup.config import WarmupConfig
from qwenvl.train.warmup.trainer import WarmupTrainer

SIZES = {"hidden_size": 256, "num_layers": 4, "vision_hidden_size": 128, "vision_depth": 4}
TWO_PROMPTS = {"per_device_train_batch_size": 2}
LORA = {"lora_enable": True, "lora_r": 8, "tune_mm_mlp": False}


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        family: of the tiny checkpoint.
        name: what is special about it.
        flags: of training, in place of those that all settings have.
        sizes: of the checkpoint, likewise.
        steps: records have so many steps in their solutions, which a warm-up teaches. 0 for training by rewards.
    """

    family: str
    name: str
    flags: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    steps: int = 0


SETTINGS = (
    Setting("qwen2_vl", "full"),
    Setting("qwen2_5_vl", "full"),
    Setting("qwen3_vl", "full"),
    Setting("qwen3_vl_moe", "full"),
    Setting("qwen3_5", "full"),
    Setting("qwen3_5_moe", "full"),
    Setting("qwen2_5_vl", "checkpointing", {"gradient_checkpointing": True}),
    Setting("qwen2_5_vl", "LoRA", LORA),
    Setting("qwen2_5_vl", "bfloat16", {"bf16": True}),
    Setting("qwen3_vl", "LoRA, bfloat16, checkpointing", {**LORA, "bf16": True, "gradient_checkpointing": True}),
    Setting("qwen3_vl", "each completion computes its prompt", {"shared_prefix": "off"}),
    Setting("qwen2_5_vl", "3 micro-batches, 8 completions", {"gradient_accumulation_steps": 3, "grpo_sample_size": 8}),
    Setting("qwen2_5_vl", "2 prompts, no reference", {"per_device_train_batch_size": 2, "grpo_beta": 0.0}),
    Setting("qwen2_vl", "tower learns", {"tune_mm_vision": True}),
    Setting(
        "qwen2_5_vl",
        "8 layers, 16 completions of 256 tokens, LoRA, checkpointing",
        {**LORA, "gradient_checkpointing": True, "grpo_sample_size": 16, "generation_max_length": 256},
        {"num_layers": 8},
    ),
    Setting("qwen2_5_vl", "warm-up, full", steps=1),
    Setting("qwen3_vl", "warm-up, full, targets of 400 tokens", steps=50),
    Setting("qwen3_5", "warm-up, LoRA", LORA, steps=1),
    Setting("qwen3_vl", "warm-up, LoRA, bfloat16, 2 prompts", {**LORA, "bf16": True, **TWO_PROMPTS}, steps=1),
    Setting(
        "qwen2_5_vl",
        "warm-up, checkpointing, 3 micro-batches",
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 3},
        steps=1,
    ),
    Setting("qwen2_vl", "warm-up, tower learns", {"tune_mm_vision": True}, steps=1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="settings whose family or name has this in it")
    options = parser.parse_args()
    print(
        "| family | setting | measured, MB | planned, MB | planned / measured | fullest |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for setting in SETTINGS:
        if options.only is None or options.only in f"{setting.family} {setting.name}":
            with tempfile.TemporaryDirectory() as folder:
                peak, case = measured(setting, Path(folder))
            made = case.estimate()
            print(
                f"| `{setting.family}` | {setting.name} | {peak / 1e6:.1f} | {made.peak / 1e6:.1f} "
                f"| {made.peak / peak:.2f} | {made.fullest.name} |",
                flush=True,
            )


def measured(setting: Setting, folder: Path) -> tuple[int, Case]:
    """The peak of a run in bytes, and what its plan is made of."""
    gc.collect()  # else what an earlier run held is released, and counted, in this one
    trainer = make_trainer(setting, folder)
    base = storages(trainer.model)
    if trainer.reference is not None:
        with trainer.reference.model() as reference:
            base |= storages(reference)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        trainer.train()
    drawn = trainer.data_collator([trainer.train_dataset[0]])  # all records are of the same length
    merged = trainer.processing_class.video_processor.merge_size**2
    prompt = PromptLength(drawn["prompts"].input_ids.shape[1], len(drawn["prompts"].pixel_values_videos) // merged)
    targets = TargetSizes(*drawn["target_ids"].shape) if setting.steps else None
    case = case_of(trainer.args, trainer.model, prompt, on_host=True, targets=targets)
    return sum(base.values()) + most_held(record), case


def most_held(record: profile) -> int:
    """The most bytes that were allocated at a time since the profiler began."""
    events = record.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    return int(np.cumsum([size for _, size in changes]).max())


def storages(model: Any) -> dict[int, int]:
    """The bytes of each tensor of a model, one that is shared once."""
    return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}


def make_trainer(setting: Setting, folder: Path) -> PolicyTrainer:
    """A trainer on a tiny checkpoint, whose completions never end early, or that of a warm-up."""
    checkpoint = str(save_tiny(folder / "checkpoint", setting.family, **{**SIZES, **setting.sizes}))
    flags = {
        "output_dir": str(folder / "run"),
        "dataset_use": str(write_records(folder, max(1, setting.steps))),
        "max_steps": 2,
        "base_interval": 0.125,
        "video_max_frames": 16,
        "video_max_frame_pixels": 224 * 224,
        "decode_timeout": 0,
        "save_strategy": "no",
        "report_to": "none",
        "display": "none",
        "use_cpu": True,
        **setting.flags,
    }
    if setting.steps:
        return WarmupTrainer(checkpoint, WarmupConfig(**flags))
    sampled = {"generation_max_length": 64, "grpo_sample_size": 4}
    trainer = GRPOTrainer(checkpoint, GRPOConfig(**{**sampled, **flags}), reward_funcs=[letters])
    trainer.collector.engine.end_ids = []
    return trainer


def write_records(folder: Path, steps: int = 1) -> Path:
    """Six questions about clips of 16 frames of noise, 224 x 224 pixels, with so many steps in their answers."""
    draw, rows = np.random.default_rng(0), []
    for number in range(6):
        encode(folder / f"{number}.mp4", draw.integers(0, 255, (16, 224, 224, 3), dtype=np.uint8), 8, options={})
        turns = [
            {"from": "human", "value": "<video>\nWhich steps? (1) pick (2) insert"},
            {"from": "gpt", "value": f"<answer>{' '.join(['(1) pick'] * steps)}</answer>"},
        ]
        rows.append({"id": str(number), "video": f"{number}.mp4", "conversations": turns})
    path = folder / "records.json"
    path.write_text(json.dumps(rows))
    return path


def letters(completions: list[str], **columns: Any) -> list[float]:
    """The share of letters: a reward that differs within a group of random text."""
    return [sum(each.isalpha() for each in text) / max(1, len(text)) for text in completions]


if __name__ == "__main__":
    main()
