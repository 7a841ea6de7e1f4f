"""How many frames of long video fit on a GPU, computed: the second table of docs/scaling.md. Nothing is run.

    python scripts/bench/long_plan.py
    python scripts/bench/long_plan.py --group 16 --length 512 --gpu_memory 80

The shapes of real checkpoints with LoRA, on the meta device, and the arithmetic of ``qwenvl plan``: one prompt in
bfloat16 with gradient checkpointing, on one GPU, of whose memory nine tenths are counted on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))
from shapes import SHAPES, Wanted, make_model

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.plan.remedies import Case
from qwenvl.train.planning.case import case_of
from qwenvl.train.planning.plan import SHARE

MODELS = {
    "3b": "Qwen2.5-VL-3B",
    "7b": "Qwen2.5-VL-7B",
    "qwen3_vl_4b": "Qwen3-VL-4B",
    "qwen3_vl_8b": "Qwen3-VL-8B",
    "qwen3_5_4b": "Qwen3.5-4B",
}
PAIR = 142
"""Tokens of two frames: an hour with a frame for each second is a prompt of 256,000."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*SHAPES], help="[all]")
    parser.add_argument("--gpu_memory", nargs="+", type=float, default=[24, 48, 80, 140], help="in GB [24 48 80 140]")
    parser.add_argument("--group", type=int, default=8, help="completions [%(default)s]")
    parser.add_argument("--length", type=int, default=256, help="tokens of each [%(default)s]")
    parser.add_argument("--frames", type=int, default=3600, help="of the last columns [%(default)s]")
    options = parser.parse_args(argv)
    print(f"computed, not measured: {options.group} completions of {options.length} tokens, {PAIR // 2} tokens a frame")
    heads = [f"{memory:g} GB" for memory in options.gpu_memory]
    last = f"GB for {options.frames:,}"
    print(
        "\n".join(
            f"| {' | '.join(row)} |" for row in [["model", *heads, last, "with offload"], ["---"] * (len(heads) + 3)]
        )
    )
    for name in options.models:
        case = case_of_model(name, options.group, options.length)
        print(
            f"| {' | '.join([MODELS.get(name, name), *cells(case, options.gpu_memory, options.frames)])} |", flush=True
        )


def cells(case: Case, memories: Sequence[float], frames: int) -> list[str]:
    """Frames that fit into each memory, and the peak for so many frames, as it is and with activations offloaded."""
    fit = [f"{most_frames(case, SHARE * memory * 1e9):,}" for memory in memories]
    peaks = [with_frames(case.doing(activation_offload=away), frames).estimate().peak for away in (False, True)]
    return [*fit, *(f"{peak / 1e9:.0f}" for peak in peaks)]


def most_frames(case: Case, room: float) -> int:
    """The most frames, in tens, whose step takes no more than ``room`` bytes. 0 where ten do not fit."""
    low, high = 0, 2**20
    while high - low > 1:
        middle = (low + high) // 2
        if with_frames(case, 10 * middle).estimate().peak <= room:
            low = middle
        else:
            high = middle
    return 10 * low


def with_frames(case: Case, frames: int) -> Case:
    """The case with a prompt of so many frames."""
    tokens = frames * PAIR // 2
    return case.doing(tokens=tokens, patches=tokens * case.shapes.vision.merged)


def case_of_model(name: str, group: int, length: int) -> Case:
    """A step of a checkpoint with LoRA, whose prompt has a frame or two."""
    model: nn.Module = make_model(Wanted(name, torch.device("meta"), lora=True))
    flags = {"lora_enable": True, "lora_r": 16, "tune_mm_mlp": False, "gradient_checkpointing": True}
    flags |= {"grpo_sample_size": group, "generation_max_length": length, "bf16": True, "use_cpu": True}
    config = GRPOConfig("runs/long_plan", report_to="none", **flags)
    return case_of(config, model, PromptLength(PAIR, PAIR), on_host=False)


if __name__ == "__main__":
    main()
