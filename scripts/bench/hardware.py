"""The GPU memory that PyTorch reserves for a step, by model, computed by `qwenvl plan`: the table of the README.

    python scripts/bench/hardware.py

Prompts of one clip: 16 frames of 448 x 252 pixels and a question of about 100 tokens; 8 completions of 512 tokens,
gradient checkpointing, bfloat16. It needs the true shapes of the models and neither weights nor a GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from transformers import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu import SHAPES

from qwenvl.commands.plan import plan_of, request_of
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import make_processor

NAMES = {
    "3b": "Qwen2.5-VL-3B",
    "7b": "Qwen2.5-VL-7B",
    "qwen3_vl_4b": "Qwen3-VL-4B",
    "qwen3_vl_8b": "Qwen3-VL-8B",
    "qwen3_5_4b": "Qwen3.5-4B",
}
FLAGS = "--bf16 True --gradient_checkpointing True --video_min_frames 16 --video_max_frames 16 --grpo_sample_size 8"
FLAGS += " --video_max_frame_pixels 131072 --generation_max_length 512 --max_steps 2 --gradient_accumulation_steps 8"
LORA = "--lora_enable True --lora_r 16"
CARDS = (16, 24, 40, 48, 80, 141)


def main() -> None:
    print("| model | LoRA | all weights | all weights, each of 8 GPUs with ZeRO-3 |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, title in NAMES.items():
            checkpoint = save_shape(name, Path(folder))
            cells = [planned(checkpoint, LORA), planned(checkpoint, ""), planned(checkpoint, "--gpus 8 --engine zero3")]
            print(f"| {title} | {' | '.join(map(cell, cells))} |", flush=True)


def save_shape(name: str, folder: Path) -> Path:
    """A folder with a model's ``config.json`` and a processor, a clip and its record beside it."""
    family, text, vision, tied = SHAPES[name]
    checkpoint = folder / name
    config = CONFIG_MAPPING[family](text_config=text, vision_config=vision, tie_word_embeddings=tied)
    config.architectures = [f"{''.join(part.title() for part in family.split('_'))}ForConditionalGeneration"]
    config.save_pretrained(checkpoint)
    make_processor(family).save_pretrained(checkpoint)
    encode(folder / "clip.mp4", [np.full((252, 448, 3), n, np.uint8) for n in range(0, 240, 2)])
    question = "<video>\nWhich steps are shown? " + " ".join(f"({n}) step" for n in range(1, 20))
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
    (folder / "data.json").write_text(json.dumps([{"id": "1", "video": "clip.mp4", "conversations": turns}]))
    return checkpoint


def planned(checkpoint: Path, flags: str) -> float:
    """GB that PyTorch reserves for a step on each GPU."""
    data = checkpoint.parent / "data.json"
    words = f"--model {checkpoint} --dataset_use {data} --gpu_memory 1000 {FLAGS} {flags}"
    return plan_of(*request_of(words.split())).reserved / 1e9


def cell(gigabytes: float) -> str:
    """The memory, and the smallest card of which it takes at most nine tenths."""
    card = next((card for card in CARDS if gigabytes <= 0.9 * card), None)
    text = f"{gigabytes:.0f} GB ({card} GB card)" if card else f"{gigabytes:.0f} GB (none)"
    return text.replace(" ", "\u00a0")  # a cell stays in one line on a phone


if __name__ == "__main__":
    main()
